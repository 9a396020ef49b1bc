"""The AI Core engine: what its primitives accept, element types first and then memory layouts."""

from __future__ import annotations

from ge.implementations import choose
from ge.ops.base import NodeView, Operator, lookup
from ge.ops.nn.tasks import operation_of, why_decomposed
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
    why = operator.refuse(op) or (why_decomposed(operator, op, target) if operator.expand is not None else "")
    if why or target.kind == "cpu":
        return why
    choice = choose(operation_of(operator, op), target)
    return "" if choice.name else choice.reason or "no library of the GPU has it"


def accepts_input(type_: str, index: int, view: View) -> bool:
    """Whether a primitive reads this view of an operand as fast as a contiguous one."""
    rules = lookup(type_).strided_inputs
    return view.contiguous or (index < len(rules) and rules[index](view))


def accepts_output(type_: str, view: View) -> bool:
    """Whether a primitive writes this view as fast as a contiguous one."""
    rule = lookup(type_).strided_output
    return view.contiguous or (rule is not None and rule(view))
