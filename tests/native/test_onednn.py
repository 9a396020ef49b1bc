"""Tasks that oneDNN runs, against PyTorch and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import npu_runtime as rt
from tests.native.native_support import (
    BF16,
    Array,
    Operand,
    channels_last,
    close,
    constant,
    logical,
    randn,
    run_single,
    single,
    view,
)


def _torch(array: Array) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array.astype(np.float64)))


# matmul


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((5, 7), (7, 3)),
        ((2, 4, 5, 7), (7, 3)),
        ((6, 5, 7), (6, 7, 3)),
        ((2, 3, 5, 7), (2, 1, 7, 4)),
        ((1, 3, 5, 7), (2, 1, 7, 4)),
        ((5, 7), (3, 7, 4)),
        ((1, 64), (64, 1)),
    ],
)
@pytest.mark.parametrize("is_constant", [False, True])
def test_matmul_broadcasts_like_numpy(a: tuple[int, ...], b: tuple[int, ...], is_constant: bool) -> None:
    x, w = randn(*a), randn(*b, seed=1)
    expected = x @ w
    y = np.zeros(expected.shape, np.float32)
    run_single("matmul", [x, Operand(w, constant=is_constant)], [y])
    close(y, expected, 1e-5)


def test_matmul_takes_transposed_and_strided_operands() -> None:
    x, w = randn(7, 5), randn(3, 7, seed=1)
    y = np.zeros((3, 5), np.float32)
    run_single("matmul", [Operand(x, (1, 0)), Operand(w, (1, 0))], [Operand(y, (1, 0))])
    close(y.T, x.T @ w.T, 1e-5)


def test_attention_reads_heads_where_they_lie() -> None:
    batch, heads, seq, depth = 2, 3, 4, 8
    qkv = randn(batch, seq, 3 * heads * depth)
    y = np.zeros((batch, heads, seq, seq), np.float32)
    program = rt.Program("qk")
    x, out = program.input(0, qkv.nbytes), program.output(0, y.nbytes)
    row = 3 * heads * depth
    q = (x, "float32", (batch, heads, seq, depth), (seq * row, depth, row, 1), 0)
    k = (x, "float32", (batch, heads, depth, seq), (seq * row, depth, 1, row), heads * depth)
    program.task("matmul", "qk", [q, k], [view(out, y)], {})
    program.finalize(0)
    program.run([qkv], [y])
    split = qkv.reshape(batch, seq, 3, heads, depth).transpose(2, 0, 3, 1, 4)
    close(y, split[0] @ split[1].swapaxes(-1, -2), 1e-5)


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_matmul_with_bias_residual_and_activation(dtype: Any) -> None:
    x, w, b, r = (
        randn(*s, seed=i).astype(dtype) for i, s in enumerate([(2, 6, 16), (16, 8), (8,), (2, 6, 8)])
    )
    y = np.zeros((2, 6, 8), dtype)
    attrs = {"has_bias": True, "post_ops": ["add", "gelu_erf"]}
    run_single("matmul", [x, constant(w), constant(b.astype(np.float32)), r], [y], attrs)
    expected = F.gelu(_torch(x) @ _torch(w) + _torch(b) + _torch(r)).numpy()
    close(y, expected, 1e-5 if dtype == np.float32 else 1e-2)


POST_OPS = {
    "relu": lambda t: t.relu(),
    "leaky,0.1": lambda t: F.leaky_relu(t, 0.1),
    "elu,0.5": lambda t: F.elu(t, 0.5),
    "gelu_erf": lambda t: F.gelu(t),
    "gelu_tanh": lambda t: F.gelu(t, approximate="tanh"),
    "swish": lambda t: F.silu(t),
    "swish,1.5": lambda t: t * torch.sigmoid(1.5 * t),
    "tanh": lambda t: t.tanh(),
    "sigmoid": lambda t: t.sigmoid(),
    "logistic": lambda t: t.sigmoid(),
    "clip,-0.5,0.75": lambda t: t.clamp(-0.5, 0.75),
    "hardswish": lambda t: F.hardswish(t),
    "hardsigmoid": lambda t: F.hardsigmoid(t),
    "mish": lambda t: F.mish(t),
    "softplus": lambda t: F.softplus(t),
    "abs": lambda t: t.abs(),
    "square": lambda t: t * t,
    "exp": lambda t: t.exp(),
    "linear,2.0,-1.0": lambda t: 2 * t - 1,
    "round": lambda t: t.round(),
}


@pytest.mark.parametrize("post_op", POST_OPS)
def test_elementwise_post_ops(post_op: str) -> None:
    x, w = randn(4, 8), randn(8, 6, seed=1)
    y = np.zeros((4, 6), np.float32)
    run_single("matmul", [x, constant(w)], [y], {"post_ops": [post_op]})
    close(y, POST_OPS[post_op](_torch(x) @ _torch(w)).numpy(), 1e-5)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "max", "min"])
@pytest.mark.parametrize("shape", [(4, 6), (1, 6), (6,), (1, 1), ()])
def test_binary_post_ops_broadcast(name: str, shape: tuple[int, ...]) -> None:
    x, w, r = randn(4, 8), randn(8, 6, seed=1), np.asarray(randn(*shape, seed=2) + 3, np.float32)
    y = np.zeros((4, 6), np.float32)
    run_single("matmul", [x, constant(w), r], [y], {"post_ops": [name]})
    function = {"sub": np.subtract, "add": np.add, "mul": np.multiply, "div": np.divide}
    expected = {**function, "max": np.maximum, "min": np.minimum}[name](x @ w, r)
    close(y, expected, 1e-5)


def test_a_row_of_a_wider_tensor_is_no_slow_operand() -> None:
    """The stride of a single row says nothing; with one of its own the library had but its reference product."""
    x, w, whole = randn(1, 16), randn(16, 16, seed=1), randn(1, 48, seed=2)
    y = np.zeros((1, 16), np.float32)
    program = rt.Program("row")
    buffers = [program.input(i, a.nbytes) for i, a in enumerate((x, w, whole))]
    inputs = [view(b, a) for b, a in zip(buffers[:2], (x, w), strict=True)]
    inputs.append((buffers[2], "float32", (1, 16), (48, 1), 32))
    program.task("matmul", "row", inputs, [view(program.output(0, y.nbytes), y)], {"post_ops": ["add"]})
    program.finalize(0)
    program.run([x, w, whole], [y])
    close(y, x @ w + whole[:, 32:], 1e-5)
    assert "ref" not in str(program.task_info()[0]["impl"])


def test_sum_adds_to_what_the_output_held() -> None:
    x, w = randn(4, 8), randn(8, 6, seed=1)
    y = randn(4, 6, seed=2)
    expected = x @ w + 0.5 * y
    run_single("matmul", [x, constant(w)], [y], {"post_ops": ["sum,0.5"]})
    close(y, expected, 1e-5)


def test_unknown_post_op_is_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"the_task.*unknown post-op 'frobnicate'"):
        run_single("matmul", [randn(2, 2), randn(2, 2)], [randn(2, 2)], {"post_ops": ["frobnicate"]})


def test_refused_combination_names_the_task() -> None:
    x = np.zeros((2, 2), np.float64)
    with pytest.raises(rt.UnsupportedTask, match=r"task 'the_task' \(matmul\).*float64"):
        run_single("matmul", [x, x], [x])


def test_shapes_that_do_not_multiply_are_refused() -> None:
    with pytest.raises(rt.UnsupportedTask, match="do not multiply"):
        run_single("matmul", [randn(2, 3), randn(4, 2)], [randn(2, 2)])


# convolution


def _conv(x: Array, w: Array, bias: Array | None, stride: int, pad: int, dilation: int, groups: int) -> Array:
    function = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[x.ndim]
    b = None if bias is None else _torch(bias)
    return function(_torch(x), _torch(w), b, stride, pad, dilation, groups).numpy()


def _conv_attrs(rank: int, stride: int, pad: int, dilation: int, groups: int, **more: Any) -> dict[str, Any]:
    spatial = rank - 2
    return {
        "strides": [stride] * spatial,
        "dilations": [dilation] * spatial,
        "pads_begin": [pad] * spatial,
        "pads_end": [pad] * spatial,
        "groups": groups,
        **more,
    }


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "stride", "pad", "dilation", "groups"),
    [
        ((2, 3, 10, 12), (8, 3, 3, 3), 1, 1, 1, 1),
        ((1, 16, 9, 9), (16, 16, 1, 1), 1, 0, 1, 1),
        ((1, 16, 9, 9), (32, 16, 3, 3), 2, 1, 1, 1),
        ((2, 8, 9, 9), (8, 1, 3, 3), 1, 1, 1, 8),
        ((1, 8, 12, 12), (16, 4, 3, 3), 1, 2, 2, 2),
        ((2, 6, 20), (4, 6, 5), 2, 2, 1, 1),
        ((1, 4, 5, 6, 7), (8, 4, 3, 3, 3), 1, 1, 1, 1),
    ],
)
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("is_constant", [True, False])
def test_convolution(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    stride: int,
    pad: int,
    dilation: int,
    groups: int,
    last: bool,
    is_constant: bool,
) -> None:
    x, w, b = randn(*x_shape), randn(*w_shape, seed=1), randn(w_shape[0], seed=2)
    expected = _conv(x, w, b, stride, pad, dilation, groups)
    blank = np.zeros(expected.shape, np.float32)
    source, y = (channels_last(x), channels_last(blank)) if last else (Operand(x), Operand(blank))
    attrs = _conv_attrs(x.ndim, stride, pad, dilation, groups, has_bias=True)
    impl = run_single("conv", [source, Operand(w, constant=is_constant), constant(b)], [y], attrs)
    assert not impl.startswith("ref")
    close(logical(y), expected, 1e-5)


def test_convolution_with_residual_and_relu_in_bfloat16() -> None:
    x, w, r = randn(1, 32, 8, 8), randn(32, 32, 3, 3, seed=1) / 17, randn(1, 32, 8, 8, seed=2)
    y = channels_last(np.zeros((1, 32, 8, 8), BF16))
    attrs = _conv_attrs(4, 1, 1, 1, 1, post_ops=["add", "relu"])
    inputs = [channels_last(x.astype(BF16)), constant(w.astype(BF16)), channels_last(r.astype(BF16))]
    run_single("conv", inputs, [y], attrs)
    close(logical(y), np.maximum(_conv(x, w, None, 1, 1, 1, 1) + r, 0), 2e-2)


def test_convolution_takes_weights_in_any_axis_order() -> None:
    x, w = randn(1, 4, 6, 6), randn(8, 4, 3, 3, seed=1)
    stored = np.ascontiguousarray(w.transpose(2, 3, 1, 0))
    y = channels_last(np.zeros((1, 8, 6, 6), np.float32))
    run_single("conv", [channels_last(x), constant(stored, (3, 2, 0, 1))], [y], _conv_attrs(4, 1, 1, 1, 1))
    close(logical(y), _conv(x, w, None, 1, 1, 1, 1), 1e-5)


def test_per_channel_post_operand_of_a_convolution() -> None:
    x, w, scale = randn(2, 4, 6, 6), randn(8, 4, 3, 3, seed=1), randn(1, 8, 1, 1, seed=2)
    y = channels_last(np.zeros((2, 8, 6, 6), np.float32))
    attrs = _conv_attrs(4, 1, 1, 1, 1, post_ops=["mul"])
    run_single("conv", [channels_last(x), constant(w), constant(scale)], [y], attrs)
    close(logical(y), _conv(x, w, None, 1, 1, 1, 1) * scale, 1e-5)


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "stride", "pad", "groups"),
    [
        ((2, 4, 5, 5), (4, 6, 3, 3), 2, 1, 1),
        ((1, 8, 6, 6), (8, 2, 2, 2), 2, 0, 4),
        ((1, 3, 7), (3, 5, 4), 2, 1, 1),
        ((1, 2, 3, 3, 3), (2, 4, 3, 3, 3), 1, 1, 1),
    ],
)
@pytest.mark.parametrize("last", [True, False])
def test_deconvolution(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], stride: int, pad: int, groups: int, last: bool
) -> None:
    x, w, b = randn(*x_shape), randn(*w_shape, seed=1), randn(w_shape[1] * groups, seed=2)
    function = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}[x.ndim]
    expected = function(_torch(x), _torch(w), _torch(b), stride, pad, 0, groups).numpy()
    blank = np.zeros(expected.shape, np.float32)
    source, y = (channels_last(x), channels_last(blank)) if last else (Operand(x), Operand(blank))
    attrs = _conv_attrs(x.ndim, stride, pad, 1, groups, has_bias=True)
    run_single("deconv", [source, constant(w), constant(b)], [y], attrs)
    close(logical(y), expected, 1e-5)


def test_equal_constants_are_packed_once() -> None:
    w = randn(64, 64, seed=1)
    x = randn(8, 64)

    def build(tasks: int) -> int:
        program = rt.Program("shared")
        source, weights = program.input(0, x.nbytes), program.constant(w)
        for i in range(tasks):
            out = program.output(i, x.nbytes)
            program.task("matmul", f"m{i}", [view(source, x), view(weights, w)], [view(out, x)], {})
        program.finalize(0)
        return program.constant_bytes

    assert build(3) == build(1)


def test_plain_copies_of_packed_constants_are_let_go() -> None:
    w = randn(512, 512, seed=1)
    program, _, _ = single("matmul", [randn(64, 512), constant(w)], [np.zeros((64, 512), np.float32)])
    assert w.nbytes <= program.constant_bytes < 1.5 * w.nbytes


# pooling and images


@pytest.mark.parametrize("kind", ["max", "avg_include", "avg_exclude"])
@pytest.mark.parametrize("last", [True, False])
def test_pooling(kind: str, last: bool) -> None:
    x = randn(2, 5, 9, 11)
    if kind == "max":
        expected = F.max_pool2d(_torch(x), 3, 2, 1).numpy()
    else:
        expected = F.avg_pool2d(_torch(x), 3, 2, 1, count_include_pad=kind == "avg_include").numpy()
    blank = np.zeros(expected.shape, np.float32)
    source, y = (channels_last(x), channels_last(blank)) if last else (Operand(x), Operand(blank))
    attrs = {"kind": kind, "kernel": [3, 3], "strides": [2, 2], "pads_begin": [1, 1], "pads_end": [1, 1]}
    run_single("pool", [source], [y], attrs)
    close(logical(y), expected, 1e-6)


def test_dilated_max_pooling_in_one_and_three_dimensions() -> None:
    x = randn(1, 2, 20)
    y = np.zeros((1, 2, 16), np.float32)
    run_single("pool", [x], [y], {"kind": "max", "kernel": [3], "strides": [1], "dilations": [2]})
    close(y, F.max_pool1d(_torch(x), 3, 1, 0, 2).numpy(), 1e-6)
    x = randn(1, 2, 6, 6, 6)
    y = np.zeros((1, 2, 3, 3, 3), np.float32)
    run_single("pool", [x], [y], {"kind": "max", "kernel": [2] * 3, "strides": [2] * 3})
    close(y, F.max_pool3d(_torch(x), 2).numpy(), 1e-6)


def test_global_average_pooling_in_bfloat16() -> None:
    x = randn(2, 32, 7, 7).astype(BF16)
    y = channels_last(np.zeros((2, 32, 1, 1), BF16))
    attrs = {"kind": "avg_exclude", "kernel": [7, 7], "strides": [1, 1]}
    run_single("pool", [channels_last(x)], [y], attrs)
    close(logical(y), x.astype(np.float64).mean((2, 3), keepdims=True), 1e-2)


@pytest.mark.parametrize("reordered", [False, True])
def test_local_response_normalisation(reordered: bool) -> None:
    x = randn(2, 9, 5, 5)
    y = np.zeros_like(x)
    attrs = {"size": 5, "alpha": 1e-2, "beta": 0.75, "k": 2.0}
    run_single("lrn", [x], [y], attrs | {"channels_last": reordered})
    close(y, F.local_response_norm(_torch(x), 5, 1e-2, 0.75, 2.0).numpy(), 1e-5)


# recurrent layers


def _gates(weight: torch.Tensor, gates: int, order: list[int]) -> Array:
    """PyTorch's (G*H, I) as oneDNN's (1, 1, I, G, H), gates in oneDNN's order."""
    array = weight.detach().numpy().reshape(gates, -1, weight.shape[-1])[order]
    return np.ascontiguousarray(array.transpose(2, 0, 1)[None, None])


