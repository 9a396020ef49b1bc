"""Recognises layer and root-mean-square normalisation decomposed into simpler operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ge.ir.values import constant_of, desc_of
from ge.passes.rewrite import RewritePass, Rewriter, Rules, attrs_of, only_use, producer, scalar

__all__ = ["FuseNormalisation"]


@dataclass(frozen=True)
class _Spread:
    """1 / sqrt(variance + epsilon) of a value, or of its mean square if no mean is subtracted."""

    source: ir.Value
    mean: ir.Value | None
    axes: tuple[int, ...]
    epsilon: float


def _mean_of(value: ir.Value | None) -> tuple[ir.Value, tuple[int, ...]] | None:
    """The value that a value is the mean of, and the reduced axes (kept)."""
    node = producer(value, "ReduceMean")
    if node is None or node.inputs[0] is None or not attrs_of(node)["keepdims"]:
        return None
    rank = desc_of(node.inputs[0]).rank
    axes = attrs_of(node)["axes"]
    return node.inputs[0], tuple(range(rank)) if axes is None else tuple(sorted(a % rank for a in axes))


def _centred(value: ir.Value | None) -> tuple[ir.Value, ir.Value, tuple[int, ...]] | None:
    """The x, mean and axes of x - mean(x) (or its negative)."""
    node = producer(value, "Sub")
    if node is None:
        return None
    for x, mean in (node.inputs, node.inputs[::-1]):
        found = _mean_of(mean)
        if found is not None and found[0] is x and x is not None and mean is not None:
            return x, mean, found[1]
    return None


def _variance(value: ir.Value | None) -> tuple[ir.Value, ir.Value | None, tuple[int, ...]] | None:
    """The x, mean and axes of a variance, or of a mean square (which has no mean)."""
    found = _mean_of(value)
    if found is not None:
        square = producer(found[0], "Square")
        if square is None or square.inputs[0] is None:
            return None
        inner = _centred(square.inputs[0])
        if inner is not None:
            return inner if inner[2] == found[1] else None
        return square.inputs[0], None, found[1]
    node = producer(value, "Sub")  # mean(x * x) - mean(x) ** 2
    if node is None:
        return None
    first, second = _mean_of(node.inputs[0]), producer(node.inputs[1], "Square")
    square = None if first is None else producer(first[0], "Square")
    mean = None if second is None else _mean_of(second.inputs[0])
    if first is None or square is None or mean is None or second is None or square.inputs[0] is not mean[0]:
        return None
    return (mean[0], second.inputs[0], mean[1]) if first[1] == mean[1] else None


def _spread(value: ir.Value | None) -> _Spread | None:
    """A value that is 1 / sqrt(variance + epsilon)."""
    node = producer(value, "Rsqrt")
    if node is None:
        return None
    return _spread_of_sum(node.inputs[0])


def _spread_of_sum(value: ir.Value | None) -> _Spread | None:
    node = producer(value, "Add")
    if node is None:
        return None
    epsilon = scalar(node.inputs[1])
    found = _variance(node.inputs[0])
    if epsilon is None or found is None or not _by_rows(found[0], found[2]):
        return None
    return _Spread(*found, epsilon)


def _by_rows(source: ir.Value, axes: tuple[int, ...]) -> bool:
    """True if rows are normalised one by one; statistics over a whole batch start with column sums."""
    return desc_of(source).rank - 1 in axes or 0 not in axes


def _scaled_spread(value: ir.Value | None) -> tuple[_Spread, ir.Value | None] | None:
    """1 / sqrt(variance + epsilon), perhaps times a constant."""
    spread = _spread(value)
    if spread is not None:
        return spread, None
    node = producer(value, "Mul")
    if node is None:
        return None
    for inverse, scale in (node.inputs, node.inputs[::-1]):
        spread = _spread(inverse)
        if spread is not None and constant_of(scale) is not None:
            return spread, scale
    return None


def _normalised(
    r: Rewriter, spread: _Spread, scale: ir.Value | None = None, bias: ir.Value | None = None
) -> ir.Value:
    inputs = [spread.source, *_vectors(scale, bias)]
    if spread.mean is None:
        return r.op("RmsNorm", *inputs, axes=spread.axes, epsilon=spread.epsilon)
    return r.op("LayerNorm", *inputs, axes=spread.axes, epsilon=spread.epsilon)


def _vectors(scale: ir.Value | None, bias: ir.Value | None) -> list[ir.Value | None]:
    """Scale and bias as optional inputs; a missing scale before a bias is None."""
    return [scale, bias] if bias is not None else [scale] if scale is not None else []


def _fits(value: ir.Value | None, like: ir.Value) -> bool:
    """True if a constant broadcasts to a value's shape without enlarging it."""
    array = constant_of(value)
    return array is not None and np.broadcast_shapes(array.shape, desc_of(like).shape) == desc_of(like).shape


