"""Constant folding: evaluates nodes whose inputs are all constant at compile time."""

from __future__ import annotations

import onnx_ir as ir

from ge.ir.values import constant_of
from ge.ops.base import lookup
from ge.options import CompileOptions
from ge.passes.base import Pass
from ge.passes.rewrite import Rewriter, remove_dead, replace_node

__all__ = ["FoldConstants"]


class FoldConstants(Pass):
    """Evaluate nodes that do not depend on the model's inputs.

    1. A node all of whose inputs are constants is replaced by constants.
    2. Operators with side effects or nondeterministic results (random numbers) are never folded.
    3. Results larger than the builder's limit are computed at run time.
    """

    name = "fold_constants"

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        changed = False
        for node in graph:
            if not node.inputs or any(v is not None and v.const_value is None for v in node.inputs):
                continue
            if not lookup(node.op_type).foldable or node.op_type == "Identity":
                continue
            rewriter = Rewriter(graph, node, options)
            rewriter.folds_all = True
            results = rewriter.op_like(node, node.inputs)
            values = list(results) if isinstance(results, tuple) else [results]
            if all(constant_of(v) is not None for v in values):
                replace_node(graph, node, values)
                changed = True
            else:
                remove_dead(graph, [v.producer() for v in values if v.producer() is not None])
        return changed
