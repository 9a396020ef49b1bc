"""Folds constant scales and shifts around matrix products and convolutions into their weights and biases."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ge.ir.types import numpy_dtype
from ge.ir.values import constant_of, desc_of
from ge.ops.base import lookup
from ge.ops.nn.spatial import weight_perm
from ge.passes.rewrite import (
    RewritePass,
    Rewriter,
    Rules,
    attrs_of,
    only_use,
    producer,
    product_of,
    weight_axes_of,
)

__all__ = ["FoldWeights"]


def _affine_norm(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Normalisation by constant statistics is a multiplication and an addition."""
    parameters = [constant_of(v) for v in node.inputs[1:]]
    if any(p is None for p in parameters):
        return None
    scale, bias, mean, var = (p.astype(np.float64) for p in parameters if p is not None)
    attrs, x = attrs_of(node), node.inputs[0]
    assert x is not None
    desc = desc_of(x)
    factor = scale / np.sqrt(var + attrs["epsilon"])
    shape = [1] * desc.rank
    shape[attrs["channel_axis"] % desc.rank] = -1
    like = constant_of(node.inputs[1])
    assert like is not None
    dtype = like.dtype if desc.dtype != "float64" else np.dtype("float64")
    terms = [v.reshape(shape).astype(dtype) for v in (factor, bias - mean * factor)]
    if desc.dtype not in ("float32", "float64"):
        return None
    return r.op("Add", r.op("Mul", x, terms[0].astype(desc.dtype)), terms[1].astype(desc.dtype))


# -- after the product -----------------------------------------------------------------------------------------


def _per_channel(array: np.ndarray, rank: int, axis: int, channels: int) -> np.ndarray | None:
    """A constant as a vector of one value per channel, None if it varies along another axis."""
    shape = (1,) * (rank - array.ndim) + array.shape
    if len(shape) > rank or any(n != 1 for i, n in enumerate(shape) if i != axis):
        return None
    return np.broadcast_to(array.reshape(-1), (channels,))


def _foldable(node: ir.Node, dtypes: Collection[str]) -> tuple[ir.Node, np.ndarray] | None:
    """The producing product (of one of the types) of a node's first operand, and the node's constant per channel."""
    cube = product_of(node.inputs[0])
    array = constant_of(node.inputs[1])
    if cube is None or array is None or not only_use(cube.outputs[0]) or attrs_of(cube)["post_ops"]:
        return None
    result, axes = desc_of(cube.outputs[0]), weight_axes_of(cube)
    if desc_of(node.outputs[0]) != result or result.dtype not in dtypes or axes is None:
        return None
    axis = axes.data % result.rank
    values = _per_channel(array, result.rank, axis, result.shape[axis])
    return None if values is None else (cube, values)


def _bias(cube: ir.Node) -> np.ndarray | None:
    """The constant bias of a product, zeros if it has none, None if it is computed."""
    value = cube.inputs[2] if len(cube.inputs) > 2 else None
    if value is not None:
        return constant_of(value)
    result, axes = desc_of(cube.outputs[0]), weight_axes_of(cube)
    return None if axes is None else np.zeros(result.shape[axes.data], numpy_dtype(result.dtype))


def _moderate(factor: np.ndarray) -> bool:
    """Whether a product scaled earlier or later overflows for no usual number: infinities and NaN stay the same."""
    with np.errstate(invalid="ignore"):
        return bool(np.all(np.abs(factor) <= 2.0**32))


def _scale_after(r: Rewriter, node: ir.Node) -> ir.Value | None:
    found = _foldable(node, ("float32",))
    if found is None or not _moderate(found[1]):
        return None
    cube, factor = found
    weight, bias, axes = constant_of(cube.inputs[1]), _bias(cube), weight_axes_of(cube)
    if weight is None or bias is None or axes is None or axes.outputs is None:
        return None
    r.stands_for(cube)
    scaled = weight * _along(factor, axes.outputs, weight)
    inputs: list[object] = [cube.inputs[0], scaled]
    if len(cube.inputs) > 2 and cube.inputs[2] is not None:
        inputs.append((bias * factor).astype(bias.dtype))
    return r.op_like(cube, inputs)


