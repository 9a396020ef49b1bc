"""Operators that ported scripts call by name, composed of TensorFlow's. They run eagerly, in functions and on symbolic
tensors, and have gradients.

They are not operator types, so scripts may register gradients under those names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from npu_device.symbolic import takes_symbolic

__all__ = [
    "adam_apply_one_assign",
    "adam_apply_one_with_decay_assign",
    "basic_lstm_cell",
    "basic_lstm_cell_c_state_grad",
    "basic_lstm_cell_input_grad",
    "basic_lstm_cell_weight_grad",
    "drop_out_do_mask",
    "drop_out_do_mask_v3",
    "drop_out_gen_mask",
    "drop_out_gen_mask_v3",
    "dynamic_gru_v2",
    "dynamic_gru_v2_grad",
    "dynamic_rnn",
    "dynamic_rnn_grad",
    "fast_gelu",
    "fast_gelu_grad",
    "fused_layer_norm",
    "gelu",
    "lamb_apply_optimizer_assign",
    "lamb_apply_weight_assign",
    "lars_v2",
    "prelu",
]

_FAST_GELU = 1.702


# -- dropout -------------------------------------------------------------------------------------------------


def drop_out_gen_mask(
    shape: Any, prob: Any, seed: int | None = 0, seed2: int | None = 0, name: str | None = None
) -> tf.Tensor:
    """Dropout mask of this shape: 1 (keep) with probability `prob`, else 0."""
    with tf.name_scope(name or "DropOutGenMask"):
        dims = shape.as_list() if isinstance(shape, tf.TensorShape) else shape
        dims = tf.convert_to_tensor(dims, tf.int32) if not tf.is_tensor(dims) else dims
        numbers = tf.raw_ops.RandomUniform(shape=dims, dtype=tf.float32, seed=seed or 0, seed2=seed2 or 0)
        return tf.cast(numbers < tf.cast(prob, tf.float32), tf.uint8)


@takes_symbolic
def drop_out_do_mask(x: Any, mask: Any, keep_prob: Any, name: str | None = None) -> tf.Tensor:
    """Apply a dropout mask and rescale, preserving the expected sum."""
    with tf.name_scope(name or "DropOutDoMask"):
        x = tf.convert_to_tensor(x)
        kept = tf.cast(tf.not_equal(mask, tf.zeros([], mask.dtype)), x.dtype)
        return x * kept / tf.cast(keep_prob, x.dtype)


drop_out_gen_mask_v3 = drop_out_gen_mask
drop_out_do_mask_v3 = drop_out_do_mask


# -- activations and normalisation ---------------------------------------------------------------------------


@takes_symbolic
def gelu(x: Any, name: str | None = None) -> tf.Tensor:
    """Gaussian error linear unit, tanh approximation."""
    return tf.nn.gelu(x, approximate=True, name=name)


@takes_symbolic
def fast_gelu(x: Any, name: str | None = None) -> tf.Tensor:
    """x * sigmoid(1.702 * x), an approximation of the Gaussian error linear unit."""
    with tf.name_scope(name or "FastGelu"):
        x = tf.convert_to_tensor(x)
        return x * tf.sigmoid(x * tf.cast(_FAST_GELU, x.dtype))


def fast_gelu_grad(dy: Any, x: Any, name: str | None = None) -> tf.Tensor:
    """Gradient of `fast_gelu` multiplied by dy."""
    with tf.name_scope(name or "FastGeluGrad"):
        x = tf.convert_to_tensor(x)
        factor = tf.cast(_FAST_GELU, x.dtype)
        s = tf.sigmoid(x * factor)
        return dy * (s + x * factor * s * (1 - s))


@takes_symbolic
def prelu(x: Any, weight: Any, name: str | None = None) -> tf.Tensor:
    """x if positive, else weight * x."""
    with tf.name_scope(name or "PRelu"):
        x = tf.convert_to_tensor(x)
        return tf.maximum(x, 0) + weight * tf.minimum(x, 0)


@takes_symbolic
def fused_layer_norm(
    x: Any,
    gamma: Any,
    beta: Any,
    begin_norm_axis: int = -1,
    begin_params_axis: int = -1,
    epsilon: float = 1e-7,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Layer normalisation over the last axes; returns (y, mean, variance)."""
    with tf.name_scope(name or "FusedLayerNorm"):
        x = tf.convert_to_tensor(x)
        rank = x.shape.rank
        mean, variance = tf.nn.moments(x, list(range(begin_norm_axis % rank, rank)), keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, epsilon), mean, variance


