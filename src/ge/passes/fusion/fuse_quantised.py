"""Quantised products: runs convolutions and matrix products of dequantised values on 8-bit integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ge.ir.values import constant_of, desc_of
from ge.ops.base import lookup, takes
from ge.passes.rewrite import RewritePass, Rewriter, Rules, attrs_of, only_use, producer, weight_axes_of

__all__ = ["EIGHT_BIT", "FuseQuantised", "Grid", "grid_of"]

EIGHT_BIT = ("int8", "uint8")
_KEPT = ("strides", "dilations", "pads_begin", "pads_end", "groups", "data_format", "weight_format")


@dataclass(frozen=True)
class Grid:
    """One scale and zero point for a whole tensor."""

    scale: float
    zero: int


def grid_of(node: ir.Node) -> Grid | None:
    """The grid of a Quantize or Dequantize, None if it is computed or varies along an axis."""
    scale = constant_of(node.inputs[1])
    zero = (
        constant_of(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else np.zeros(())
    )
    if scale is None or zero is None or scale.size != 1 or zero.size != 1:
        return None
    return Grid(float(scale.reshape(-1)[0]), int(zero.reshape(-1)[0]))


@dataclass(frozen=True)
class _Weight:
    """An 8-bit weight without zero point, and its scales: one per channel or one for the tensor."""

    values: np.ndarray
    scales: np.ndarray


def _weight(value: ir.Value | None, product: ir.Node) -> _Weight | None:
    node = producer(value, "Dequantize")
    if node is None:
        return None
    values, scales = constant_of(node.inputs[0]), constant_of(node.inputs[1])
    zero = constant_of(node.inputs[2]) if len(node.inputs) > 2 else None
    if values is None or scales is None or values.dtype != np.int8 or (zero is not None and np.any(zero)):
        return None
    axes = weight_axes_of(product)
    if scales.size > 1 and (
        axes is None or axes.outputs is None or (attrs_of(node)["axis"] - axes.outputs) % values.ndim
    ):
        return None
    return _Weight(values, scales.reshape(-1).astype(np.float32))


def _bias(product: ir.Node) -> tuple[bool, np.ndarray | None]:
    """Whether the bias is constant, and the bias itself."""
    value = product.inputs[2] if len(product.inputs) > 2 else None
    if value is None:
        return True, None
    source = producer(value, "Dequantize")
    if source is not None:
        parts = [constant_of(v) for v in source.inputs[:2]]
        if parts[0] is None or parts[1] is None:
            return False, None
        return True, (parts[0].astype(np.float64) * parts[1].astype(np.float64)).astype(np.float32)
    array = constant_of(value)
    return array is not None, array


def _into_integers(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Match Quantize(product(Dequantize(x), Dequantize(w))), perhaps with a Relu."""
    value, positive = node.inputs[0], False
    clip = producer(value, "Relu")
    if clip is not None and value is not None and only_use(value):
        value, positive = clip.inputs[0], True
    product = producer(value, "Conv", "MatMul")
    grid, dtype = grid_of(node), attrs_of(node)["dtype"]
    if product is None or value is None or not only_use(value) or grid is None or dtype not in EIGHT_BIT:
        return None
    if positive and not (dtype == "uint8" and grid.zero == 0):
        return None  # rounding to the grid would not clip negative values
    r.stands_for(product)
    return _integer_product(r, product, dtype, grid)


def _to_floats(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Match product(Dequantize(x), Dequantize(w)) whose result is not quantised."""
    readers = node.outputs[0].consumers()
    if len(readers) == 1 and readers[0].op_type in ("Quantize", "Relu"):
        return None
    return _integer_product(r, node, "float32", Grid(1.0, 0))


def _integer_product(r: Rewriter, product: ir.Node, dtype: str, grid: Grid) -> ir.Value | None:
    attrs = attrs_of(product)
    source = producer(product.inputs[0], "Dequantize")
    if (
        source is None
        or source.inputs[0] is None
        or attrs["post_ops"]
        or desc_of(product.outputs[0]).dtype != "float32"
    ):
        return None
    given, weight = grid_of(source), _weight(product.inputs[1], product)
    known, bias = _bias(product)
    if given is None or weight is None or not known or desc_of(source.inputs[0]).dtype not in EIGHT_BIT:
        return None
    if product.op_type == "MatMul" and (attrs["transpose_a"] or weight.values.ndim != 2):
        return None
    r.stands_for(source)
    values = weight.values.T if product.op_type == "MatMul" and attrs["transpose_b"] else weight.values
    kept = {k: attrs[k] for k in _KEPT if product.op_type == "Conv"}
    return r.op(
        "QConv" if product.op_type == "Conv" else "QMatMul",
        source.inputs[0],
        np.ascontiguousarray(values),
        bias,
        weight.scales,
        src_scale=given.scale,
        src_zero_point=given.zero,
        dst_scale=grid.scale,
        dst_zero_point=grid.zero,
        output_dtype=dtype,
        **kept,
    )


def _on_integers(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Rewrite Quantize(move(Dequantize(x))) on one grid to move, or select among, the integers directly."""
    move = node.inputs[0].producer() if node.inputs[0] is not None else None
    if move is None or len(move.outputs) != 1 or not only_use(move.outputs[0]):
        return None
    operator = lookup(move.op_type)
    if not (operator.moves or operator.selects):
        return None
    sources = [producer(v, "Dequantize") for v in move.inputs]
    grid, dtype = grid_of(node), attrs_of(node)["dtype"]
    integers = [
        s.inputs[0] for s in sources if s is not None and s.inputs[0] is not None and grid_of(s) == grid
    ]
    if grid is None or len(integers) != len(move.inputs) or any(desc_of(v).dtype != dtype for v in integers):
        return None
    if not takes(move, dtype):
        return None
    r.stands_for(move)
    return r.op_like(move, integers)


def _there_and_back(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Quantize(Dequantize(x)) on one grid is x."""
    source = producer(node.inputs[0], "Dequantize")
    if (
        source is None
        or source.inputs[0] is None
        or grid_of(source) is None
        or grid_of(source) != grid_of(node)
    ):
        return None
    return source.inputs[0] if desc_of(source.inputs[0]).dtype == attrs_of(node)["dtype"] else None


class FuseQuantised(RewritePass):
    """Run quantised models on integers.

    1. A Conv or MatMul of a dequantised 8-bit value and a dequantised constant int8 weight (without zero point) is a
       QConv or QMatMul; its result is quantised there if its only reader is a Quantize, else float32.
    2. A Relu between the two goes when the grid has no negative values (uint8 with zero point 0).
    3. Movements and MaxPool between a Dequantize and a Quantize on one grid work on the integers.
    4. Quantize of Dequantize on one grid goes.
    5. Scales that are computed, or that vary along another axis than the weight's channels, leave the float product.
    """

    name = "fuse_quantised"
    rules: ClassVar[Rules] = {
        "Quantize": (_there_and_back, _into_integers, _on_integers),
        "Conv": (_to_floats,),
        "MatMul": (_to_floats,),
    }