def _by_division(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """(x - mean) / sqrt(variance + epsilon)."""
    root = producer(node.inputs[1], "Sqrt")
    spread = None if root is None else _spread_of_sum(root.inputs[0])
    if spread is None or not _numerator(node.inputs[0], spread):
        return None
    r.stands_for(root)
    return _normalised(r, spread)


def _numerator(value: ir.Value | None, spread: _Spread) -> bool:
    if spread.mean is None:
        return value is spread.source
    node = producer(value, "Sub")
    return node is not None and _same(node.inputs[0], spread.source) and _same(node.inputs[1], spread.mean)


def _same(a: ir.Value | None, b: ir.Value | None) -> bool:
    """True if two values are identical, or equal means of one value."""
    if a is b:
        return True
    one, other = _mean_of(a), _mean_of(b)
    return one is not None and one == other


def _by_product(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """(x - mean) * scale / sqrt(variance + epsilon)."""
    for value, factor in (node.inputs, node.inputs[::-1]):
        found = _scaled_spread(factor)
        if found is None or not _numerator(value, found[0]):
            continue
        spread, scale = found
        if scale is not None and not _fits(scale, spread.source):
            continue
        return _normalised(r, spread, scale)
    return None


def _by_sum(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x * s + (bias - mean * s) for s = scale / sqrt(variance + epsilon)."""
    for product, rest in (node.inputs, node.inputs[::-1]):
        inner = producer(product, "Mul")
        if inner is None:
            continue
        for x, factor in (inner.inputs, inner.inputs[::-1]):
            found = _scaled_spread(factor)
            if found is None or found[0].source is not x or found[0].mean is None:
                continue
            spread, scale = found
            shift = _shift(rest, spread, factor)
            if shift is None or (scale is not None and not _fits(scale, spread.source)):
                continue
            bias = shift[0]
            if bias is not None and not _fits(bias, spread.source):
                continue
            r.stands_for(inner)
            return _normalised(r, spread, scale, bias)
    return None


def _shift(value: ir.Value | None, spread: _Spread, factor: ir.Value | None) -> tuple[ir.Value | None] | None:
    """The bias of `bias - mean * factor` in one of its forms, as a tuple; None if it has another form."""
    if _is_drop(value, spread, factor):
        return (None,)
    node = producer(value, "Sub")
    if (
        node is not None
        and constant_of(node.inputs[0]) is not None
        and _is_drop(node.inputs[1], spread, factor, sign=1)
    ):
        return (node.inputs[0],)
    node = producer(value, "Add")
    if node is None:
        return None
    for drop, bias in (node.inputs, node.inputs[::-1]):
        if constant_of(bias) is not None and _is_drop(drop, spread, factor):
            return (bias,)
    return None


def _is_drop(value: ir.Value | None, spread: _Spread, factor: ir.Value | None, sign: int = -1) -> bool:
    """True if a value is mean * factor, negated if `sign` is negative."""
    node = producer(value, "Neg")
    if node is not None:
        return _is_drop(node.inputs[0], spread, factor, -sign)
    node = producer(value, "Mul")
    if node is None:
        return False
    for mean, other in (node.inputs, node.inputs[::-1]):
        if other is not factor:
            continue
        negated = producer(mean, "Neg")
        if negated is not None and sign < 0 and _same(negated.inputs[0], spread.mean):
            return True
        if sign > 0 and _same(mean, spread.mean):
            return True
    return False


def _take_scale(r: Rewriter, node: ir.Node) -> ir.Value | None:
    inner = producer(node.inputs[0], "LayerNorm", "RmsNorm")
    if (
        inner is None
        or len(inner.inputs) > 1
        or not only_use(inner.outputs[0])
        or not _fits(node.inputs[1], inner.outputs[0])
    ):
        return None
    r.stands_for(inner)
    return r.op_like(inner, [inner.inputs[0], node.inputs[1]])


def _take_bias(r: Rewriter, node: ir.Node) -> ir.Value | None:
    inner = producer(node.inputs[0], "LayerNorm")
    if (
        inner is None
        or len(inner.inputs) > 2
        or not only_use(inner.outputs[0])
        or not _fits(node.inputs[1], inner.outputs[0])
    ):
        return None
    r.stands_for(inner)
    scale = inner.inputs[1] if len(inner.inputs) > 1 else None
    return r.op_like(inner, [inner.inputs[0], scale, node.inputs[1]])


class FuseNormalisation(RewritePass):
    """Recognise normalisations.

    1. (x - mean(x)) / sqrt(var(x) + e), by division or by Rsqrt, is LayerNorm over the axes of the means; the variance
       is the mean of the squared difference or mean(x * x) - mean(x) ** 2.
    2. x * s + (b - mean(x) * s) with s = g / sqrt(var(x) + e), in its orders and signs, is LayerNorm with scale g and
       bias b.
    3. x / sqrt(mean(x * x) + e) is RmsNorm.
    4. A constant that multiplies the result is its scale, a constant added to LayerNorm its bias, when they broadcast
       to its shape.
    5. Means that drop their axes are not recognised, nor are batch statistics per channel: as separate operators, sums
       of many rows are split among threads, and are more exact.
    """

    name = "fuse_normalisation"
    rules: ClassVar[Rules] = {
        "Div": (_by_division,),
        "Mul": (_by_product, _take_scale),
        "Add": (_by_sum, _take_bias),
    }
