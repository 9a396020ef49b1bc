"""Stores the weights of generated products in the order in which their kernels read them."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from ge.ir.values import desc_of
from ge.options import CompileOptions
from ge.passes.rewrite import RewritePass, Rewriter, Rules, attrs_of

__all__ = ["RowFactors"]


def _matmul(r: Rewriter, node: ir.Node) -> ir.Value | None:
    b = node.inputs[1]
    if b is None or not attrs_of(node)["transpose_b"]:
        return None
    rank = desc_of(b).rank
    turned = r.op("Transpose", b, perm=[*range(rank - 2), rank - 1, rank - 2])
    return r.op_like(node, [node.inputs[0], turned, *node.inputs[2:]], transpose_b=False)


def _convolution(r: Rewriter, node: ir.Node) -> ir.Value | None:
    weight = node.inputs[1]
    attrs = attrs_of(node)
    if weight is None or attrs["weight_format"] == "IO" or attrs["data_format"] == "channels_first":
        return None
    rank = desc_of(weight).rank
    turned = r.op("Transpose", weight, perm=[*range(2, rank), 1, 0])
    return r.op_like(node, [node.inputs[0], turned, *node.inputs[2:]], weight_format="IO")


class RowFactors(RewritePass):
    """Transpose the weights of generated products so that their last axis is that of the result.

    1. On a target without oneDNN a product is a generated kernel that vectorises along the last axis of the result: a
       MatMul reads its second operand, a channels-last convolution its weights (as kernel, I, O) in that order.
       Transposes of constants are folded; others are separate kernels.
    2. On other targets the library packs weights itself, and nothing changes.
    """

    name = "row_factors"
    rules: ClassVar[Rules] = {"MatMul": (_matmul,), "Conv": (_convolution,), "QConv": (_convolution,)}

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        return not options.target.library and super().run(graph, options)
