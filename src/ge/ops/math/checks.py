"""Range checks for indices, class numbers and divisors: a value out of range fails the run.

The failure is a `TaskError` of the runtime whose `kind` is "index" or "division". Its text is the node's own, so each
framework's plugins provide theirs; a front door converts it to the framework's error (`Model.run` to a `GeError`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import tbe
from ge.errors import GeError
from ge.ir.types import INTS, TensorDesc
from ge.ir.values import constant_of, desc_of
from ge.ops.base import Attr, Input, NodeView, Operator, Output, candidates, register
from ge.ops.dataflow import Dataflow, Part, Sliced
from ge.ops.views import Same

if TYPE_CHECKING:
    from ge.ops.builder import GraphBuilder
    from ge.ops.plugins import Node

__all__ = ["checked_inputs", "divisor_of", "failing_where", "in_range", "indices_of", "nonzero"]

# Texts may contain {what}, {place} ("[1,0]"), {value}, {least} and {size}.
INDEX = "{what}{place} = {value} is not in [{least}, {size})"
DIVISION = "Integer division by zero: {what}{place} is 0"
_CLIP = "; check where it comes from, or clip it"
_REPLACE = "; divide by tf.where(divisor == 0, 1, divisor)"


class Separate(Dataflow):
    """Element by element; several limits run along the last axis."""

    def slice(self, op: NodeView, part: Part) -> Sliced | None:
        last = part.axis == op.outputs[0].rank - 1
        return None if last and len(op.limits) > 1 else Sliced({0: part})


@register
class Checked(Operator):
    """x as it is; fails unless least <= x < limits, one for all or one for each place of the last axis.

    With from_end, -limits <= x < limits. Without limits, elements must not be zero.
    """

    x = Input("T", INTS)
    y = Output("T")
    limits = Attr(list, ())
    least = Attr(int, 0)
    from_end = Attr(bool, False)
    what = Attr(str, "indices")
    message = Attr(str, INDEX)
    operator = Attr(str, "")  # the framework's operator that reads x
    aicpu = "check"
    task_kind = "check"
    overwrites = True
    dataflow = Separate()
    views = Same()
    may_fail = True
    light = True

    @classmethod
    def apply(cls, op: NodeView, tensors: Sequence[tbe.Tensor | None]) -> tuple[tbe.Tensor, ...]:
        """A kernel that reads checked numbers reads the numbers: the check is a task before it."""
        assert tensors[0] is not None
        return (tensors[0],)

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        desc = op.input(0)
        assert desc is not None
        return desc

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray] | None:
        """Invalid constants are reported by the run that reads them."""
        x = np.asarray(arrays[0])
        return [x] if bool(np.all(_allowed(x, op.limits, op.least, op.from_end))) else None

    @staticmethod
    def flops(op: NodeView) -> int:
        return 0


def in_range(
    builder: GraphBuilder,
    value: Any,
    limits: Sequence[int],
    what: str = "indices",
    least: int = 0,
    *,
    from_end: bool = False,
    operator: str = "",
    message: str = INDEX + _CLIP,
) -> Any:
    """Indices that fail the run if one is out of range; valid constants stay as they are."""
    rule = {"limits": [int(limit) for limit in limits], "least": least, "from_end": from_end}
    return _checked(builder, value, rule, what, operator, message) if limits else value


def failing_where(n: Node, value: Any, wrong: Any, message: str) -> Any:
    """A tensor of numbers; the run fails where a condition, broadcast to its elements, holds."""
    checked = in_range(n.builder, n.op("Cast", wrong, to="int32"), [1], operator=n.type, message=message)
    zeros = n.op("Cast", checked, to=desc_of(value).dtype)  # once the check has passed
    return n.op("Add", value, zeros)


def nonzero(
    builder: GraphBuilder,
    value: Any,
    dividend: Any,
    *,
    operator: str = "",
    message: str = DIVISION + _REPLACE,
) -> Any:
    """Divisors that fail the run if one is zero; floats may be zero, and so may divisors of nothing."""
    if 0 in desc_of(dividend).shape:
        return value
    return _checked(builder, value, {}, "divisor", operator, message)


def indices_of(
    n: Node, value: Any, limits: Sequence[int], what: str = "indices", *, from_end: bool = True
) -> Any:
    """Indices of an ONNX node, which may count from the end; invalid constants are rejected."""
    return in_range(n.builder, value, limits, what, from_end=from_end, operator=n.type, message=INDEX)


def divisor_of(n: Node, value: Any, dividend: Any) -> Any:
    """The divisor of an ONNX node."""
    return nonzero(n.builder, value, dividend, operator=n.type, message=DIVISION)


def checked_inputs(
    builder: GraphBuilder, type_: str, values: Sequence[Any], attrs: Mapping[str, Any]
) -> list[Any]:
    """The inputs of a node written by a user, checked by its operator's rules."""
    from ge.ops.custom.selection import select

    if all(operator.rules is Operator.rules for operator in candidates(type_)):
        return list(values)
    operator, view, _ = select(type_, "", values, attrs)
    made = list(values)
    for index, rule in operator.rules(view).items():
        if not rule and any(0 in desc_of(value).shape for value in values):
            continue  # nothing is divided
        what, text = (list(operator.prototype.inputs)[index], INDEX) if rule else ("divisor", DIVISION)
        made[index] = _checked(builder, values[index], rule, what, type_, text)
    return made


def _checked(
    builder: GraphBuilder, value: Any, rule: dict[str, Any], what: str, operator: str, message: str
) -> Any:
    if desc_of(value).dtype not in INTS:
        return value
    known = constant_of(value)
    if known is not None:
        allowed = _allowed(known, **rule)
        if bool(np.all(allowed)):
            return value
        if builder.parent is None:  # a branch or a loop body may never run
            text = _text(known, allowed, rule, message.replace("{what}", what))
            raise GeError("E10024", text, node=next(iter(builder.origin), ""), operator=operator)
    return builder.op("Checked", value, **rule, what=what, operator=operator, message=message)


def _allowed(x: np.ndarray, limits: Sequence[int] = (), least: int = 0, from_end: bool = False) -> np.ndarray:
    if not len(limits):
        return np.asarray(x != 0)
    sizes = np.asarray(limits if len(limits) > 1 else limits[0])
    return np.asarray((x >= (-sizes if from_end else least)) & (x < sizes))


def _text(x: np.ndarray, allowed: np.ndarray, rule: dict[str, Any], message: str) -> str:
    """The message for the first invalid element, as the runtime writes it."""
    place = tuple(int(i) for i in np.argwhere(~allowed)[0])
    sizes = rule.get("limits", [0])
    size = sizes[place[-1] if len(sizes) > 1 else 0]
    least = -size if rule.get("from_end") else max(rule.get("least", 0), 0)
    return message.format(
        place="[" + ",".join(map(str, place)) + "]", value=int(x[place]), least=least, size=size
    )
