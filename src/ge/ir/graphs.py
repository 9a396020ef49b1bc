"""Graphs nested in graphs."""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["subgraphs_of"]


def subgraphs_of(graph: ir.Graph) -> list[ir.Graph]:
    """The graphs nested directly in a graph's nodes (branches, loop bodies)."""
    found: list[ir.Graph] = []
    for node in graph:
        found += [a.value for a in node.attributes.data.values() if a.type == ir.AttributeType.GRAPH]
    return found
