"""Common subexpression elimination."""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

from ge.ops.base import lookup
from ge.options import CompileOptions
from ge.passes.base import Pass
from ge.passes.rewrite import replace_node

__all__ = ["CommonSubexpressions"]

_SMALL = 64  # bytes; constants up to this size are compared by content


class CommonSubexpressions(Pass):
    """Merge nodes that compute the same values.

    1. Nodes of one type with the same inputs and attributes become one.
    2. Equal small constants count as the same input; large ones only when they are the same tensor.
    3. Operators with nondeterministic results (random numbers) and nodes with nested graphs are not merged.
    4. A node that produces an output of the graph is kept if its duplicate produces one too.
    """

    name = "common_subexpressions"

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        seen: dict[Hashable, ir.Node] = {}
        changed = False
        for node in graph:
            key = _key(node)
            if key is None:
                continue
            twin = seen.setdefault(key, node)
            if twin is node or any(v.is_graph_output() for v in (*node.outputs, *twin.outputs)):
                continue
            replace_node(graph, node, twin.outputs)
            changed = True
        return changed


def _key(node: ir.Node) -> Hashable | None:
    if not lookup(node.op_type).foldable:
        return None
    attrs: list[Hashable] = []
    for name in sorted(node.attributes):
        attr = node.attributes[name]
        if attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            return None
        attrs.append((name, tuple(attr.value) if isinstance(attr.value, (list, tuple)) else attr.value))
    return (node.op_type, tuple(_identity(v) for v in node.inputs), tuple(attrs), len(node.outputs))


def _identity(value: ir.Value | None) -> Hashable:
    if value is None or value.const_value is None:
        return id(value)
    tensor = value.const_value
    if tensor.nbytes > _SMALL:
        return ("tensor", id(tensor))
    return (str(tensor.dtype), tuple(value.shape or ()), tensor.numpy().tobytes())
