"""Recurrent layers in training: a layer that saves what its gradient needs, and that gradient.

Everything that does not depend on the previous step is one large product over all steps: the input's contribution to
the gates before the steps, the gradients of weights, biases and input after them. A step multiplies only by the
recurrent weights. The steps are one operator if the cell has one, else a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ge.ir.types import numpy_dtype
from ge.ir.values import desc_of
from ge.ops.flow.control import repeat

__all__ = [
    "CELLS",
    "Cell",
    "Gradients",
    "gru_step",
    "layer",
    "layer_gradients",
    "lstm_step",
    "lstm_step_back",
    "shifted",
    "steps_back",
    "steps_forward",
]

# One step forward: (builder, the input's gates, the state's gates, states) -> (states, values to save).
Forward = Callable[[Any, Any, Any, list[Any]], tuple[list[Any], list[Any]]]
# One step backward: (builder, saved values, states before, hidden state after, gradients of states) -> gradients of the
# input's gates, of the state's gates, and of the states before, excluding their paths through the gates.
Backward = Callable[[Any, list[Any], Any, Any, list[Any]], tuple[list[Any], list[Any], list[Any]]]


@dataclass(frozen=True)
class Cell:
    """A kind of layer: how many gates and states it has, how many values of each unit it keeps, and its steps."""

    gates: int
    states: int
    kept: int
    forward: Forward
    backward: Backward
    operator: str = ""  # for all steps; its gradient has the suffix Grad


@dataclass(frozen=True)
class Gradients:
    """The gradients of a layer: its input, its weights and biases, its initial states."""

    x: Any
    w: Any
    r: Any
    bias: Any
    recurrent_bias: Any
    states: list[Any]


# -- cells -------------------------------------------------------------------------------------------------


def _parts(b: Any, value: Any, count: int) -> list[Any]:
    shape = desc_of(value).shape
    return list(b.ops("Split", [value], axis=len(shape) - 1, sizes=[shape[-1] // count] * count))


def _of_sigmoid(b: Any, gradient: Any, y: Any) -> Any:
    """The gradient through a sigmoid whose value is y."""
    return b.op("Mul", gradient, b.op("Mul", y, b.op("Sub", 1.0, y)))


def _of_tanh(b: Any, gradient: Any, y: Any) -> Any:
    return b.op("Mul", gradient, b.op("Sub", 1.0, b.op("Mul", y, y)))


def lstm_step(b: Any, parts: Sequence[Any], c: Any) -> tuple[list[Any], list[Any]]:
    """The states after a step, and the gates and previous cell state, from parts in the order input, forget, cell,
    output. With a builder other than a graph's (see ge.passes.recurrence.polynomials) it creates formulas.
    """
    i, f, g, o = (b.op("Tanh" if k == 2 else "Sigmoid", v) for k, v in enumerate(parts))
    after = b.op("Add", b.op("Mul", f, c), b.op("Mul", i, g))
    return [b.op("Mul", o, b.op("Tanh", after)), after], [i, f, g, o, c]


def _lstm(b: Any, x: Any, h: Any, states: list[Any]) -> tuple[list[Any], list[Any]]:
    return lstm_step(b, _parts(b, b.op("Add", x, h), 4), states[1])


def lstm_step_back(b: Any, kept: Sequence[Any], dh: Any, dc: Any) -> tuple[list[Any], Any]:
    """The gradients of a step's gates and of the previous cell state."""
    i, f, g, o, c = kept
    bent = b.op("Tanh", b.op("Add", b.op("Mul", f, c), b.op("Mul", i, g)))
    dc = b.op("Add", dc, _of_tanh(b, b.op("Mul", dh, o), bent))
    gates = [
        _of_sigmoid(b, b.op("Mul", dc, g), i),
        _of_sigmoid(b, b.op("Mul", dc, c), f),
        _of_tanh(b, b.op("Mul", dc, i), g),
        _of_sigmoid(b, b.op("Mul", dh, bent), o),
    ]
    return gates, b.op("Mul", dc, f)


def _lstm_back(
    b: Any, kept: list[Any], _: Any, __: Any, grads: list[Any]
) -> tuple[list[Any], list[Any], list[Any]]:
    gates, dc = lstm_step_back(b, kept, *grads)
    return gates, gates, [None, dc]


def gru_step(b: Any, xs: Sequence[Any], hs: Sequence[Any], before: Any) -> tuple[list[Any], list[Any]]:
    """The state after a step, and the gates, from parts in the order reset, update, new; the state's contribution to
    the new gate is saved with them.
    """
    r, z = (b.op("Sigmoid", b.op("Add", xs[k], hs[k])) for k in range(2))
    n = b.op("Tanh", b.op("Add", xs[2], b.op("Mul", r, hs[2])))
    return [b.op("Add", n, b.op("Mul", z, b.op("Sub", before, n)))], [r, z, n, hs[2]]


def _gru(b: Any, x: Any, h: Any, states: list[Any]) -> tuple[list[Any], list[Any]]:
    return gru_step(b, _parts(b, x, 3), _parts(b, h, 3), states[0])


