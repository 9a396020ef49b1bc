"""The AI Core engine: the element types and memory layouts that its primitives accept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from ge.implementations import DECOMPOSED, GENERATED, Operation, choose
from ge.implementations.base import BINARY_POST_OPS
from ge.ir.types import TensorDesc, numpy_dtype
from ge.ops.base import NodeView, Operator, lookup
from ge.ops.nn.tasks import operation_of, why_decomposed
from ge.plan import View
from ge.target import Target

__all__ = ["accepts_input", "accepts_output", "has_implementation", "refuse_aicore"]

_EIGHT_BIT = frozenset({"int8", "uint8"})
_GPU_ALIGNMENT = 16  # bytes of a vector load of one thread


def refuse_aicore(operator: type[Operator], op: NodeView, target: Target) -> str:
    """The reason why the AI Core cannot run a node, "" if it can."""
    if operator.task is None:
        return "the operator has no AI Core primitive"
    first = op.input(0)
    if first is not None and first.dtype not in {"float32"} | target.narrow_floats | _EIGHT_BIT:
        return f"no AI Core primitive takes {first.dtype}"
    why = operator.refuse(op) or (why_decomposed(operator, op, target) if operator.expand is not None else "")
    if why or (target.kind == "cpu" and target.library):
        return why
    choice = choose(operation_of(operator, op), target)
    if choice.name == GENERATED:
        return "the target has no oneDNN"
    return "" if choice.name else choice.reason or "no library of the GPU has it"


def has_implementation(
    target: Target,
    type_: str,
    values: Sequence[Any],
    attrs: Mapping[str, Any],
    outputs: Sequence[TensorDesc] = (),
) -> bool:
    """True if a target has an implementation of an operator for these operands."""
    operator = lookup(type_)
    view = NodeView(type_, type_, values, operator.complete(dict(attrs)), outputs)
    return choose(operation_of(operator, view), target).name not in ("", GENERATED)


def accepts_input(node: ir.Node, index: int, view: View, target: Target) -> bool:
    """True if a primitive reads this view of an operand as fast as a contiguous one."""
    rules = lookup(node.op_type).strided_inputs
    fits = view.contiguous or (index < len(rules) and rules[index](view))
    return fits and (target.kind != "cuda" or _runs_on_gpu(node, target, {index: view}, {}))


def accepts_output(node: ir.Node, view: View, target: Target, index: int = 0) -> bool:
    """True if a primitive writes this view as fast as a contiguous one."""
    rule = lookup(node.op_type).strided_output
    fits = view.contiguous or (rule is not None and rule(view))
    if fits and target.kind == "cpu" and not _in_order(view):
        # oneDNN finds the operands of post-ops by the strides of the result, beyond their memory.
        fits = not any(p in BINARY_POST_OPS for p in NodeView.of(node).attrs.get("post_ops") or ())
    return fits and (target.kind != "cuda" or _runs_on_gpu(node, target, {}, {index: view}))


def _in_order(view: View) -> bool:
    """True if the axes are in the order of their strides, as in a part of a larger tensor."""
    strides = [stride for stride, size in zip(view.strides, view.shape, strict=True) if size > 1]
    return strides == sorted(strides, reverse=True)


def _runs_on_gpu(
    node: ir.Node, target: Target, inputs: Mapping[int, View], outputs: Mapping[int, View]
) -> bool:
    """True if a library accepts these views and their addresses are aligned for vector loads."""
    views = (*inputs.values(), *outputs.values())
    if any(v.offset * numpy_dtype(v.dtype).itemsize % _GPU_ALIGNMENT for v in views):
        return False
    if all(v.contiguous for v in views):
        return True
    op, operator = NodeView.of(node), lookup(node.op_type)
    assert operator.task is not None
    dense = [None if d is None else View.of(0, d) for d in op.inputs]
    given = [inputs.get(i, view) for i, view in enumerate(dense)]
    results = [outputs.get(i, View.of(0, d)) for i, d in enumerate(op.outputs)]
    choice = choose(Operation.of(operator.task(op, given, results)), target)
    return choice.name not in ("", DECOMPOSED)