def _stack(directions: list[Array]) -> Array:
    return np.ascontiguousarray(np.concatenate(directions, 1))


def _weights(module: torch.nn.RNNBase, gates: int, order: list[int], lbr: bool = False) -> list[Operand]:
    suffixes = ["", "_reverse"] if module.bidirectional else [""]
    w_ih, w_hh, bias = [], [], []
    for suffix in suffixes:
        w_ih.append(_gates(getattr(module, f"weight_ih_l0{suffix}"), gates, order))
        w_hh.append(_gates(getattr(module, f"weight_hh_l0{suffix}"), gates, order))
        b_ih = getattr(module, f"bias_ih_l0{suffix}").detach().numpy().reshape(gates, -1)[order]
        b_hh = getattr(module, f"bias_hh_l0{suffix}").detach().numpy().reshape(gates, -1)[order]
        total = b_ih + b_hh
        if lbr:  # the last gate's recurrent bias is kept apart
            total = np.concatenate([total[:2], b_ih[2:], b_hh[2:]])
        bias.append(total[None, None])
    return [constant(_stack(w_ih)), constant(_stack(w_hh)), constant(_stack(bias))]


STEPS, BATCH, INPUT, HIDDEN = 5, 3, 6, 8


@pytest.mark.parametrize("bidirectional", [False, True])
def test_lstm(bidirectional: bool) -> None:
    torch.manual_seed(0)
    module = torch.nn.LSTM(INPUT, HIDDEN, bidirectional=bidirectional)
    d = 2 if bidirectional else 1
    x, h0, c0 = randn(STEPS, BATCH, INPUT), randn(d, BATCH, HIDDEN, seed=1), randn(d, BATCH, HIDDEN, seed=2)
    states = [torch.from_numpy(s) for s in (h0, c0)]
    y, (h_n, c_n) = (t.detach() if isinstance(t, torch.Tensor) else [s.detach() for s in t]
                     for t in module(torch.from_numpy(x), tuple(states)))  # fmt: skip
    outs = [np.zeros((STEPS, BATCH, d * HIDDEN), np.float32)]
    outs += [np.zeros((1, d, BATCH, HIDDEN), np.float32) for _ in range(2)]
    attrs = {"cell": "lstm", "direction": "bidirectional" if bidirectional else "forward"}
    run_single("rnn", [x, h0[None], c0[None], *_weights(module, 4, [0, 1, 2, 3])], outs, attrs)
    close(outs[0], y.numpy(), 1e-5)
    close(outs[1][0], h_n.numpy(), 1e-5)
    close(outs[2][0], c_n.numpy(), 1e-5)