def _gru_back(
    b: Any, kept: list[Any], before: Any, _: Any, grads: list[Any]
) -> tuple[list[Any], list[Any], list[Any]]:
    r, z, n, part = kept
    (dh,) = grads
    dz = _of_sigmoid(b, b.op("Mul", dh, b.op("Sub", before, n)), z)
    dn = _of_tanh(b, b.op("Mul", dh, b.op("Sub", 1.0, z)), n)
    dr = _of_sigmoid(b, b.op("Mul", dn, part), r)
    return [dr, dz, dn], [dr, dz, b.op("Mul", dn, r)], [b.op("Mul", dh, z)]


def _tanh(b: Any, x: Any, h: Any, states: list[Any]) -> tuple[list[Any], list[Any]]:
    return [b.op("Tanh", b.op("Add", x, h))], []


def _tanh_back(
    b: Any, _: list[Any], __: Any, after: Any, grads: list[Any]
) -> tuple[list[Any], list[Any], list[Any]]:
    gate = [_of_tanh(b, grads[0], after)]
    return gate, gate, [None]


def _relu(b: Any, x: Any, h: Any, states: list[Any]) -> tuple[list[Any], list[Any]]:
    return [b.op("Relu", b.op("Add", x, h))], []


def _relu_back(
    b: Any, _: list[Any], __: Any, after: Any, grads: list[Any]
) -> tuple[list[Any], list[Any], list[Any]]:
    gate = [b.op("Select", b.op("Greater", after, 0.0), grads[0], 0.0)]
    return gate, gate, [None]


CELLS = {
    "lstm": Cell(4, 2, 5, _lstm, _lstm_back, "LSTMSteps"),
    "gru": Cell(3, 1, 4, _gru, _gru_back),
    "rnn_tanh": Cell(1, 1, 0, _tanh, _tanh_back),
    "rnn_relu": Cell(1, 1, 0, _relu, _relu_back),
}


# -- layers ------------------------------------------------------------------------------------------------


def _wide(b: Any, value: Any) -> Any:
    """16-bit floats as float32, in which states and gates are computed."""
    return b.op("Cast", value, to="float32") if desc_of(value).dtype in ("bfloat16", "float16") else value


def _product(b: Any, x: Any, y: Any, bias: Any = None, **turned: bool) -> Any:
    """A matrix product; of 16-bit floats in float32."""
    narrow = desc_of(x).dtype in ("bfloat16", "float16")
    return b.op("MatMul", x, y, bias, output_dtype="float32" if narrow else None, **turned)


def _flat(b: Any, value: Any) -> Any:
    """All steps of all sequences, concatenated."""
    steps, batch, width = desc_of(value).shape
    return b.op("Reshape", value, shape=[steps * batch, width])