# -- optimizer steps -----------------------------------------------------------------------------------------


def lars_v2(
    input_weight: Any,
    input_grad: Any,
    weight_decay: Any,
    learning_rate: Any,
    hyperpara: float = 0.001,
    epsilon: float = 0.00001,
    use_clip: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Scale a gradient by the ratio of the weight's and its own norm (layer-wise adaptive rate scaling)."""
    with tf.name_scope(name or "LarsV2"):
        weight, grad = tf.convert_to_tensor(input_weight), tf.convert_to_tensor(input_grad)
        weight_norm, grad_norm = tf.norm(weight), tf.norm(grad)
        rate = hyperpara * weight_norm / (grad_norm + weight_decay * weight_norm + epsilon)
        if use_clip:
            rate = tf.clip_by_value(rate / learning_rate, 0.0, 1.0)
        usable = tf.logical_and(weight_norm > 0, grad_norm > 0)
        return tf.where(usable, rate, tf.ones_like(rate)) * (grad + weight * weight_decay)


def _assigned(variable: Any, value: tf.Tensor) -> tf.Tensor:
    """Assign a value if the target is a variable; returns the value."""
    return variable.assign(value) if isinstance(variable, tf.Variable) else value


def adam_apply_one_with_decay_assign(
    input0: Any,
    input1: Any,
    input2: Any,
    input3: Any,
    input4: Any,
    mul0_x: Any,
    mul1_x: Any,
    mul2_x: Any,
    mul3_x: Any,
    mul4_x: Any,
    add2_y: Any,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """One step of Adam with decoupled weight decay, written to the variables.

    input0 gradient, input1 second moment, input2 first moment, input3 weights, input4 learning rate; mul0_x and
    mul1_x weigh the old first moment and the gradient, mul2_x and mul3_x the second moment and the squared gradient,
    mul4_x the weights; add2_y is epsilon. Returns the second moment, the first, the weights.
    """
    with tf.name_scope(name or "AdamApplyOneWithDecayAssign"):
        grad = tf.convert_to_tensor(input0)
        second = mul2_x * input1 + mul3_x * tf.square(grad)
        first = mul0_x * input2 + mul1_x * grad
        update = first / (tf.sqrt(second) + add2_y)
        if mul4_x is not None:
            update += mul4_x * input3
        weights = input3 - input4 * update
        return _assigned(input1, second), _assigned(input2, first), _assigned(input3, weights)


def adam_apply_one_assign(
    input0: Any,
    input1: Any,
    input2: Any,
    input3: Any,
    input4: Any,
    mul0_x: Any,
    mul1_x: Any,
    mul2_x: Any,
    mul3_x: Any,
    add2_y: Any,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """`adam_apply_one_with_decay_assign` without the decay."""
    moments = (mul0_x, mul1_x, mul2_x, mul3_x)
    return adam_apply_one_with_decay_assign(
        input0, input1, input2, input3, input4, *moments, None, add2_y, name
    )


def lamb_apply_optimizer_assign(
    input0: Any,
    input1: Any,
    input2: Any,
    input3: Any,
    mul0_x: Any,
    mul1_x: Any,
    mul2_x: Any,
    mul3_x: Any,
    add2_y: Any,
    steps: Any,
    do_use_weight: Any,
    weight_decay_rate: Any,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """First half of a LAMB step: the update before layer-wise scaling; assigns both moments.

    input0 gradient, input1 second moment, input2 first moment, input3 weights; mul0_x … mul3_x as for Adam. Moments are
    corrected for the number of steps. Returns the update, the second moment, the first.
    """
    with tf.name_scope(name or "LambApplyOptimizerAssign"):
        grad = tf.convert_to_tensor(input0)
        second = mul2_x * input1 + mul3_x * tf.square(grad)
        first = mul0_x * input2 + mul1_x * grad
        count = tf.cast(steps, grad.dtype)
        corrected = first / (1 - tf.pow(tf.cast(mul0_x, grad.dtype), count))
        spread = second / (1 - tf.pow(tf.cast(mul2_x, grad.dtype), count))
        update = corrected / (tf.sqrt(spread) + add2_y)
        update += tf.cast(do_use_weight, grad.dtype) * weight_decay_rate * input3
        return update, _assigned(input1, second), _assigned(input2, first)


def lamb_apply_weight_assign(
    input0: Any, input1: Any, input2: Any, input3: Any, input4: Any, name: str | None = None
) -> tf.Tensor:
    """Second half of a LAMB step: applies the update (input3) to the weights (input4).

    input0 norm of the weights, input1 norm of the update, input2 learning rate.
    """
    with tf.name_scope(name or "LambApplyWeightAssign"):
        usable = tf.logical_and(input0 > 0, input1 > 0)
        rate = tf.where(usable, tf.math.divide_no_nan(input0, input1), tf.ones_like(input0))
        return _assigned(input4, input4 - rate * input2 * input3)


# -- recurrent cells -----------------------------------------------------------------------------------------


def _activation(name: str) -> Callable[[tf.Tensor], tf.Tensor]:
    table = {"tanh": tf.tanh, "relu": tf.nn.relu, "sigmoid": tf.sigmoid}
    if name not in table:
        raise ValueError(f"activation {name!r} is unknown: use one of {', '.join(table)}")
    return table[name]


def _refuse_dropout(keep_prob: float) -> None:
    if keep_prob != 1.0:
        raise ValueError(
            f"keep_prob of a recurrent cell must be 1, not {keep_prob}: drop out its inputs instead"
        )


def _lstm_step(
    gates: tf.Tensor, c: tf.Tensor, forget_bias: float, activation: Callable[[tf.Tensor], tf.Tensor]
) -> tuple[tf.Tensor, ...]:
    """(c, h, i, j, f, o, tanh c) of one step; gates in the order i, j, f, o."""
    i, j, f, o = tf.split(gates, 4, axis=-1)
    i, j, f, o = tf.sigmoid(i), activation(j), tf.sigmoid(f + forget_bias), tf.sigmoid(o)
    c = c * f + i * j
    squashed = activation(c)
    return c, squashed * o, i, j, f, o, squashed


def basic_lstm_cell(
    x: Any,
    h: Any,
    c: Any,
    w: Any,
    b: Any,
    keep_prob: float = 1.0,
    forget_bias: float = 1.0,
    state_is_tuple: bool = True,
    activation: str = "tanh",
    name: str | None = None,
) -> tuple[tf.Tensor, ...]:
    """One step of an LSTM: (c, h, i, j, f, o, tanh c).

    w is (inputs + units, 4 * units) with gates i, j, f, o.
    """
    _refuse_dropout(keep_prob)
    with tf.name_scope(name or "BasicLSTMCell"):
        gates = tf.matmul(tf.concat([x, h], axis=1), w) + b
        return _lstm_step(gates, tf.convert_to_tensor(c), forget_bias, _activation(activation))


def basic_lstm_cell_c_state_grad(
    c: Any,
    dht: Any,
    dct: Any,
    it: Any,
    jt: Any,
    ft: Any,
    ot: Any,
    tanhct: Any,
    forget_bias: float = 1.0,
    activation: str = "tanh",
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Gradients of the four gates' pre-activations and of the initial cell state of a step."""
    if activation != "tanh":
        raise ValueError(f"activation {activation!r} has no gradient here: use 'tanh'")
    with tf.name_scope(name or "BasicLSTMCellCStateGrad"):
        whole = dct + dht * ot * (1 - tf.square(tanhct))
        di = whole * jt * it * (1 - it)
        dj = whole * it * (1 - tf.square(jt))
        df = whole * c * ft * (1 - ft)
        do = dht * tanhct * ot * (1 - ot)
        return tf.concat([di, dj, df, do], axis=1), whole * ft


def basic_lstm_cell_weight_grad(
    x: Any, h: Any, dgate: Any, name: str | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Gradients of a step's weights and bias."""
    with tf.name_scope(name or "BasicLSTMCellWeightGrad"):
        return tf.matmul(tf.concat([x, h], axis=1), dgate, transpose_a=True), tf.reduce_sum(dgate, axis=0)


def basic_lstm_cell_input_grad(
    dgate: Any, w: Any, dropout_mask: Any = None, keep_prob: float = 1.0, name: str | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Gradients of a step's input and initial hidden state."""
    _refuse_dropout(keep_prob)
    with tf.name_scope(name or "BasicLSTMCellInputGrad"):
        both = tf.matmul(dgate, w, transpose_b=True)
        units = dgate.shape[-1] // 4
        return both[:, :-units], both[:, -units:]


def _refuse_cell(values: dict[str, tuple[Any, Any]]) -> None:
    """Reject unsupported options of recurrent operators."""
    for name, (value, only) in values.items():
        if value != only:
            raise ValueError(f"{name} must be {only!r}, not {value!r}")


def _masks(seq_length: Any, steps: int, dtype: tf.DType) -> tf.Tensor | None:
    """Mask (steps, batch, 1) of valid steps; None if all sequences have full length."""
    if seq_length is None:
        return None
    return tf.transpose(tf.sequence_mask(seq_length, steps, dtype=dtype))[:, :, None]


def _scanned(step: Callable[..., Any], elements: Sequence[Any], start: Any, reverse: bool) -> Any:
    return tf.scan(step, tuple(elements), start, reverse=reverse)


_REVERSE = {"UNIDIRECTIONAL": False, "REDIRECTIONAL": True}


def _reverse(direction: str) -> bool:
    if direction not in _REVERSE:
        raise ValueError(f"direction {direction!r} is unknown: use one of {', '.join(_REVERSE)}")
    return _REVERSE[direction]


def dynamic_rnn(
    x: Any,
    w: Any,
    b: Any,
    seq_length: Any = None,
    init_h: Any = None,
    init_c: Any = None,
    cell_type: str = "LSTM",
    direction: str = "UNIDIRECTIONAL",
    cell_depth: int = 1,
    use_peephole: bool = False,
    keep_prob: float = 1.0,
    cell_clip: float = -1.0,
    num_proj: int = 0,
    time_major: bool = True,
    activation: str = "tanh",
    forget_bias: float = 0.0,
    is_training: bool = True,
    name: str | None = None,
) -> tuple[tf.Tensor, ...]:
    """An LSTM over a sequence (steps, batch, inputs): (y, h, c, i, j, f, o, tanh c), each (steps, batch, units).

    w is (inputs + units, 4 * units) with gates i, j, f, o. Past its length a sequence keeps its state and outputs
    zeros.
    """
    _refuse_dropout(keep_prob)
    _refuse_cell(
        {
            "cell_type": (cell_type, "LSTM"),
            "cell_depth": (cell_depth, 1),
            "use_peephole": (use_peephole, False),
            "num_proj": (num_proj, 0),
            "time_major": (time_major, True),
        }
    )
    with tf.name_scope(name or "DynamicRnn"):
        x, w, b = (tf.convert_to_tensor(v) for v in (x, w, b))
        units, batch = w.shape[-1] // 4, tf.shape(x)[1]
        inputs = x.shape[-1]
        blank = tf.zeros([batch, units], x.dtype)
        h0, c0 = (blank if v is None else tf.reshape(v, [batch, units]) for v in (init_h, init_c))
        squash = _activation(activation)
        pre = tf.tensordot(x, w[:inputs], 1) + b
        mask = _masks(seq_length, x.shape[0], x.dtype)

        def step(state: Any, given: Any) -> Any:
            c, h, i, j, f, o, squashed = _lstm_step(
                given[0] + tf.matmul(state[1], w[inputs:]), state[2], forget_bias, squash
            )
            if cell_clip > 0:
                c = tf.clip_by_value(c, -cell_clip, cell_clip)
            y = h
            if len(given) > 1:
                y = h * given[1]
                h, c = (given[1] * new + (1 - given[1]) * old for new, old in ((h, state[1]), (c, state[2])))
            return y, h, c, i, j, f, o, squashed

        start = (blank, h0, c0, blank, blank, blank, blank, blank)
        elements = [pre] if mask is None else [pre, mask]
        return tuple(_scanned(step, elements, start, _reverse(direction)))


def dynamic_rnn_grad(
    x: Any,
    w: Any,
    b: Any,
    y: Any,
    init_h: Any,
    init_c: Any,
    h: Any,
    c: Any,
    dy: Any,
    dh: Any,
    dc: Any,
    i: Any,
    j: Any,
    f: Any,
    o: Any,
    tanhct: Any,
    cell_type: str = "LSTM",
    direction: str = "UNIDIRECTIONAL",
    cell_depth: int = 1,
    use_peephole: bool = False,
    keep_prob: float = 1.0,
    cell_clip: float = -1.0,
    num_proj: int = 0,
    time_major: bool = True,
    forget_bias: float = 0.0,
    name: str | None = None,
) -> tuple[tf.Tensor, ...]:
    """Gradients of `dynamic_rnn` from those of its outputs and last state: (dw, db, dx, dh, dc)."""
    _refuse_cell({"cell_type": (cell_type, "LSTM"), "direction": (direction, "UNIDIRECTIONAL")})
    with tf.name_scope(name or "DynamicRnnGrad"):
        x, w = tf.convert_to_tensor(x), tf.convert_to_tensor(w)
        inputs, units = x.shape[-1], w.shape[-1] // 4
        before_h = tf.concat([tf.reshape(init_h, [1, -1, units]), h[:-1]], axis=0)
        before_c = tf.concat([tf.reshape(init_c, [1, -1, units]), c[:-1]], axis=0)

        def step(state: Any, given: Any) -> Any:
            dy_t, c_t, i_t, j_t, f_t, o_t, t_t = given
            dgate, dc_t = basic_lstm_cell_c_state_grad(
                c_t, dy_t + state[1], state[2], i_t, j_t, f_t, o_t, t_t
            )
            return dgate, tf.matmul(dgate, w[inputs:], transpose_b=True), dc_t

        last = (
            tf.zeros([tf.shape(x)[1], 4 * units], x.dtype),
            *(tf.reshape(v, [-1, units]) for v in (dh, dc)),
        )
        gates, dhs, dcs = _scanned(step, [dy, before_c, i, j, f, o, tanhct], last, True)
        both = tf.concat([x, before_h], axis=-1)
        dw = tf.tensordot(both, gates, [[0, 1], [0, 1]])
        dx = tf.tensordot(gates, tf.transpose(w[:inputs]), 1)
        return dw, tf.reduce_sum(gates, axis=[0, 1]), dx, dhs[0], dcs[0]


_GATES = {"zrh": (0, 1, 2), "rzh": (1, 0, 2)}


def _gru_gates(values: tf.Tensor, gate_order: str) -> tuple[tf.Tensor, ...]:
    """The update, reset and candidate gates, in any order."""
    parts = tf.split(values, 3, axis=-1)
    return tuple(parts[i] for i in _GATES[gate_order])


def dynamic_gru_v2(
    x: Any,
    weight_input: Any,
    weight_hidden: Any,
    bias_input: Any = None,
    bias_hidden: Any = None,
    seq_length: Any = None,
    init_h: Any = None,
    direction: str = "UNIDIRECTIONAL",
    cell_depth: int = 1,
    keep_prob: float = 1.0,
    cell_clip: float = -1.0,
    num_proj: int = 0,
    time_major: bool = True,
    activation: str = "tanh",
    gate_order: str = "zrh",
    reset_after: bool = True,
    is_training: bool = True,
    name: str | None = None,
) -> tuple[tf.Tensor, ...]:
    """A GRU over a sequence (steps, batch, inputs): (y, h, update, reset, new, hidden new), (steps, batch, units) each.

    The weights are (inputs, 3 * units) and (units, 3 * units); the reset gate acts after the product.
    """
    _refuse_dropout(keep_prob)
    _refuse_cell(
        {
            "cell_depth": (cell_depth, 1),
            "num_proj": (num_proj, 0),
            "time_major": (time_major, True),
            "reset_after": (reset_after, True),
        }
    )
    if gate_order not in _GATES:
        raise ValueError(f"gate_order {gate_order!r} is unknown: use one of {', '.join(_GATES)}")
    with tf.name_scope(name or "DynamicGruV2"):
        x, inner = tf.convert_to_tensor(x), tf.convert_to_tensor(weight_hidden)
        units, batch = inner.shape[0], tf.shape(x)[1]
        blank = tf.zeros([batch, units], x.dtype)
        h0 = blank if init_h is None else tf.reshape(init_h, [batch, units])
        squash = _activation(activation)
        pre = tf.tensordot(x, weight_input, 1)
        pre = pre if bias_input is None else pre + bias_input
        mask = _masks(seq_length, x.shape[0], x.dtype)

        def step(state: Any, given: Any) -> Any:
            hidden = tf.matmul(state[1], inner)
            hidden = hidden if bias_hidden is None else hidden + bias_hidden
            xz, xr, xn = _gru_gates(given[0], gate_order)
            hz, hr, hn = _gru_gates(hidden, gate_order)
            z, r = tf.sigmoid(xz + hz), tf.sigmoid(xr + hr)
            n = squash(xn + r * hn)
            h = y = (1 - z) * n + z * state[1]
            if len(given) > 1:
                y, h = h * given[1], given[1] * h + (1 - given[1]) * state[1]
            return y, h, z, r, n, hn

        start = (blank, h0, blank, blank, blank, blank)
        elements = [pre] if mask is None else [pre, mask]
        return tuple(_scanned(step, elements, start, _reverse(direction)))


def dynamic_gru_v2_grad(
    x: Any,
    weight_input: Any,
    weight_hidden: Any,
    y: Any,
    init_h: Any,
    h: Any,
    dy: Any,
    dh: Any,
    update: Any,
    reset: Any,
    new: Any,
    hidden_new: Any,
    seq_length: Any = None,
    direction: str = "UNIDIRECTIONAL",
    cell_depth: int = 1,
    keep_prob: float = 1.0,
    cell_clip: float = -1.0,
    num_proj: int = 0,
    time_major: bool = True,
    gate_order: str = "zrh",
    reset_after: bool = True,
    name: str | None = None,
) -> tuple[tf.Tensor, ...]:
    """Gradients of `dynamic_gru_v2`: (dw_input, dw_hidden, db_input, db_hidden, dx, dh)."""
    _refuse_cell({"direction": (direction, "UNIDIRECTIONAL"), "reset_after": (reset_after, True)})
    with tf.name_scope(name or "DynamicGruV2Grad"):
        x, inner = tf.convert_to_tensor(x), tf.convert_to_tensor(weight_hidden)
        units = inner.shape[0]
        before = tf.concat([tf.reshape(init_h, [1, -1, units]), h[:-1]], axis=0)
        dh = tf.convert_to_tensor(dh)
        # The gradient of h is given for every step or only for the last one.
        given_h, last = (dh, tf.zeros_like(before[0])) if dh.shape.rank == 3 else (tf.zeros_like(dy), dh)

        def joined(z: tf.Tensor, r: tf.Tensor, n: tf.Tensor) -> tf.Tensor:
            parts = (z, r, n)
            return tf.concat([parts[_GATES[gate_order].index(i)] for i in range(3)], axis=-1)

        def step(state: Any, given: Any) -> Any:
            dy_t, before_t, z, r, n, hn = given
            whole = dy_t + state[2]
            dn = whole * (1 - z) * (1 - tf.square(n))
            dz = whole * (before_t - n) * z * (1 - z)
            dr = dn * hn * r * (1 - r)
            outer, hidden = joined(dz, dr, dn), joined(dz, dr, dn * r)
            return outer, hidden, whole * z + tf.matmul(hidden, inner, transpose_b=True)

        blank = tf.zeros([tf.shape(x)[1], 3 * units], x.dtype)
        elements = [dy + given_h, before, update, reset, new, hidden_new]
        outer, hidden, dhs = _scanned(step, elements, (blank, blank, last), True)
        dw_input = tf.tensordot(x, outer, [[0, 1], [0, 1]])
        dw_hidden = tf.tensordot(before, hidden, [[0, 1], [0, 1]])
        dx = tf.tensordot(outer, tf.transpose(weight_input), 1)
        return dw_input, dw_hidden, tf.reduce_sum(outer, [0, 1]), tf.reduce_sum(hidden, [0, 1]), dx, dhs[0]
