"""Selects the operator class of a node: the newest custom operator first, the built-in one last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import onnx_ir as ir

from ge.errors import GeError, UserCodeError
from ge.ops.base import Engine, NodeView, Operator, candidates, is_custom, node_type, plain_type, source_of
from ge.ops.custom import guard

__all__ = ["expanded", "refusals", "select"]


def select(
    type_: str, label: str, values: Sequence[ir.Value | None], attrs: Mapping[str, Any]
) -> tuple[type[Operator], NodeView, str]:
    """The operator that accepts a node, its view of the node, and why those asked before it did not.

    A custom operator leaves a node to the next one if the node has attributes that it does not declare, if no
    combination of element types of any of its implementations fits, or if its `unsuitable` says so.
    """
    found = candidates(type_)
    if len(found) == 1 and not is_custom(found[0]):  # the common case
        operator = found[0]
        view = NodeView(type_, label, values, operator.complete(attrs, label))
        operator.check(view)
        return operator, view, ""
    against: list[str] = []
    for operator in found[:-1]:
        view, reason = _offered(operator, label, values, attrs)
        if not reason:
            operator.check(view)
            return operator, view, _joined(against)
        against.append(f"not the custom operator of {source_of(operator)}: {reason}")
    operator = found[-1]
    view = NodeView(node_type(operator), label, values, operator.complete(attrs, label))
    operator.check(view)
    if is_custom(operator) and (why := _refused_by_all(operator, view)):
        raise GeError("E10004", why, node=label, operator=plain_type(type_))
    return operator, view, _joined(against)


def _joined(reasons: Sequence[str]) -> str:
    return "; ".join(reasons)


def _offered(
    operator: type[Operator], label: str, values: Sequence[ir.Value | None], attrs: Mapping[str, Any]
) -> tuple[Any, str]:
    unknown = sorted(set(attrs) - set(operator.prototype.attrs))
    if unknown:
        return None, f"it has no attribute {', '.join(map(repr, unknown))}"
    view = NodeView(node_type(operator), label, values, operator.complete(attrs, label))
    ports = list(operator.prototype.inputs.items())
    for index, (name, port) in enumerate(ports):
        desc = view.input(index)
        if desc is not None and desc.dtype not in port.dtypes:
            return view, f"its input '{name}' does not take {desc.dtype}"
    return view, _refused_by_all(operator, view)


def _refused_by_all(operator: type[Operator], view: NodeView) -> str:
    """Why no implementation of a custom operator accepts a node, "" if one does."""
    if operator.expand is not None or operator.engine in (Engine.CONTROL, Engine.VIEW):
        return ""
    reasons = refusals(operator, view)
    return "" if not all(reasons.values()) else _joined(list(dict.fromkeys(reasons.values())))


def refusals(operator: type[Operator], view: NodeView) -> dict[Engine, str]:
    """The reason of each implementation of a custom operator against a node; "" if it accepts it."""
    found: dict[Engine, str] = {}
    if operator.task is not None:
        found[Engine.AI_CORE] = operator.refuse(view)
    if operator.compute is not None:
        found[Engine.VECTOR] = _mismatch(operator.combinations, view) or _unsuitable(operator, view)
    if operator.aicpu:
        found[Engine.AI_CPU] = _mismatch(operator.aicpu_combinations, view)
    return found or {Engine.VECTOR: "it has no implementation"}


def _unsuitable(operator: type[Operator], view: NodeView) -> str:
    return "" if operator.unsuitable is Operator.unsuitable else guard.objection(operator, view)


def _mismatch(combinations: Sequence[Sequence[str]], view: NodeView) -> str:
    """Why no combination of element types fits a node's inputs; positions beyond a combination are unconstrained."""
    given = [d.dtype if d is not None else "" for d in view.inputs]
    if not combinations or any(
        all(g in ("", c) for g, c in zip(given, column, strict=False)) for column in combinations
    ):
        return ""
    known = "; ".join(dict.fromkeys(", ".join(column[: len(given)]) for column in combinations))
    return f"no combination of element types fits ({', '.join(g for g in given if g)}); it takes {known}"


def expanded(operator: type[Operator], builder: Any, view: NodeView, values: Sequence[Any]) -> Any:
    """The expansion of a composite operator."""
    assert operator.expand is not None
    expand = operator.expand
    if not is_custom(operator):
        return expand(builder, view, *values)
    who = UserCodeError("E10601", "", node=view.name, operator=plain_type(view.type))
    guard.rehearse(
        partial(expand, builder, view, *values),
        guard.signature(operator, view.attrs, view.inputs, values),
        who,
    )
    return guard.located(lambda: expand(builder, view, *values), who, "the expansion")