def _joined(b: Any, values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else b.op("Concat", *values, axis=len(desc_of(values[0]).shape) - 1)


def layer(
    b: Any,
    cell: Cell,
    x: Any,
    weights: Sequence[Any],
    biases: Sequence[Any],
    states: Sequence[Any],
    reverse: bool = False,
    held: Any = None,
) -> tuple[Any, list[Any], Any]:
    """All hidden states (T, N, H), the last states (N, H), and what the gradient needs (T, N, cell.kept * H).

    x (T, N, I); weights (G * H, I) and (G * H, H); biases two vectors of G * H, or none. In reverse the steps begin
    with the last one. A cell state (not a hidden one) is unchanged in the steps that `held` (T, N, 1) marks.
    """
    dtype, (steps, batch, _) = desc_of(x).dtype, desc_of(x).shape
    w, r = weights
    bias, recurrent_bias = [_wide(b, v) for v in biases] or [None, None]
    apart = cell.gates == 3  # the state's part of a gate is scaled: its bias cannot be merged with the other
    if bias is not None and not apart:
        bias, recurrent_bias = b.op("Add", bias, recurrent_bias), None
    projected = _product(b, _flat(b, x), w, bias, transpose_b=True)
    rows = b.op("Reshape", projected, shape=[steps, batch, desc_of(projected).shape[-1]])
    if held is not None and cell.states == 2:
        rows = _held(b, rows, held)
    if cell.operator:
        y, kept, *last = b.ops(cell.operator, [rows, r, *states], reverse=reverse)
    else:
        y, kept, *last = steps_forward(b, cell, rows, r, recurrent_bias, states, reverse)
    return y, [b.cast(s, dtype) for s in last], kept


def _held(b: Any, rows: Any, held: Any) -> Any:
    """Gates (input, forget, cell, output) with a closed input gate and an open forget gate where `held` is set: their
    sigmoids are exactly 0 and 1, and so have zero slope.
    """
    desc = desc_of(rows)
    shut = np.repeat(np.array([-1e4, 1e4, 0, 0]), desc.shape[-1] // 4)
    gates = b.constant(shut.astype(numpy_dtype(desc.dtype)))
    wide = [b.op("BroadcastTo", v, shape=desc.shape) for v in (held, gates)]
    return b.op("Select", *wide, rows)


def steps_forward(
    b: Any, cell: Cell, rows: Any, r: Any, bias: Any, states: Sequence[Any], reverse: bool
) -> list[Any]:
    """All steps of a layer as a loop over rows of gates: its states, its saved values (or None), its last states."""
    dtype, steps = desc_of(r).dtype, desc_of(rows).shape[0]

    def step(inner: Any, counter: Any, before: list[Any]) -> tuple[list[Any], list[Any]]:
        row = inner.op("Gather", rows, _place(inner, steps, counter, reverse), axis=0)
        part = _product(inner, inner.cast(before[0], dtype), r, bias, transpose_b=True)
        after, kept = cell.forward(inner, row, part, before)
        stacked = [inner.cast(v, dtype) for v in ([_joined(inner, kept)] if kept else [])]
        return after, [inner.cast(after[0], dtype), *stacked]

    last, stacks = repeat(b, steps, [_wide(b, s) for s in states], step)
    y, *kept = [b.op("Reverse", s, axes=[0]) if reverse else s for s in stacks]
    return [y, kept[0] if kept else None, *last]


def _place(b: Any, steps: int, counter: Any, reverse: bool) -> Any:
    return b.op("Sub", steps - 1, counter) if reverse else counter


def shifted(b: Any, y: Any, first: Any, reverse: bool = False) -> Any:
    """The hidden states before each step."""
    steps, batch, units = desc_of(y).shape
    head = b.op("Reshape", first, shape=[1, batch, units])
    if steps == 1:
        return head
    start, end = (1, steps) if reverse else (0, steps - 1)
    rest = b.op("Slice", y, starts=[start, 0, 0], ends=[end, batch, units])
    return b.op("Concat", *((rest, head) if reverse else (head, rest)), axis=0)


def layer_gradients(
    b: Any,
    cell: Cell,
    x: Any,
    weights: Sequence[Any],
    h0: Any,
    y: Any,
    kept: Any,
    grad_y: Any,
    grad_states: Sequence[Any],
    reverse: bool = False,
) -> Gradients:
    """The gradients of `layer` from those of its results; None stands for zero."""
    dtype = desc_of(y).dtype
    w, r = weights
    before = shifted(b, y, h0, reverse)
    if cell.operator:
        own, *states = b.ops(f"{cell.operator}Grad", [kept, r, grad_y, *grad_states], reverse=reverse)
        through = own
    else:
        own, through, *states = steps_back(b, cell, kept, r, before, y, grad_y, grad_states, reverse)
    own, gates = (_flat(b, v) for v in (own, through))
    sums = [b.op("ReduceSum", _wide(b, v), axes=[0], keepdims=False) for v in (own, gates)]
    return Gradients(
        b.op("Reshape", b.op("MatMul", own, w), shape=desc_of(x).shape),
        b.op("MatMul", own, _flat(b, x), transpose_a=True),
        b.op("MatMul", gates, _flat(b, before), transpose_a=True),
        b.cast(sums[0], dtype),
        b.cast(sums[1], dtype),
        [b.cast(s, dtype) for s in states],
    )


def steps_back(
    b: Any,
    cell: Cell,
    kept: Any,
    r: Any,
    before: Any,
    y: Any,
    grad_y: Any,
    grad_states: Sequence[Any],
    reverse: bool,
) -> list[Any]:
    """All steps of a layer backward as a loop: gradients of the gates with respect to the input's and the states'
    contributions, and of the first states. Those of `before` and `y` that the cell does not read may be None.
    """
    dtype, width = desc_of(r).dtype, desc_of(r).shape[1]
    steps, batch, _ = desc_of(y if kept is None else kept).shape

    def step(inner: Any, counter: Any, grads: list[Any]) -> tuple[list[Any], list[Any]]:
        place = _place(inner, steps, counter, not reverse)

        def row(stack: Any) -> Any:
            return None if stack is None else _wide(inner, inner.op("Gather", stack, place, axis=0))

        dh = grads[0] if grad_y is None else inner.op("Add", grads[0], row(grad_y))
        values = _parts(inner, row(kept), cell.kept) if cell.kept else []
        own, through, rest = cell.backward(inner, values, row(before), row(y), [dh, *grads[1:]])
        gates = [inner.cast(_joined(inner, v), dtype) for v in ([own] if own is through else [own, through])]
        back = _product(inner, gates[-1], r)
        rest[0] = back if rest[0] is None else inner.op("Add", rest[0], back)
        return rest, gates

    zero = b.op("BroadcastTo", b.constant(0.0, dtype=desc_of(_wide(b, r)).dtype), shape=[batch, width])
    first = [zero if g is None else _wide(b, g) for g in grad_states]
    states, stacks = repeat(b, steps, first, step)
    gates = [s if reverse else b.op("Reverse", s, axes=[0]) for s in stacks]
    return [gates[0], gates[-1], *states]