def test_lstm_without_states() -> None:
    torch.manual_seed(0)
    module = torch.nn.LSTM(INPUT, HIDDEN)
    x = randn(STEPS, BATCH, INPUT)
    y = np.zeros((STEPS, BATCH, HIDDEN), np.float32)
    run_single("rnn", [x, *_weights(module, 4, [0, 1, 2, 3])], [y], {"cell": "lstm", "has_initial": False})
    close(y, module(torch.from_numpy(x))[0].detach().numpy(), 1e-5)


def test_gru_with_linear_before_reset() -> None:
    torch.manual_seed(0)
    module = torch.nn.GRU(INPUT, HIDDEN)
    x, h0 = randn(STEPS, BATCH, INPUT), randn(1, BATCH, HIDDEN, seed=1)
    outs = [np.zeros((STEPS, BATCH, HIDDEN), np.float32), np.zeros((1, 1, BATCH, HIDDEN), np.float32)]
    run_single("rnn", [x, h0[None], *_weights(module, 3, [1, 0, 2], lbr=True)], outs, {"cell": "gru_lbr"})
    y, h_n = module(torch.from_numpy(x), torch.from_numpy(h0))
    close(outs[0], y.detach().numpy(), 1e-5)
    close(outs[1][0], h_n.detach().numpy(), 1e-5)


