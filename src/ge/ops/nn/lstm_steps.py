"""The steps of an LSTM layer in training, forward and backward: one task each if the target has it, else loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ge.implementations import DECOMPOSED, choose
from ge.ir.types import FLOATS, TensorDesc, widened
from ge.ops.base import Attr, Input, NodeView, Operator, Output, fail, register
from ge.ops.nn.recurrent_training import CELLS, steps_back, steps_forward
from ge.ops.nn.tasks import decomposes, dense_operation
from ge.ops.traits import Precision
from ge.plan import Task, View
from ge.target import Target

_CELL = CELLS["lstm"]
_FORWARD, _BACK = "lstm_steps", "lstm_steps_grad"


def _sizes(op: NodeView) -> tuple[int, int, int]:
    """Steps, batch, units; checks that the weights (4 * H, H) match the first input (T, N, values * H)."""
    rows, weights = op.inputs[:2]
    assert rows is not None and weights is not None
    units = weights.shape[-1] if weights.rank else 0
    values = _CELL.gates if op.type == "LSTMSteps" else _CELL.kept
    if weights.shape != (_CELL.gates * units, units) or rows.rank != 3 or rows.shape[2] != values * units:
        raise fail(op, f"{rows} and the weights {weights} do not go together")
    return rows.shape[0], rows.shape[1], units


def _check(op: NodeView, expected: Sequence[tuple[int, ...]]) -> None:
    for desc, shape in zip(op.inputs[2:], expected, strict=False):
        if desc is not None and desc.shape != shape:
            raise fail(op, f"{desc} is given where {list(shape)} is expected")


def _flops(op: NodeView) -> int:
    steps, batch, units = _sizes(op)
    return 2 * steps * batch * _CELL.gates * units * units


@register
class LSTMSteps(Operator):
    """All steps of an LSTM layer: gates (T, N, 4 * H) as far as the input makes them, weights r (4 * H, H).

    Gives the states y (T, N, H), what the gradient needs (the gates after their activations and the cell state before,
    side by side) and the last states; these, like the gates, are float32 for 16-bit weights.
    """

    gates = Input("", FLOATS)
    r = Input("T", FLOATS)
    h0 = Input("T", FLOATS)
    c0 = Input("T", FLOATS)
    y = Output("T")
    kept = Output("T")
    h = Output()
    c = Output()
    reverse = Attr(bool, False)
    precision = Precision(narrows=True, product=True, keeps=(0,), sensitive=True)

    @staticmethod
    def verify(op: NodeView) -> None:
        _, batch, units = _sizes(op)
        _check(op, [(batch, units)] * 2)
        gates, r = op.inputs[:2]
        assert gates is not None and r is not None
        if gates.dtype != widened(r.dtype):
            raise fail(op, f"the gates are {gates} where {widened(r.dtype)} is expected")

    @staticmethod
    def infer(op: NodeView) -> Sequence[TensorDesc]:
        steps, batch, units = _sizes(op)
        r = op.inputs[1]
        assert r is not None
        state = TensorDesc((batch, units), widened(r.dtype))
        kept = TensorDesc((steps, batch, _CELL.kept * units), r.dtype)
        return [TensorDesc((steps, batch, units), r.dtype), kept, state, state]

    @staticmethod
    def expand(builder: Any, op: NodeView, *values: Any) -> Any:
        if not decomposes(LSTMSteps, op, builder.target):
            return NotImplemented
        gates, r, *states = values
        return steps_forward(builder, _CELL, gates, r, None, states, op.reverse)

    @staticmethod
    def task(op: NodeView, inputs: list[View], outputs: list[View]) -> Task:
        return Task(_FORWARD, op.name, inputs, outputs, {"reverse": op.reverse})

    @staticmethod
    def flops(op: NodeView) -> int:
        return _flops(op)


def are_tasks(steps: int, batch: int, units: int, dtype: str, target: Target) -> bool:
    """True if a target runs the forward and the backward steps of a layer of these sizes as one task each."""
    values = TensorDesc((steps, batch, _CELL.gates * units), widened(dtype))
    kept, y = (TensorDesc((steps, batch, n * units), dtype) for n in (_CELL.kept, 1))
    narrow, wide = TensorDesc((batch, units), dtype), TensorDesc((batch, units), widened(dtype))
    weights = TensorDesc((_CELL.gates * units, units), dtype)
    given = {"reverse": False, "has_y": True, "has_h": True, "has_c": True}
    gradients = TensorDesc(values.shape, dtype)
    wanted = (
        dense_operation(
            _FORWARD, [values, weights, narrow, narrow], [y, kept, wide, wide], {"reverse": False}
        ),
        dense_operation(_BACK, [kept, weights, y, narrow, narrow], [gradients, wide, wide], given),
    )
    return all(choose(op, target).name != DECOMPOSED for op in wanted)


def _back_attrs(op: NodeView) -> dict[str, bool]:
    given = {name: op.input(i) is not None for i, name in enumerate(("has_y", "has_h", "has_c"), 2)}
    return {"reverse": op.reverse, **given}


@register
class LSTMStepsGrad(Operator):
    """Back through all steps: from what they kept and the gradients of their results, of which each may be missing,
    those of the gates (T, N, 4 * H) and of the first states; these are float32 for 16-bit weights.
    """

    kept = Input("T", FLOATS)
    r = Input("T", FLOATS)
    dy = Input("T", FLOATS, optional=True)
    dh = Input("T", FLOATS, optional=True)
    dc = Input("T", FLOATS, optional=True)
    dgates = Output("T")
    dh0 = Output()
    dc0 = Output()
    reverse = Attr(bool, False)
    precision = Precision(narrows=True, product=True, keeps=())

    @staticmethod
    def verify(op: NodeView) -> None:
        steps, batch, units = _sizes(op)
        _check(op, [(steps, batch, units), (batch, units), (batch, units)])

    @staticmethod
    def infer(op: NodeView) -> Sequence[TensorDesc]:
        steps, batch, units = _sizes(op)
        r = op.inputs[1]
        assert r is not None
        state = TensorDesc((batch, units), widened(r.dtype))
        return [TensorDesc((steps, batch, _CELL.gates * units), r.dtype), state, state]

    @staticmethod
    def expand(builder: Any, op: NodeView, *values: Any) -> Any:
        if not decomposes(LSTMStepsGrad, op, builder.target):
            return NotImplemented
        kept, r, dy, dh, dc = list(values) + [None] * (5 - len(values))
        gates, _, *states = steps_back(builder, _CELL, kept, r, None, None, dy, [dh, dc], op.reverse)
        return [gates, *states]

    @staticmethod
    def task(op: NodeView, inputs: list[View | None], outputs: list[View]) -> Task:
        return Task(_BACK, op.name, [v for v in inputs if v is not None], outputs, _back_attrs(op))

    @staticmethod
    def flops(op: NodeView) -> int:
        return _flops(op)
