"""Fuses residual additions of quantised networks into the integer convolution, before it rounds."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ge.engines import placement_of
from ge.ir.values import constant_of, desc_of
from ge.ops.base import Engine
from ge.passes.fusion.fuse_quantised import EIGHT_BIT, Grid, grid_of
from ge.passes.rewrite import RewritePass, Rewriter, Rules, attrs_of, only_use, producer
from ge.target import Target

__all__ = ["FuseQuantisedSums"]


def _sum(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Match Quantize(Add(Dequantize(QConv(…)), Dequantize(r))), perhaps with a Relu."""
    value, grid, dtype = node.inputs[0], grid_of(node), attrs_of(node)["dtype"]
    clip = producer(value, "Relu")
    if clip is not None and value is not None and only_use(value):
        if not (dtype == "uint8" and grid is not None and grid.zero == 0):
            return None
        value = clip.inputs[0]
    total = producer(value, "Add")
    if total is None or value is None or not only_use(value) or grid is None or dtype not in EIGHT_BIT:
        return None
    for mine, other in ((0, 1), (1, 0)):
        product = _open_product(total.inputs[mine], r.options.target)
        residual = producer(total.inputs[other], "Dequantize")
        if product is None or residual is None or residual.inputs[0] is None:
            continue
        step = grid_of(residual)
        same_shape = desc_of(residual.inputs[0]).shape == desc_of(product.outputs[0]).shape
        if step is None or not same_shape or desc_of(residual.inputs[0]).dtype not in EIGHT_BIT:
            continue
        for part in (total, product):
            r.stands_for(part)
        return _with_residual(r, product, residual.inputs[0], step, grid, dtype)
    return None


def _open_product(value: ir.Value | None, target: Target) -> ir.Node | None:
    """The QConv that produces a dequantised value with no other reader."""
    source = producer(value, "Dequantize")
    if source is None or value is None or not only_use(value) or grid_of(source) is None:
        return None
    product = producer(source.inputs[0], "QConv")
    if product is None or not only_use(product.outputs[0]) or attrs_of(product)["post_ops"]:
        return None
    given = Grid(attrs_of(product)["dst_scale"], attrs_of(product)["dst_zero_point"])
    on_aicore = placement_of(product, target)[0] is Engine.AI_CORE
    return product if on_aicore and grid_of(source) == given and _operands(product) else None


def _operands(product: ir.Node) -> tuple[np.ndarray, np.ndarray] | None:
    """Bias and weight scales as vectors of equal length."""
    attrs = attrs_of(product)
    outputs = desc_of(product.inputs[1]).shape[0 if attrs["weight_format"] == "OI" else -1]  # type: ignore[arg-type]
    values = [product.inputs[i] if len(product.inputs) > i else None for i in (2, 3)]
    arrays = [None if v is None else constant_of(v) for v in values]
    if any(v is not None and a is None for v, a in zip(values, arrays, strict=True)):
        return None
    bias = np.zeros(outputs, np.float64) if arrays[0] is None else arrays[0].astype(np.float64)
    scales = np.ones(1, np.float64) if arrays[1] is None else arrays[1].astype(np.float64)
    return bias, scales


def _with_residual(
    r: Rewriter, product: ir.Node, residual: ir.Value, step: Grid, grid: Grid, dtype: str
) -> ir.Value:
    """In units of the residual's step the residual's integers are added unscaled."""
    operands = _operands(product)
    assert operands is not None
    bias, scales = operands
    attrs = attrs_of(product)
    own = np.iinfo(attrs["output_dtype"])
    low, high = (
        float(np.float32((n - attrs["dst_zero_point"]) * attrs["dst_scale"] / step.scale - step.zero))
        for n in (own.min, own.max)
    )
    return r.op_like(
        product,
        [
            *product.inputs[:2],
            r.constant((bias / step.scale - step.zero).astype(np.float32)),
            r.constant((scales / step.scale).astype(np.float32)),
            residual,
        ],
        post_ops=[f"clip,{low!r},{high!r}", "add"],
        dst_scale=grid.scale / step.scale,
        dst_zero_point=grid.zero,
        output_dtype=dtype,
    )


class FuseQuantisedSums(RewritePass):
    """Fuse residual additions into integer convolutions.

    1. The sum of a dequantised QConv with no other reader and another dequantised 8-bit value of its shape, quantised
       again, is one QConv with a residual. A Relu in between goes when the grid has no negative values.
    2. The convolution's own result is clipped to its own grid as before, but no longer rounded to it: the sum is more
       exact than the graph as written.
    3. Sums with grids that are computed or vary along an axis stay.
    """

    name = "fuse_quantised_sums"
    rules: ClassVar[Rules] = {"Quantize": (_sum,)}
