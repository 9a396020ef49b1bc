"""Decomposes operators that are one task on some targets and several smaller operators on others."""

from __future__ import annotations

import onnx_ir as ir

from ge.ir import facts
from ge.ops.base import Engine, NodeView, is_custom, lookup, plain_type
from ge.ops.nn.tasks import why_decomposed
from ge.options import CompileOptions
from ge.passes.base import Pass
from ge.passes.rewrite import Rewriter, replace_node

__all__ = ["Decompose"]


class Decompose(Pass):
    """Decompose operators that the target does not run as one task.

    1. A node whose operator has both a task and a decomposition (attention, the steps of recurrent layers, the gradient
       of a layer normalisation) becomes its decomposition if every implementation rejects it or costs more. A note on
       the graph says why.
    2. So does, on a GPU, an AI CPU node that has a decomposition for the GPU: it would run on the host.
    3. Other operators stay. Parsers know no target and keep all such operators intact.
    """

    name = "decompose"

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        changed = False
        for node in list(graph):
            operator = lookup(node.op_type)
            if operator.expand is None or is_custom(operator):
                continue
            if operator.task is None:
                changed |= operator.engine is Engine.AI_CPU and _decomposed(graph, node, options)
                continue
            why = why_decomposed(operator, NodeView.of(node), options.target)
            if why:
                facts.add_note(graph, f"{plain_type(node.op_type)} runs as smaller operators; {why}")
                results = Rewriter(graph, node, options).op_like(node, node.inputs)
                replace_node(graph, node, list(results) if isinstance(results, tuple | list) else [results])
                changed = True
        return changed


def _decomposed(graph: ir.Graph, node: ir.Node, options: CompileOptions) -> bool:
    """Replace an AI CPU node by its decomposition on a GPU, if it has one for these operands."""
    operator = lookup(node.op_type)
    if options.target.kind != "cuda" or operator.expand is None:
        return False
    results = operator.expand(Rewriter(graph, node, options), NodeView.of(node), *node.inputs)
    if results is NotImplemented:
        return False
    replace_node(graph, node, list(results) if isinstance(results, tuple | list) else [results])
    return True
