"""Separates the scales of integer products from the products, which GPU libraries compute without them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ge.implementations import choose
from ge.ir.types import TensorDesc, numpy_dtype
from ge.ir.values import constant_of, desc_of
from ge.ops.base import NodeView
from ge.ops.nn.tasks import dense_operation
from ge.options import CompileOptions
from ge.passes.base import Pass
from ge.passes.rewrite import Rewriter, replace_node
from ge.target import Target

__all__ = ["SplitScales"]


class SplitScales(Pass):
    """On GPUs, take zero points, scales, biases and rounding out of integer products.

    1. A QMatMul by a constant matrix becomes the int32 product of the rows of its first operand, followed by operators
       for the rest in the same order, which fuse with what follows.
    2. An unsigned operand is shifted to int8 first, and its zero point with it; a zero point is subtracted times the
       sums of the weights.
    3. Only if the target has an implementation of that product; others stay as they are.
    """

    name = "split_scales"

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        if options.target.kind != "cuda":
            return False
        nodes = [n for n in graph if n.op_type == "QMatMul" and _separable(n, options.target)]
        for node in nodes:
            replace_node(graph, node, [_separated(Rewriter(graph, node, options), node)])
        return bool(nodes)


def _separable(node: ir.Node, target: Target) -> bool:
    op = NodeView.of(node)
    weight = constant_of(node.inputs[1])
    if op.post_ops or op.input(4) is not None or weight is None or weight.ndim != 2:
        return False
    x, y = op.inputs[0], op.outputs[0]
    assert x is not None
    is_plain = x.dtype == "int8" and not op.src_zero_point and all(d is None for d in op.inputs[2:])
    if is_plain and op.output_dtype == "int32" and x.rank == 2:
        return False
    rows, columns = y.size // max(y.shape[-1], 1), y.shape[-1]
    operands = TensorDesc((rows, x.shape[-1]), "int8"), TensorDesc(weight.shape, "int8")
    product = dense_operation("matmul", operands, [TensorDesc((rows, columns), "int32")], {})
    return bool(choose(product, target).name)


def _separated(r: Rewriter, node: ir.Node) -> Any:
    op = NodeView.of(node)
    x, w, bias, scales = (*node.inputs, None, None)[:4]
    weight, zero, depth = constant_of(w), op.src_zero_point, desc_of(x).shape[-1]  # type: ignore[arg-type]
    assert weight is not None
    if desc_of(x).dtype == "uint8":  # type: ignore[arg-type]
        x = r.op("Cast", r.op("Sub", r.op("Cast", x, to="int16"), np.int16(128)), to="int8")
        zero -= 128
    shape = desc_of(node.outputs[0]).shape
    y = r.op("QMatMul", r.op("Reshape", x, shape=[desc_of(x).size // max(depth, 1), depth]), w)  # type: ignore[arg-type]
    if zero:
        y = r.op("Sub", y, weight.sum(0, dtype=np.int32) * np.int32(zero))
    if op.output_dtype == "int32":
        y = y if bias is None else r.op("Add", y, r.op("Cast", bias, to="int32"))
        return r.op("Reshape", y, shape=list(shape))
    y = r.op("Mul", r.op("Cast", y, to="float32"), np.float32(op.src_scale))
    if scales is not None:
        y = r.op("Mul", y, r.op("Reshape", scales, shape=[desc_of(scales).size]))
    if bias is not None:
        y = r.op("Add", y, r.op("Reshape", r.op("Cast", bias, to="float32"), shape=[desc_of(bias).size]))
    if op.output_dtype != "float32":
        grid = np.float32(op.dst_scale), np.array(op.dst_zero_point, numpy_dtype(op.output_dtype))
        y = r.op("Quantize", y, *grid, dtype=op.output_dtype)
    return r.op("Reshape", y, shape=list(shape))
