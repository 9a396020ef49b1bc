"""Removes nodes that return their input unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import onnx_ir as ir

from ge.ir.values import desc_of
from ge.ops.base import lookup
from ge.passes.rewrite import RewritePass, Rewriter, Rule, Rules, attrs_of

__all__ = ["RemoveIdentities"]


def _identity(r: Rewriter, node: ir.Node) -> ir.Value | None:
    source, result = node.inputs[0], node.outputs[0]
    assert source is not None
    if result.is_graph_output() and (source.producer() is None or source.is_graph_output()):
        return None
    return source


def _same_shape(r: Rewriter, node: ir.Node) -> ir.Value | None:
    source = node.inputs[0]
    assert source is not None
    return source if desc_of(source).shape == desc_of(node.outputs[0]).shape else None


def _same_order(r: Rewriter, node: ir.Node) -> ir.Value | None:
    perm = attrs_of(node)["perm"]
    return node.inputs[0] if tuple(perm) == tuple(range(len(perm))) else None


def _whole(r: Rewriter, node: ir.Node) -> ir.Value | None:
    steps = attrs_of(node)["steps"]
    return _same_shape(r, node) if not steps or all(s > 0 for s in steps) else None


def _single(r: Rewriter, node: ir.Node) -> ir.Value | None:
    return node.inputs[0] if len(node.inputs) == 1 and len(node.outputs) == 1 else None


def _of_ones(r: Rewriter, node: ir.Node) -> ir.Value | None:
    source = node.inputs[0]
    assert source is not None
    given, made = desc_of(source), desc_of(node.outputs[0])
    if not made.size or given.size != made.size or given.dtype != made.dtype:
        return None
    return r.op("Reshape", source, shape=made.shape)


class RemoveIdentities(RewritePass):
    """Remove identity operations.

    1. Identity goes, except between an input (or constant, or another output) and an output of the graph.
    2. Reshape, BroadcastTo, Pad and Tile whose result has the shape of their input go.
    3. Transpose with the identity permutation goes.
    4. Slice of the whole tensor goes (unless it reverses an axis).
    5. Concat of one tensor and Split into one piece go.
    6. Cast to the type of its input goes.
    7. A reduction (its operator `nests`) over axes of one element is a Reshape.
    """

    name = "remove_identities"
    rules: ClassVar[Rules] = {
        "Identity": (_identity,),
        "Reshape": (_same_shape,),
        "BroadcastTo": (_same_shape,),
        "Tile": (_same_shape,),
        "Pad": (_same_shape,),
        "Transpose": (_same_order,),
        "Slice": (_whole,),
        "Concat": (_single,),
        "Split": (_single,),
        "Cast": (lambda r, node: node.inputs[0] if _same_type(node) else None,),
    }

    def rules_of(self, node: ir.Node) -> Sequence[Rule]:
        return self.rules.get(node.op_type) or ((_of_ones,) if lookup(node.op_type).nests else ())


def _same_type(node: ir.Node) -> bool:
    source = node.inputs[0]
    assert source is not None
    return desc_of(source).dtype == desc_of(node.outputs[0]).dtype
