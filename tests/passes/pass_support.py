"""Transforming small graphs by passes and comparing them with the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from ge.ops.builder import GraphBuilder
from ge.ops.interpret import interpret
from ge.options import CompileOptions
from ge.passes.base import Pass, to_fixpoint
from tests.support.small_graphs import assert_close, feeds_of, floats, graph_of

__all__ = ["floats", "transformed", "types"]

Build = Callable[[GraphBuilder], "ir.Value | Sequence[ir.Value]"]


def transformed(
    build: Build, *passes: Pass, options: CompileOptions | None = None, tolerance: float = 2e-5
) -> ir.Graph:
    """The graph after passes; its answers are compared with those before."""
    graph = graph_of(build)
    feeds = feeds_of(graph)
    wanted = interpret(graph, feeds)
    names = [v.name for v in graph.outputs]
    changed = graph.clone()
    to_fixpoint(changed, passes, options or CompileOptions())
    assert [v.name for v in changed.outputs] == names
    assert_close(interpret(changed, feeds), wanted, tolerance)
    return changed


def types(graph: ir.Graph) -> list[str]:
    """The operator types of a graph in order."""
    return [node.op_type for node in graph]
