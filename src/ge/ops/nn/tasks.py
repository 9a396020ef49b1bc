"""The operation of a node, as candidates see it before memory is planned: with dense operands."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ge.implementations import DECOMPOSED, Operation, candidates_for, choose
from ge.ir.types import TensorDesc
from ge.ops.base import NodeView, Operator
from ge.plan import Task, View
from ge.target import Target

__all__ = ["decomposes", "dense_operation", "operation_of", "why_decomposed"]


def operation_of(operator: type[Operator], op: NodeView, constant: Collection[int] = ()) -> Operation:
    """The operation of a node's view; `constant` lists the task's inputs that are constant."""
    assert operator.task is not None
    inputs = [None if d is None else View.of(0, d) for d in op.inputs]
    outputs = [View.of(0, d) for d in op.outputs or operator.describe(op)]
    return Operation.of(operator.task(op, inputs, outputs), frozenset(constant))


def dense_operation(
    kind: str, inputs: Sequence[TensorDesc | None], outputs: Sequence[TensorDesc], attrs: dict[str, Any]
) -> Operation:
    """The operation of dense operands, without absent ones."""
    views = [View.of(0, d) for d in inputs if d is not None]
    return Operation.of(Task(kind, "", views, [View.of(0, d) for d in outputs], attrs))


def decomposes(operator: type[Operator], op: NodeView, target: Target | None) -> bool:
    """True if a target runs a node better as its decomposition; False while there is no target."""
    return target is not None and bool(why_decomposed(operator, op, target))


def why_decomposed(operator: type[Operator], op: NodeView, target: Target) -> str:
    """Why a target runs a node as its decomposition, "" if it does not."""
    operation = operation_of(operator, op)
    if all(candidate.name != DECOMPOSED for candidate in candidates_for(operation.kind, target)):
        return ""
    choice = choose(operation, target)
    against = [f"not {name}: {why}" for name, why in choice.against] or ["the target has no task for it"]
    return operator.refuse(op) or ("; ".join(against) if choice.name == DECOMPOSED else "")