def test_gru_with_reset_before_linear() -> None:
    x, h = randn(STEPS, BATCH, INPUT), np.zeros((BATCH, HIDDEN), np.float32)
    w, r, b = (
        randn(1, 1, INPUT, 3, HIDDEN, seed=1),
        randn(1, 1, HIDDEN, 3, HIDDEN, seed=2),
        randn(1, 1, 3, HIDDEN),
    )
    y = np.zeros((STEPS, BATCH, HIDDEN), np.float32)
    attrs = {"cell": "gru", "has_initial": False}
    run_single("rnn", [x, constant(w), constant(r), constant(b)], [y], attrs)

    def sigmoid(value: Array) -> Array:
        return np.asarray(1 / (1 + np.exp(-value)))

    for t in range(STEPS):
        u = sigmoid(x[t] @ w[0, 0, :, 0] + h @ r[0, 0, :, 0] + b[0, 0, 0])
        reset = sigmoid(x[t] @ w[0, 0, :, 1] + h @ r[0, 0, :, 1] + b[0, 0, 1])
        o = np.tanh(x[t] @ w[0, 0, :, 2] + (reset * h) @ r[0, 0, :, 2] + b[0, 0, 2])
        h = u * h + (1 - u) * o
        close(y[t], h, 1e-5)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_plain_recurrent_layer_reversed(activation: str) -> None:
    torch.manual_seed(0)
    module = torch.nn.RNN(INPUT, HIDDEN, nonlinearity=activation)
    x, h0 = randn(STEPS, BATCH, INPUT), randn(1, BATCH, HIDDEN, seed=1)
    y = np.zeros((STEPS, BATCH, HIDDEN), np.float32)
    attrs = {"cell": f"vanilla_{activation}", "direction": "reverse"}
    run_single("rnn", [x, h0[None], *_weights(module, 1, [0])], [y], attrs)
    expected, _ = module(torch.from_numpy(x[::-1].copy()), torch.from_numpy(h0))
    close(y[::-1], expected.detach().numpy(), 1e-5)


