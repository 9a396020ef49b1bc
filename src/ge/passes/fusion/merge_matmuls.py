"""Merges matrix products of one input with several constant weights (query, key and value of attention)."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ge.ir.values import constant_of, desc_of
from ge.ops.base import Pattern, lookup
from ge.options import CompileOptions
from ge.passes.base import Pass
from ge.passes.rewrite import Rewriter, attrs_of, replace_node

__all__ = ["MergeMatmuls"]

_FEW_ROWS = 64


class MergeMatmuls(Pass):
    """Multiply an input once by the concatenation of its weights.

    1. MatMuls of the same left operand by constant matrices, with constant or no biases and no post-ops, become one
       MatMul with their weights side by side, followed by a Split.
    2. Only if every reader of the results accepts strided views (its `strided_inputs`) or is a view itself (its
       `views`), so that the Split is free.
    3. On GPUs, products of a few rows, which the memory of the weights limits, also if generated kernels read the
       results: they read slices of the wider one.
    4. Results that are outputs of the graph stay as they are.
    """

    name = "merge_matmuls"

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        by_input: dict[ir.Value, list[ir.Node]] = {}
        for node in graph:
            if node.op_type == "MatMul" and _mergeable(node, options):
                by_input.setdefault(node.inputs[0], []).append(node)  # type: ignore[arg-type]
        changed = False
        for nodes in by_input.values():
            if len(nodes) > 1:
                _merge(graph, nodes, options)
                changed = True
        return changed


def _mergeable(node: ir.Node, options: CompileOptions) -> bool:
    attrs, weight = attrs_of(node), constant_of(node.inputs[1])
    if (
        weight is None
        or weight.ndim != 2
        or attrs["transpose_a"]
        or attrs["transpose_b"]
        or attrs["post_ops"]
    ):
        return False
    if len(node.inputs) > 2 and constant_of(node.inputs[2]) is None:
        return False
    result = node.outputs[0]
    if result.is_graph_output() or attrs["output_dtype"]:
        return False
    readers = result.consumers()
    rows = desc_of(result).size // max(desc_of(result).shape[-1], 1)
    few = options.target.kind == "cuda" and 0 < rows <= _FEW_ROWS
    return bool(readers) and all(_takes_views(n, few) for n in readers)


def _takes_views(node: ir.Node, few: bool) -> bool:
    operator = lookup(node.op_type)
    if few and operator.pattern in (Pattern.ELEMENTWISE, Pattern.BROADCAST):
        return True
    return bool(operator.strided_inputs) or (operator.views is not None and operator.views.looks_ahead)


def _merge(graph: ir.Graph, nodes: list[ir.Node], options: CompileOptions) -> None:
    """Replace products by slices of one product, placed where the first of them was."""
    r = Rewriter(graph, nodes[0], options)
    r.stands_for(*nodes)
    weights = [w for w in (constant_of(n.inputs[1]) for n in nodes) if w is not None]
    inputs: list[Any] = [nodes[0].inputs[0], np.concatenate(weights, 1)]
    if any(len(n.inputs) > 2 for n in nodes):
        inputs.append(np.concatenate([_bias(n, w) for n, w in zip(nodes, weights, strict=True)]))
    product = r.op("MatMul", *inputs)
    axis = desc_of(product).rank - 1
    pieces = r.op("Split", product, axis=axis, sizes=[w.shape[1] for w in weights])
    for node, piece in zip(nodes, pieces, strict=True):
        replace_node(graph, node, [piece])


def _bias(node: ir.Node, weight: np.ndarray) -> np.ndarray:
    array = constant_of(node.inputs[2]) if len(node.inputs) > 2 else None
    return np.zeros(weight.shape[1], weight.dtype) if array is None else array
