"""The AI Core engine: what its primitives accept, element types first and then memory layouts."""

from __future__ import annotations

from ge.ops.base import NodeView, Operator
from ge.ops.tasks import decomposes
from ge.plan import View
from ge.target import Target

__all__ = ["accepts_input", "accepts_output", "refuse_aicore"]

_EIGHT_BIT = frozenset({"int8", "uint8"})


def refuse_aicore(operator: type[Operator], op: NodeView, target: Target) -> str:
    """Why the AI Core cannot run a node, "" when it can."""
    if operator.task is None:
        return "the operator has no AI Core primitive"
    first = op.input(0)
    if first is not None and first.dtype not in {"float32"} | target.narrow_floats | _EIGHT_BIT:
        return f"no AI Core primitive takes {first.dtype}"
    why = operator.refuse(op)
    if not why and operator.expand is not None and decomposes(operator, op, target):
        return "the target runs it as smaller operators"
    return why


def _matrix(view: View) -> bool:
    """A matrix (or a stack of them) with a unit stride in one of its last two dimensions and no overlap."""
    if len(view.shape) < 2:
        return view.contiguous
    rows, cols = view.shape[-2:]
    down, across = view.strides[-2:]
    if across == 1 or cols == 1:
        return rows == 1 or down >= cols
    return down == 1 and across >= rows


def _row_major(view: View) -> bool:
    return _matrix(view) and (view.strides[-1] == 1 or view.shape[-1] == 1)


def _wide_rows(view: View) -> bool:
    """Channels-last data inside wider rows: everything dense but for the distance between rows of channels."""
    if len(view.shape) < 3 or view.strides[-1] != 1:
        return False
    step = view.strides[-2]
    for extent, stride in zip(reversed(view.shape[1:-1]), reversed(view.strides[1:-1]), strict=True):
        if extent != 1 and stride != step:
            return False
        step = stride * extent
    return view.shape[0] == 1 or view.strides[0] == step


_STRIDED_INPUTS = {
    ("MatMul", 0): _matrix,
    ("MatMul", 1): _matrix,
    **{("Attention", index): _row_major for index in range(3)},
    **{("AttentionGrad", index): _row_major for index in range(5)},
}
# Convolutions and poolings write wider rows directly, or at the price of the copy that a Concat would be.
_STRIDED_OUTPUTS = {
    "MatMul": _row_major,
    "Attention": _row_major,
    "AttentionGrad": _row_major,
    "Conv": _wide_rows,
    "MaxPool": _wide_rows,
    "AvgPool": _wide_rows,
}


def accepts_input(type_: str, index: int, view: View) -> bool:
    """Whether a primitive reads this view of an operand as fast as a contiguous one."""
    rule = _STRIDED_INPUTS.get((type_, index))
    return view.contiguous or (rule is not None and rule(view))


def accepts_output(type_: str, view: View) -> bool:
    """Whether a primitive writes this view as fast as a contiguous one."""
    rule = _STRIDED_OUTPUTS.get(type_)
    return view.contiguous or (rule is not None and rule(view))