def test_recurrent_layer_with_wrong_gates_is_refused() -> None:
    x, w = randn(2, 2, 4), randn(1, 1, 4, 3, 4)
    with pytest.raises(rt.UnsupportedTask, match="gates"):
        run_single(
            "rnn", [x, w, w, randn(1, 1, 3, 4)], [randn(2, 2, 4)], {"cell": "lstm", "has_initial": False}
        )


# quantised


@pytest.mark.parametrize("source", [np.uint8, np.int8])
@pytest.mark.parametrize("target", [np.uint8, np.int8, np.float32, np.int32])
def test_quantised_matmul(source: Any, target: Any) -> None:
    rng = np.random.default_rng(0)
    low, high = (0, 255) if source == np.uint8 else (-128, 127)
    x = rng.integers(low, high, (6, 32)).astype(source)
    w = rng.integers(-127, 127, (32, 8)).astype(np.int8)
    scales = rng.uniform(1e-3, 2e-3, 8).astype(np.float32)
    bias = rng.standard_normal(8).astype(np.float32)
    y = np.zeros((6, 8), target)
    attrs: dict[str, Any] = {
        "has_bias": True,
        "has_weight_scales": True,
        "src_scale": 0.02,
        "src_zero_point": 3,
    }
    real = 0.02 * scales * ((x.astype(np.int64) - 3) @ w.astype(np.int64)) + bias
    if target in (np.uint8, np.int8):
        attrs |= {"dst_scale": 0.05, "dst_zero_point": 4}
        info = np.iinfo(target)
        real = np.clip(np.rint(real / 0.05) + 4, info.min, info.max)
    run_single("matmul", [x, constant(w), constant(bias), constant(scales)], [y], attrs)
    tolerance = 1 if target != np.float32 else 1e-5
    assert np.abs(y.astype(np.float64) - real).max() <= tolerance


