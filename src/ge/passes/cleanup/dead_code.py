"""Dead code elimination."""

from __future__ import annotations

import onnx_ir as ir

from ge.options import CompileOptions
from ge.passes.base import Pass

__all__ = ["DeadCode"]


class DeadCode(Pass):
    """Remove nodes and constants that no output depends on.

    1. A node none of whose outputs is read or returned is removed, then its producers likewise.
    2. A constant that no node reads is removed.
    3. Inputs and outputs of the graph stay, whether they are read or not.
    """

    name = "dead_code"

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        dead: list[ir.Node] = []
        for node in reversed(graph):
            if not any(v.uses() or v.is_graph_output() for v in node.outputs):
                for index in range(len(node.inputs)):
                    node.replace_input_with(index, None)
                dead.append(node)
        graph.remove(dead)
        unused = [n for n, v in graph.initializers.items() if not v.uses() and not v.is_graph_output()]
        for name in unused:
            del graph.initializers[name]
        return bool(dead or unused)
