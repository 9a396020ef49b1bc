"""Decides for each node whether what trades accuracy for speed (Winograd, Strassen, rounded operands) is allowed."""

from __future__ import annotations

import onnx_ir as ir

from ge.ir import facts
from ge.ir.graphs import subgraphs_of
from ge.ops.base import lookup
from ge.options import CompileOptions, Implementation

__all__ = ["implementation_of", "precision_attrs", "unknown_names"]


def precision_attrs(node: ir.Node, options: CompileOptions) -> dict[str, bool]:
    """The attributes that keep a product from algorithms with larger errors, or let it round its left operand."""
    operator = lookup(node.op_type)
    if operator.algorithm_names and implementation_of(node, options) is Implementation.PRECISE:
        return {"precise": True}
    return {"rounds_x": True} if operator.may_round and options.quantise_activations else {}


def implementation_of(node: ir.Node, options: CompileOptions) -> Implementation:
    """The implementation chosen for a node: by name, by origin or by operator, else the model's."""
    for key in _keys(node) if options.op_implementation else ():
        if key in options.op_implementation:
            return options.op_implementation[key]
    return options.implementation


def unknown_names(graph: ir.Graph, options: CompileOptions) -> list[str]:
    """Names that an implementation was chosen for but that no product of the graph has."""
    return sorted(options.op_implementation.keys() - _names(graph)) if options.op_implementation else []


def _keys(node: ir.Node) -> tuple[str, ...]:
    return (node.name or "", *facts.origin(node), node.op_type, *lookup(node.op_type).algorithm_names)


def _names(graph: ir.Graph) -> set[str]:
    inner = [_names(subgraph) for subgraph in subgraphs_of(graph)]
    return {key for node in graph if lookup(node.op_type).algorithm_names for key in _keys(node)}.union(
        *inner
    )