def test_quantised_convolution_with_residual() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (1, 16, 8, 8)).astype(np.uint8)
    w = rng.integers(-127, 127, (16, 16, 3, 3)).astype(np.int8)
    scales = rng.uniform(1e-3, 2e-3, 16).astype(np.float32)
    y = channels_last(np.zeros((1, 16, 8, 8), np.uint8))
    attrs = _conv_attrs(
        4, 1, 1, 1, 1, src_scale=0.02, dst_scale=0.1, has_weight_scales=True, post_ops=["relu"]
    )
    impl = run_single("conv", [channels_last(x), constant(w), constant(scales)], [y], attrs)
    assert not impl.startswith("ref")
    real = _conv(x, w, None, 1, 1, 1, 1) * 0.02 * scales[:, None, None]
    expected = np.clip(np.rint(np.maximum(real, 0) / 0.1), 0, 255)
    assert np.abs(logical(y).astype(np.int64) - expected).max() <= 1


# reorder

ALL = ["float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64"]
ALL += ["uint8", "uint16", "uint32", "uint64", "bool"]


@pytest.mark.parametrize("source", ALL)
def test_casts_to_every_type(source: str) -> None:
    rng = np.random.default_rng(0)
    x = (rng.random((3, 17)) * 100).astype(rt.numpy_dtype(source))
    for target in ALL:
        y = np.zeros((3, 17), rt.numpy_dtype(target))
        run_single("reorder", [x], [y])
        np.testing.assert_array_equal(y, x.astype(rt.numpy_dtype(target)), err_msg=target)


