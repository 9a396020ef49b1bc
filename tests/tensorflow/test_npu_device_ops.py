"""The operators of `npu_device`: eager, in functions, with gradients, on symbolic tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
npu_device = pytest.importorskip("npu_device")

ops = npu_device.gen_npu_ops
RANDOM = np.random.default_rng(3)


def real(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def both_ways(function: Callable[..., object]) -> list[Callable[..., object]]:
    return [function, tf.function(function)]


def close(found: object, wanted: object, rtol: float = 2e-5) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=rtol, atol=2e-5)


@pytest.mark.parametrize("number", [0, 1])
def test_activations_and_their_gradients(number: int) -> None:
    x = tf.constant(real(3, 5) * 3)
    functions = {
        "gelu": (npu_device.ops.gelu, lambda v: tf.nn.gelu(v, approximate=True)),
        "fast_gelu": (ops.fast_gelu, lambda v: v * tf.sigmoid(1.702 * v)),
        "prelu": (lambda v: ops.prelu(v, tf.constant([0.2])), lambda v: tf.where(v > 0, v, 0.2 * v)),
    }
    for ours, wanted in functions.values():
        call = both_ways(ours)[number]
        results = []
        for f in (call, wanted):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = f(x)
            results.append((y, tape.gradient(y, x)))
        close(results[0][0], results[1][0])
        close(results[0][1], results[1][1])


def test_fast_gelu_grad_is_the_gradient() -> None:
    x, dy = tf.constant(real(7)), tf.constant(real(7))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = ops.fast_gelu(x)
    close(npu_device.npu_device.gen_npu_ops.fast_gelu_grad(dy, x), tape.gradient(y, x, dy))


def test_layer_norm_is_keras_layer_norm() -> None:
    x, gamma, beta = real(4, 6), real(6), real(6)
    y, mean, variance = ops.fused_layer_norm(x, gamma, beta, epsilon=1e-3)
    layer = tf.keras.layers.LayerNormalization(epsilon=1e-3)
    layer.build((4, 6))
    layer.set_weights([gamma, beta])
    close(y, layer(x), 1e-4)
    close(mean, x.mean(-1, keepdims=True))
    close(variance, x.var(-1, keepdims=True))


@pytest.mark.parametrize("number", [0, 1])
def test_dropout_keeps_the_asked_share_and_the_sum(number: int) -> None:
    def run(x):
        mask = ops.drop_out_gen_mask(tf.shape(x), 0.75, 11, 12)
        return ops.drop_out_do_mask(x, mask, 0.75), mask

    x = tf.ones([40, 50])
    y, mask = both_ways(run)[number](x)
    assert mask.dtype == tf.uint8
    assert np.asarray(mask).mean() == pytest.approx(0.75, abs=0.04)
    close(y, np.asarray(mask) / np.float32(0.75))


def test_dropout_seeds_may_be_none_and_the_gradient_goes_through_the_mask() -> None:
    x = tf.constant(real(30, 4))
    mask = ops.drop_out_gen_mask_v3(tf.shape(x), tf.constant(0.5), None, None, "mask")
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = ops.drop_out_do_mask_v3(x, mask, tf.constant(0.5), "drop")
    close(tape.gradient(y, x), np.asarray(mask) * 2.0)
    assert npu_device.ops.dropout(x, 1.0) is x
    with pytest.raises(ValueError, match="keep_prob"):
        npu_device.ops.dropout(x, 1.5)


def test_operators_take_symbolic_tensors() -> None:
    inputs = tf.keras.Input((8,))
    middle = npu_device.ops.gelu(tf.keras.layers.Dense(4)(inputs))
    model = tf.keras.Model(inputs, ops.fast_gelu(middle))
    x = real(5, 8)
    weights = model.get_weights()
    dense = tf.constant(x) @ weights[0] + weights[1]
    close(model(x), ops.fast_gelu(tf.nn.gelu(dense, approximate=True)))
    assert model.predict(x, verbose=0).shape == (5, 4)


# -- optimizer steps -----------------------------------------------------------------------------------------


def test_adam_step_is_written() -> None:
    g, v, m, w = real(4), np.abs(real(4)), real(4), real(4)
    second, first, weights = tf.Variable(v), tf.Variable(m), tf.Variable(w)
    step = tf.function(
        lambda: ops.adam_apply_one_assign(g, second, first, weights, 0.1, 0.9, 0.1, 0.99, 0.01, 1e-6)
    )
    step()
    new_v, new_m = 0.99 * v + 0.01 * g * g, 0.9 * m + 0.1 * g
    close(second, new_v)
    close(first, new_m)
    close(weights, w - 0.1 * new_m / (np.sqrt(new_v) + 1e-6))


def test_lamb_step() -> None:
    g, v, m, w = real(4), np.abs(real(4)), real(4), real(4)
    second, first, weights = tf.Variable(v), tf.Variable(m), tf.Variable(w)
    args = (0.9, 0.1, 0.99, 0.01, 1e-6, 3.0, 1.0, 0.02)
    update, _, _ = ops.lamb_apply_optimizer_assign(g, second, first, weights, *args)
    new_v, new_m = 0.99 * v + 0.01 * g * g, 0.9 * m + 0.1 * g
    wanted = (new_m / (1 - 0.9**3)) / (np.sqrt(new_v / (1 - 0.99**3)) + 1e-6) + 0.02 * w
    close(update, wanted, 1e-4)
    norms = np.linalg.norm(w), np.linalg.norm(wanted)
    ops.lamb_apply_weight_assign(tf.constant(norms[0]), tf.constant(norms[1]), 0.1, update, weights)
    close(weights, w - norms[0] / norms[1] * 0.1 * wanted, 1e-4)


def test_lars_scales_by_the_ratio_of_norms() -> None:
    w, g = real(6), real(6)
    found = ops.lars_v2(
        input_weight=w, input_grad=g, weight_decay=0.01, learning_rate=0.1, hyperpara=0.001, epsilon=1e-5
    )
    norm, other = np.linalg.norm(w), np.linalg.norm(g)
    close(found, 0.001 * norm / (other + 0.01 * norm + 1e-5) * (g + 0.01 * w), 1e-4)


# -- recurrent cells -----------------------------------------------------------------------------------------


def _lstm_weights(inputs: int, units: int) -> tuple[np.ndarray, np.ndarray]:
    return real(inputs + units, 4 * units) * 0.3, real(4 * units) * 0.1


def _keras_lstm(w: np.ndarray, b: np.ndarray, inputs: int, units: int) -> object:
    """Keras has the gates in the order i, f, j, o."""
    order = [0, 2, 1, 3]
    parts = [np.split(v, 4, axis=-1) for v in (w, b)]
    kernel, bias = (np.concatenate([p[i] for i in order], axis=-1) for p in parts)
    layer = tf.keras.layers.LSTM(units, return_sequences=True, return_state=True)
    layer.build((None, None, inputs))
    layer.set_weights([kernel[:inputs], kernel[inputs:], bias])
    return layer


@pytest.mark.parametrize("number", [0, 1])
def test_lstm_is_keras_lstm_and_so_are_its_gradients(number: int) -> None:
    steps, batch, inputs, units = 5, 3, 4, 6
    x, (w, b) = real(steps, batch, inputs), _lstm_weights(inputs, units)
    call = both_ways(lambda *given: ops.dynamic_rnn(*given))[number]
    tensors = [tf.constant(v) for v in (x, w, b)]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        y = call(*tensors)[0]
    layer = _keras_lstm(w, b, inputs, units)
    with tf.GradientTape() as other:
        other.watch(tensors[0])
        wanted = layer(tf.transpose(tensors[0], [1, 0, 2]))[0]
    close(y, tf.transpose(wanted, [1, 0, 2]), 1e-4)
    grads = tape.gradient(y, tensors)
    close(grads[0], other.gradient(wanted, tensors[0]), 1e-3)


def test_lstm_gradient_operator_is_the_gradient() -> None:
    steps, batch, inputs, units = 4, 2, 3, 5
    w, b = _lstm_weights(inputs, units)
    x, h0, c0 = real(steps, batch, inputs), real(1, batch, units), real(1, batch, units)
    dy, dh, dc = real(steps, batch, units), real(batch, units), real(batch, units)
    given = [tf.constant(v) for v in (x, w, b, h0, c0)]
    with tf.GradientTape() as tape:
        tape.watch(given)
        y, h, c, i, j, f, o, t = ops.dynamic_rnn(given[0], given[1], given[2], None, given[3], given[4])
        last_h, last_c = h[-1], c[-1]
    wanted = tape.gradient([y, last_h, last_c], given, [tf.constant(v) for v in (dy, dh, dc)])
    found = ops.dynamic_rnn_grad(x, w, b, y, h0[-1], c0[-1], h, c, dy, dh, dc, i, j, f, o, t)
    for ours, theirs in zip(
        found, (wanted[1], wanted[2], wanted[0], wanted[3][0], wanted[4][0]), strict=True
    ):
        close(ours, theirs, 1e-3)


def test_sequences_end_where_they_end() -> None:
    w, b = _lstm_weights(3, 4)
    x = real(5, 2, 3)
    y, h, *_ = ops.dynamic_rnn(x, w, b, tf.constant([2, 5]))
    whole = ops.dynamic_rnn(x[:2], w, b)[1]
    assert not np.asarray(y)[2:, 0].any()
    close(np.asarray(h)[-1, 0], np.asarray(whole)[-1, 0])


def test_one_lstm_step_and_its_gradients() -> None:
    w, b = _lstm_weights(3, 4)
    x, h, c = real(2, 3), real(2, 4), real(2, 4)
    given = [tf.constant(v) for v in (x, h, c, w, b)]
    with tf.GradientTape() as tape:
        tape.watch(given)
        ct, ht, it, jt, ft, ot, squashed = ops.basic_lstm_cell(*given, 1.0, 1.0, True, "tanh")
    dc, dh = real(2, 4), real(2, 4)
    wanted = tape.gradient([ct, ht], given, [tf.constant(dc), tf.constant(dh)])
    dgate, dc_before = ops.basic_lstm_cell_c_state_grad(c, dh, dc, it, jt, ft, ot, squashed)
    dw, db = ops.basic_lstm_cell_weight_grad(x, h, dgate)
    dx, dh_before = ops.basic_lstm_cell_input_grad(dgate, w)
    for ours, theirs in zip((dx, dh_before, dc_before, dw, db), wanted, strict=True):
        close(ours, theirs, 1e-3)


def test_gru_is_keras_gru_and_its_gradient_operator_is_the_gradient() -> None:
    steps, batch, inputs, units = 4, 2, 3, 5
    wi, wh, bi, bh = real(inputs, 3 * units), real(units, 3 * units), real(3 * units), real(3 * units)
    x, h0, dy = real(steps, batch, inputs), real(1, batch, units), real(steps, batch, units)
    given = [tf.constant(v) for v in (x, wi, wh, bi, bh, h0)]
    with tf.GradientTape() as tape:
        tape.watch(given)
        y, h, z, r, n, hn = ops.dynamic_gru_v2(*given[:5], None, given[5])
    layer = tf.keras.layers.GRU(units, return_sequences=True, reset_after=True)
    layer.build((None, None, inputs))
    layer.set_weights([wi, wh, np.stack([bi, bh])])
    wanted = layer(tf.transpose(x, [1, 0, 2]), initial_state=tf.constant(h0[0]))
    close(y, tf.transpose(wanted, [1, 0, 2]), 1e-4)
    grads = tape.gradient(y, given, tf.constant(dy))
    found = ops.dynamic_gru_v2_grad(x, wi, wh, y, h0, h, dy, np.zeros_like(dy), z, r, n, hn)
    for ours, theirs in zip(
        found, (grads[1], grads[2], grads[3], grads[4], grads[0], grads[5][0]), strict=True
    ):
        close(ours, theirs, 1e-3)


def test_cells_refuse_what_they_lack() -> None:
    w, b = _lstm_weights(3, 4)
    with pytest.raises(ValueError, match="use_peephole"):
        ops.dynamic_rnn(real(2, 2, 3), w, b, use_peephole=True)
    with pytest.raises(ValueError, match="direction"):
        ops.dynamic_rnn(real(2, 2, 3), w, b, direction="SIDEWAYS")


def test_scripts_may_register_gradients_under_the_operators_names() -> None:
    from tensorflow.python.framework import ops as framework

    taken = set(framework.gradient_registry.list())
    assert not taken & {"BasicLSTMCell", "DynamicGruV2", "DynamicRnn", "DropOutDoMaskV3"}
