"""Verifies the invariants that later stages rely on."""

from __future__ import annotations

import onnx_ir as ir

from ge.errors import GeError
from ge.ir.values import is_known, set_desc
from ge.ops.base import NodeView, lookup
from ge.ops.builder import DOMAIN
from ge.options import CompileOptions
from ge.passes.base import Pass

__all__ = ["Verify"]


class Verify(Pass):
    """Check a graph, and infer missing shapes and types.

    1. Every node belongs to domain `ge` and has a known operator type.
    2. Nodes are in topological order; a graph in another order is sorted, a cycle is rejected.
    3. A value without shape or element type (in a graph not created by GraphBuilder) gets them from its node's
       inference, which also checks the node's inputs and attributes.
    4. Inputs of the graph have static shapes; every output is produced by a node and is returned once.
    """

    name = "verify"

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        _check_ports(graph)
        if not _in_order(graph):
            try:
                graph.sort()
            except ValueError as error:
                raise GeError("E10007", f"graph {graph.name} has a circle", remedy="use a Loop") from error
        for node in graph:
            if node.domain != DOMAIN:
                cause = f"is of domain '{node.domain}' where '{DOMAIN}' is expected"
                raise GeError(
                    "E10001",
                    cause,
                    node=node.name or "",
                    operator=node.op_type,
                    remedy="parse the model first",
                )
            if not all(map(is_known, node.outputs)):
                _infer(node)
            else:
                lookup(node.op_type)
        return False


def _check_ports(graph: ir.Graph) -> None:
    for value in graph.inputs:
        if not is_known(value):
            cause = f"input {value.name} of graph {graph.name} has no static shape and type"
            raise GeError("E10008", cause, remedy="give the shape in `input_shapes`")
    if len(set(graph.outputs)) != len(graph.outputs) or any(v.producer() is None for v in graph.outputs):
        cause = f"an output of graph {graph.name} is an input, a constant or another output"
        raise GeError(
            "E10008", cause, remedy="declare outputs with GraphBuilder.output, which adds an Identity"
        )


def _in_order(graph: ir.Graph) -> bool:
    seen: set[ir.Node] = set()
    for node in graph:
        for value in node.inputs:
            source = None if value is None else value.producer()
            if source is not None and source.graph is graph and source not in seen:
                return False
        seen.add(node)
    return True


def _infer(node: ir.Node) -> None:
    operator = lookup(node.op_type)
    view = NodeView.of(node)
    operator.check(view)
    for value, desc in zip(node.outputs, operator.describe(view), strict=True):
        set_desc(value, desc)