def test_casts_of_special_values() -> None:
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45, 65519.9, 65520.0, 3.3895e38, 5.9e-8], np.float32)
    for target in (np.dtype(np.float16), BF16, np.dtype(np.float64), np.dtype(np.bool_)):
        y = np.zeros(x.shape, target)
        run_single("reorder", [x], [y])
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(y.astype(np.float64), x.astype(target).astype(np.float64))


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "bfloat16", "float64", "int16"])
@pytest.mark.parametrize("perm", [(1, 0, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0), (0, 1, 3, 2)])
def test_transposes(dtype: str, perm: tuple[int, ...]) -> None:
    x = (np.arange(3 * 40 * 5 * 37).reshape(3, 40, 5, 37) % 251).astype(rt.numpy_dtype(dtype))
    expected = np.ascontiguousarray(x.transpose(perm))
    y = np.zeros(expected.shape, x.dtype)
    run_single("reorder", [Operand(x, perm)], [y])
    np.testing.assert_array_equal(y, expected)


def test_reorder_with_negative_and_zero_strides() -> None:
    x = np.arange(12, dtype=np.float32)
    y = np.zeros((2, 4), np.float32)
    program = rt.Program("strides")
    source, out = program.input(0, x.nbytes), program.output(0, y.nbytes)
    program.task("reorder", "r", [(source, "float32", (2, 4), (0, -2), 11)], [view(out, y)], {})
    program.finalize(0)
    program.run([x], [y])
    np.testing.assert_array_equal(y, [[11, 9, 7, 5]] * 2)