def _along(factor: np.ndarray, axis: int, weight: np.ndarray) -> np.ndarray:
    """One value per channel in the shape that broadcasts over a weight."""
    shape = [1] * weight.ndim
    shape[axis] = -1
    return factor.reshape(shape).astype(weight.dtype)


def _shift_after(r: Rewriter, node: ir.Node) -> ir.Value | None:
    found = _foldable(node, {"float32"} | r.options.target.narrow_floats)
    if found is None:
        return None
    cube, shift = found
    bias = _bias(cube)
    if bias is None or (len(cube.inputs) > 2 and bias.dtype.itemsize == 2):
        return None
    r.stands_for(cube)
    return r.op_like(cube, [*cube.inputs[:2], (bias + shift).astype(bias.dtype)])


# -- before the product ----------------------------------------------------------------------------------------


def _scale_before(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Fold a factor of the input, a scalar or one value per channel, into the weight."""
    inner = producer(node.inputs[0], "Mul")
    weight = constant_of(node.inputs[1])
    factor = None if inner is None else constant_of(inner.inputs[1])
    if inner is None or weight is None or factor is None or not only_use(inner.outputs[0]):
        return None
    source = inner.inputs[0]
    if not _moderate(factor):
        return None
    if source is None or desc_of(source) != desc_of(inner.outputs[0]) or desc_of(source).dtype != "float32":
        return None
    attrs, axes, data = attrs_of(node), weight_axes_of(node), desc_of(source)
    if factor.size == 1:
        scaled = weight * factor.reshape(()).astype(weight.dtype)
    else:
        if axes is None or axes.inputs is None:
            return None
        axis = axes.data % data.rank
        if _per_channel(factor, data.rank, axis, data.shape[axis]) is None:
            return None
        scaled = weight * _along(factor, axes.inputs, weight)
    if attrs["post_ops"] and node.op_type != "MatMul":
        return None
    r.stands_for(inner)
    return r.op_like(node, [source, scaled, *node.inputs[2:]])


def _shift_before(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Fold a constant added to the input of a convolution without padding into its bias."""
    inner = producer(node.inputs[0], "Add")
    weight, bias = constant_of(node.inputs[1]), _bias(node)
    shift = None if inner is None else constant_of(inner.inputs[1])
    if inner is None or weight is None or shift is None or bias is None or not only_use(inner.outputs[0]):
        return None
    attrs, source = attrs_of(node), inner.inputs[0]
    if source is None or desc_of(source) != desc_of(inner.outputs[0]) or desc_of(source).dtype != "float32":
        return None
    if attrs["groups"] != 1 or any((*(attrs["pads_begin"] or ()), *(attrs["pads_end"] or ()))):
        return None
    data = desc_of(source).shape
    axis = len(data) - 1 if attrs["data_format"] == "channels_last" else 1
    values = _per_channel(shift, len(data), axis, data[axis])
    if values is None:
        return None
    r.stands_for(inner)
    plain = weight.transpose(weight_perm(weight.ndim, attrs["weight_format"])).astype(np.float64)
    extra = plain.reshape(*plain.shape[:2], -1).sum(-1) @ values.astype(np.float64)
    return r.op_like(node, [source, node.inputs[1], (bias + extra).astype(bias.dtype), *node.inputs[3:]])


def _scale_through_movement(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Apply a scalar factor of a reshaped or transposed product to the product itself, if its weight can absorb it."""
    number = constant_of(node.inputs[1])
    if number is None or number.size != 1:
        return None
    chain: list[ir.Node] = []
    value = node.inputs[0]
    while value is not None and only_use(value):
        move = producer(value, "Reshape", "Transpose", "Slice")
        if move is None:
            break
        chain.append(move)
        value = move.inputs[0]
    cube = producer(value, "MatMul")
    if (
        not chain
        or value is None
        or cube is None
        or not only_use(value)
        or constant_of(cube.inputs[1]) is None
    ):
        return None
    if desc_of(node.outputs[0]) != desc_of(chain[0].outputs[0]) or any(m.op_type == "Slice" for m in chain):
        return None
    result = r.op("Mul", value, number.reshape(()))
    for move in reversed(chain):
        result = r.op_like(move, [result])
    return result


def _through_reshape(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Apply a constant per column of a reshaped product to the product itself."""
    move, array = producer(node.inputs[0], "Reshape"), constant_of(node.inputs[1])
    if move is None or array is None or not only_use(move.outputs[0]):
        return None
    source = move.inputs[0]
    cube = producer(source, "MatMul")
    if cube is None or source is None or not only_use(source) or attrs_of(cube)["post_ops"]:
        return None
    inner, outer = desc_of(source).shape, desc_of(move.outputs[0]).shape
    if inner[-1:] != outer[-1:] or desc_of(node.outputs[0]).shape != outer:
        return None
    if array.size != 1 and (array.size != inner[-1] or array.shape[-1] != inner[-1]):
        return None
    column = array.reshape(()) if array.size == 1 else array.reshape(-1)
    return r.op("Reshape", r.op_like(node, [source, column]), shape=outer)


def _is_view(value: ir.Value | None) -> bool:
    """True if a value can be a view of another value's memory."""
    node = None if value is None else value.producer()
    views = None if node is None else lookup(node.op_type).views
    return views is not None and views.looks_ahead


def _scale_of_operand(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Move a scalar factor from an operand of a product of two computed values to the product."""
    if (
        any(constant_of(v) is not None for v in node.inputs[:2])
        or len(node.inputs) > 2
        or attrs_of(node)["post_ops"]
    ):
        return None
    for index in (0, 1):
        value = node.inputs[index]
        inner = producer(value, "Mul")
        if inner is None or value is None or not only_use(value) or not _is_view(inner.inputs[0]):
            continue
        number = constant_of(inner.inputs[1])
        if number is None or number.size != 1 or not _moderate(number):
            continue
        if desc_of(value) != desc_of(inner.inputs[0]):  # type: ignore[arg-type]
            continue
        r.stands_for(inner)
        operands = [inner.inputs[0] if i == index else v for i, v in enumerate(node.inputs)]
        return r.op("Mul", r.op_like(node, operands), number.reshape(()))
    return None


def _plain_weight(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Store a constant right-hand matrix untransposed."""
    attrs, weight = attrs_of(node), constant_of(node.inputs[1])
    if not attrs["transpose_b"] or weight is None:
        return None
    return r.op_like(node, [node.inputs[0], np.swapaxes(weight, -1, -2), *node.inputs[2:]], transpose_b=False)


def _no_batch_of_weights(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Remove batch axes of one element from a constant right-hand matrix."""
    weight = constant_of(node.inputs[1])
    if weight is None or weight.ndim <= 2 or math.prod(weight.shape[:-2]) != 1:
        return None
    source = node.inputs[0]
    assert source is not None
    if desc_of(source).rank < weight.ndim:
        return None
    return r.op_like(node, [source, weight.reshape(weight.shape[-2:]), *node.inputs[2:]])


class FoldWeights(RewritePass):
    """Fold constants into weights and biases of products.

    Factors are folded in float32 only: 16-bit weights would be rounded again. A bias is also folded into 16-bit
    products that have none and that the target multiplies: their sums are then rounded once, not twice.

    1. BatchNorm with constant statistics is Mul and Add by one constant per channel.
    2. A product (its operator `takes_epilogues`) times one constant per channel absorbs the factor into its weight and
       bias; plus one constant per channel, into its bias. The product must have no other reader and no post-ops.
    3. A constant factor of the input, a scalar or one value per channel, goes into the weight; a constant added to the
       input of a Conv without padding goes into its bias.
    4. A scalar factor of a reshaped or transposed product with constant weight multiplies the product itself. A
       constant per column that multiplies, or is added to, a merely reshaped product moves to the product likewise.
    5. A scalar factor of a rearranged operand of a product of two computed values multiplies the product (where it
       becomes a post-op), so that the operand is a mere view.
    6. A constant right-hand matrix is kept untransposed and without batch axes of one element.
    7. Factors of grouped transposed convolutions and of grouped inputs (except scalars) are not folded.
    """

    name = "fold_weights"
    rules: ClassVar[Rules] = {
        "BatchNorm": (_affine_norm,),
        "Mul": (_scale_after, _scale_through_movement, _through_reshape),
        "Add": (_shift_after, _through_reshape),
        "Conv": (_scale_before, _shift_before),
        "MatMul": (_plain_weight, _no_batch_of_weights, _scale_before, _scale_of_operand),
    }
