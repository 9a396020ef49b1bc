"""Operators that are one task on some targets and smaller operators on the others."""

from __future__ import annotations

import onnx_ir as ir

from ge.ir import facts
from ge.ops.base import NodeView, is_custom, lookup, plain_type
from ge.ops.nn.tasks import why_decomposed
from ge.options import CompileOptions
from ge.passes.base import Pass
from ge.passes.rewrite import Rewriter, replace_node

__all__ = ["Decompose"]


class Decompose(Pass):
    """Take apart what the target does not run as one task.

    1. A node whose operator has both a task and a decomposition (attention, the steps of recurrent layers, the gradient
       of a layer normalisation) becomes its decomposition where every implementation refuses it or costs more. A note
       of the graph says why.
    2. Others are left alone. Parsers know no target: they leave all such operators whole.
    """

    name = "decompose"

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        changed = False
        for node in list(graph):
            operator = lookup(node.op_type)
            if operator.expand is None or operator.task is None or is_custom(operator):
                continue
            why = why_decomposed(operator, NodeView.of(node), options.target)
            if why:
                facts.add_note(graph, f"{plain_type(node.op_type)} runs as smaller operators; {why}")
                results = Rewriter(graph, node, options).op_like(node, node.inputs)
                replace_node(graph, node, list(results) if isinstance(results, tuple | list) else [results])
                changed = True
        return changed