def test_types_without_a_product_are_refused() -> None:
    double = np.zeros((4, 4))
    with pytest.raises(rt.UnsupportedTask, match="float64"):
        run_single("matmul", [double, double], [np.zeros((4, 4))])
    with pytest.raises(ValueError, match="unknown task kind"):
        run_single("nothing", [], [])


@pytest.mark.parametrize("kind", ["pool", "lrn", "pool_grad"])
def test_kinds_of_the_library_alone_have_no_other_implementation(kind: str) -> None:
    x = randn(1, 2, 4, 4)
    with pytest.raises(rt.UnsupportedTask, match="there is no implementation 'own'; there are onednn"):
        run_single(kind, [x], [x.copy()], {"implementation": "own"})


# 16-bit floats that this machine's oneDNN may not take


@pytest.mark.parametrize("is_constant", [True, False])
def test_half_precision_matmul_with_residual(is_constant: bool) -> None:
    x, w, r = (randn(*s, seed=i).astype(np.float16) for i, s in enumerate([(5, 16), (16, 8), (5, 8)]))
    y = np.ones((5, 8), np.float16)
    operands = [x, Operand(w, constant=is_constant), r]
    run_single("matmul", operands, [y], {"post_ops": ["add", "sum,2.0", "relu"]})
    expected = np.maximum(x.astype(np.float64) @ w.astype(np.float64) + r + 2, 0)
    close(y, expected, 2e-3)


@pytest.mark.parametrize("last", [True, False])
def test_half_precision_convolution_and_pooling(last: bool) -> None:
    x, w = randn(1, 8, 9, 9).astype(np.float16), (randn(16, 8, 3, 3, seed=1) / 8).astype(np.float16)
    blank = np.zeros((1, 16, 9, 9), np.float16)
    source, y = (channels_last(x), channels_last(blank)) if last else (Operand(x), Operand(blank))
    run_single("conv", [source, constant(w)], [y], _conv_attrs(4, 1, 1, 1, 1))
    close(logical(y), _conv(x, w, None, 1, 1, 1, 1), 2e-3)
    pooled = np.zeros((1, 8, 4, 4), np.float16)
    run_single("pool", [x], [pooled], {"kind": "max", "kernel": [2, 2], "strides": [2, 2]})
    close(pooled, F.max_pool2d(_torch(x), 2).numpy(), 0)


def test_half_precision_lstm() -> None:
    torch.manual_seed(0)
    module = torch.nn.LSTM(INPUT, HIDDEN)
    x = randn(STEPS, BATCH, INPUT).astype(np.float16)
    weights = [constant(w.array.astype(np.float16)) for w in _weights(module, 4, [0, 1, 2, 3])]
    y = np.zeros((STEPS, BATCH, HIDDEN), np.float16)
    impl = run_single("rnn", [x, *weights], [y], {"cell": "lstm", "has_initial": False})
    expected = module(torch.from_numpy(x.astype(np.float32)))[0].detach().numpy()
    close(y, expected, 2e-3)
    assert impl


def test_empty_operands() -> None:
    y = np.zeros((0, 3), np.float32)
    run_single("matmul", [randn(0, 4), randn(4, 3)], [y])
    run_single("reorder", [randn(0, 3)], [y])
    run_single("copy", [randn(0, 3)], [y])
    with pytest.raises(rt.UnsupportedTask, match="nothing to sum over"):
        run_single("matmul", [randn(2, 0), randn(0, 3)], [randn(2, 3)])
