"""Transpose sinking: transposes move down through operators that work in any axis order, until they cancel."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ge.ir.values import constant_of, desc_of
from ge.ops.base import NodeView, dataflow_of
from ge.ops.dataflow import Order, check_promise
from ge.passes.rewrite import Replacement, RewritePass, Rewriter, Rule, producer

__all__ = ["SinkTransposes"]

_SMALL = 4  # an operand this many times smaller than the result may be transposed by the inverse instead


def _transposed(value: ir.Value | None) -> tuple[ir.Value, Order] | None:
    node = producer(value, "Transpose")
    if node is None or node.inputs[0] is None:
        return None
    return node.inputs[0], Order(tuple(node.attributes["perm"].as_ints()))


def _order_of(node: ir.Node) -> Order | None:
    """The common permutation of a node's transposed operands, None if they differ or there is none."""
    orders = {found[1] for found in map(_transposed, node.inputs) if found is not None}
    return orders.pop() if len(orders) == 1 else None


def _operand(r: Rewriter, value: ir.Value | None, order: Order, size: int) -> ir.Value | None:
    """An operand in the source's order: the source of its transpose, or a small operand transposed by the inverse."""
    if value is None:
        return None
    found = _transposed(value)
    if found is not None and found[1] == order:
        return found[0]
    desc, rank = desc_of(value), len(order.perm)
    if desc.size == 1 and desc.rank == 0:
        return value
    if constant_of(value) is None and desc.size * _SMALL > size:
        return None
    if desc.rank < rank:
        value = r.op("Reshape", value, shape=[1] * (rank - desc.rank) + list(desc.shape))
    return r.op("Transpose", value, perm=order.inverse)


def _operands(
    r: Rewriter, node: ir.Node, order: Order, values: Sequence[ir.Value | None]
) -> list[ir.Value | None] | None:
    if not _removes_more(values, order):
        return None
    size = max(desc_of(v).size for v in node.outputs)
    moved = [_operand(r, v, order, size) for v in values]
    if any(m is None and v is not None for m, v in zip(moved, values, strict=True)):
        return None
    return moved


def _removes_more(values: Sequence[ir.Value | None], order: Order) -> bool:
    """True if the removed transposes are larger than the added ones, so that no rewrite undoes another.

    Constants do not count: they are transposed when the graph is compiled.
    """
    removed = added = 0
    for value in values:
        found = _transposed(value)
        if value is None or constant_of(value if found is None else found[0]) is not None:
            continue
        if found is not None and found[1] == order:
            removed += desc_of(value).size
        elif desc_of(value).rank:
            added += desc_of(value).size
    return removed > added


def _sink(r: Rewriter, node: ir.Node) -> Replacement:
    """Apply the node to the sources of its transposed operands, and transpose its results instead."""
    flow = dataflow_of(node)
    first = _transposed(node.inputs[0]) if node.inputs else None
    order = first[1] if first is not None else _order_of(node)
    if flow is None or order is None:
        return None
    view = NodeView.of(node)
    moved = flow.reorder(view, order)
    if moved is None:
        return None
    if moved.first_only:
        inputs: list[ir.Value | None] | None = [first[0], *node.inputs[1:]] if first is not None else None
    else:
        inputs = _operands(r, node, order, node.inputs) if _order_of(node) == order else None
    if inputs is None:
        return None
    made = r.op_like(node, inputs, **moved.attrs)
    results = made if isinstance(made, tuple) else (made,)
    for value, old in zip(results, node.outputs, strict=True):
        shape = desc_of(value).shape
        turned = [shape[p] for p in moved.perm] if len(shape) == len(moved.perm) else shape
        check_promise(view, desc_of(old).shape, turned)
    return [r.op("Transpose", v, perm=moved.perm) for v in results]


class SinkTransposes(RewritePass):
    """Move transposes towards the outputs, so that those of neighbouring operators meet and cancel.

    1. An elementwise operator whose operands all have the same transpose (or are constant, or much smaller) works on
       the untransposed operands; its result is transposed instead. The operands that it then transposes by the inverse
       are smaller than those whose transposes go.
    2. An operator whose dataflow describes it in another axis order does too, with its attributes renumbered; the
       result of a reduction needs a smaller transpose or none.
    3. Channels-first convolutions and poolings on transposed channels-last data work on that data (unless they already
       have post-ops); so do DepthToSpace and SpaceToDepth.
    4. A Reshape of a transposed value moves before the Transpose if the axes it merges are adjacent in the source.
    5. An operator with a full-size operand in another order does not change.
    """

    name = "sink_transposes"

    def rules_of(self, node: ir.Node) -> Sequence[Rule]:
        return (_sink,) if dataflow_of(node) is not None else ()
