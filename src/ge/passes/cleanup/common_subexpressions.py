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
        firsts: dict[Hashable, ir.Node] = {}  # by type and inputs, which few nodes share
        twins: dict[Hashable, dict[Hashable, ir.Node]] = {}  # of those shared, also by attributes
        changed = False
        for node in graph:
            if not lookup(node.op_type).foldable:
                continue
            key = (node.op_type, *map(_identity, node.inputs))
            first = firsts.setdefault(key, node)
            if first is node or (attrs := _attributes(node)) is None:
                continue
            if key not in twins:
                twins[key] = {_attributes(first): first}
            twin = twins[key].setdefault(attrs, node)
            if twin is node or any(v.is_graph_output() for v in (*node.outputs, *twin.outputs)):
                continue
            replace_node(graph, node, twin.outputs)
            changed = True
        return changed


def _attributes(node: ir.Node) -> Hashable | None:
    """A node's attributes and number of outputs, None if it has nested graphs."""
    attrs: list[Hashable] = [len(node.outputs)]
    given = node.attributes.data
    for name in sorted(given):
        attr = given[name]
        if attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            return None
        attrs.append((name, tuple(attr.value) if isinstance(attr.value, (list, tuple)) else attr.value))
    return tuple(attrs)


def _identity(value: ir.Value | None) -> Hashable:
    if value is None or value.const_value is None:
        return id(value)
    tensor = value.const_value
    if tensor.nbytes > _SMALL:
        return ("tensor", id(tensor))
    return (str(tensor.dtype), tuple(value.shape or ()), tensor.numpy().tobytes())
