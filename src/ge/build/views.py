"""The views that nodes declare (`Operator.views`): memory reinterpreted instead of copied."""

from __future__ import annotations

import onnx_ir as ir

import tbe
from ge.ops.base import NodeView, lookup
from ge.plan import View

__all__ = [
    "is_filled_in_place",
    "is_joint",
    "is_view",
    "part_of",
    "permutes",
    "view_backward",
    "view_forward",
]


def is_view(node: ir.Node) -> bool:
    """True if a node's outputs can be views of its input's memory."""
    if node.domain != "ge":
        return False
    views = lookup(node.op_type).views
    return views is not None and views.looks_ahead


def is_filled_in_place(node: ir.Node) -> bool:
    """True if a node's inputs can be views of its output's memory."""
    if node.domain != "ge":
        return False
    views = lookup(node.op_type).views
    return views is not None and views.looks_back


def is_joint(node: ir.Node) -> bool:
    """True if a node's inputs are pieces of its output."""
    return is_filled_in_place(node) and len(node.inputs) > 1


def permutes(node: ir.Node) -> bool:
    """True if a node's output has the elements of its input in another order."""
    views = lookup(node.op_type).views
    return views is not None and views.permutes


def view_forward(node: ir.Node, index: int, view: View) -> View | None:
    """A node's output `index` as a view of its first input's memory, None if that cannot be expressed."""
    views = lookup(node.op_type).views
    return None if views is None else views.forward(NodeView.of(node), index, view)


def view_backward(node: ir.Node, index: int, view: View) -> View | None:
    """A node's input `index` as a view of its output's memory, None if that cannot be expressed."""
    views = lookup(node.op_type).views
    return None if views is None else views.backward(NodeView.of(node), index, view)


def part_of(node: ir.Node, index: int, whole: tbe.Tensor) -> tbe.Tensor:
    """A node's input `index` as an expression of its output (the counterpart of `view_backward`)."""
    views = lookup(node.op_type).views
    assert views is not None, f"{node.name} has no parts"
    return views.part(NodeView.of(node), index, whole)
