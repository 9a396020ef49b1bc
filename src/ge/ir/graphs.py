"""Graphs nested in graphs."""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["subgraphs_of"]


def subgraphs_of(graph: ir.Graph) -> list[ir.Graph]:
    """The graphs nested directly in a graph's nodes (branches, loop bodies)."""
    return [
        attr.value for node in graph for attr in node.attributes.values() if attr.type == ir.AttributeType.GRAPH
    ]
