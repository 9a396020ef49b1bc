"""The gradient of a layer normalisation: one task if the target has it, else sums and products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ge.ir.types import FLOATS, TensorDesc, numpy_dtype, widened
from ge.ir.values import desc_of
from ge.ops.base import Attr, Input, NodeView, Operator, Output, fail, register
from ge.ops.math.reduce import Reduction, normal_axes
from ge.ops.nn.tasks import decomposes
from ge.plan import Task, View

_KIND = "layer_norm_grad"
_SCALE = 4  # its position among the inputs


def _axes(op: NodeView) -> tuple[int, ...]:
    return normal_axes(op.axes, _x(op).rank)


def _x(op: NodeView) -> TensorDesc:
    x = op.inputs[1]
    assert x is not None
    return x


def _columns(op: NodeView) -> tuple[int, ...]:
    """The shape of the normalised axes."""
    return tuple(_x(op).shape[a] for a in _axes(op))


def _kept(op: NodeView) -> tuple[int, ...]:
    """The shape of the means, with kept axes."""
    axes = _axes(op)
    return tuple(1 if i in axes else n for i, n in enumerate(_x(op).shape))


def _spread(op: NodeView) -> tuple[int, ...]:
    """The shape in which a scale broadcasts with x."""
    axes = _axes(op)
    return tuple(n if i in axes else 1 for i, n in enumerate(_x(op).shape))


def _attrs(op: NodeView) -> dict[str, Any]:
    return {
        "columns": math.prod(_columns(op)),
        "wanted": [int(w) for w in op.wanted],
        "has_scale": op.input(_SCALE) is not None,
    }


@register
class LayerNormGrad(Operator):
    """The gradients of a layer normalisation's input, scale and bias, from the mean and the inverse deviation.

    What is not `wanted` is empty. 16-bit floats are computed in float32; the gradients of scale and bias have the
    scale's type, without one float32.
    """

    dy = Input("T", FLOATS)
    x = Input("T", FLOATS)
    mean = Input("M", FLOATS)
    inverse = Input("M", FLOATS)
    scale = Input("S", FLOATS, optional=True)
    dx = Output("T")
    dscale = Output()
    dbias = Output()
    axes = Attr(list, (-1,))
    wanted = Attr(list, (1, 1, 1))

    @staticmethod
    def verify(op: NodeView) -> None:
        Reduction.verify(op)
        dy, x, mean, inverse = op.inputs[:4]
        assert dy is not None and x is not None and mean is not None and inverse is not None
        scale = op.input(_SCALE)
        if dy.shape != x.shape:
            raise fail(op, f"the gradient {dy} does not match {x}")
        if mean.size != math.prod(_kept(op)) or inverse.shape != mean.shape:
            raise fail(op, f"the means {mean} and inverse deviations {inverse} do not match {x}")
        if scale is not None and scale.shape != _columns(op):
            raise fail(op, f"the scale {scale} does not match {x} over axes {list(_axes(op))}")
        if len(op.wanted) != 3 or not any(op.wanted):
            raise fail(op, f"wanted {op.wanted} does not say which of three results are")

    @staticmethod
    def infer(op: NodeView) -> Sequence[TensorDesc]:
        x, scale = _x(op), op.input(_SCALE)
        factor = TensorDesc(_columns(op), widened(x.dtype) if scale is None else scale.dtype)
        return [
            d if kept else TensorDesc((0,), d.dtype)
            for d, kept in zip((x, factor, factor), op.wanted, strict=True)
        ]

    @staticmethod
    def expand(builder: Any, op: NodeView, *values: Any) -> Any:
        decomposed = decomposes(LayerNormGrad, op, builder.target)
        return _gradients(builder, op, values) if decomposed else NotImplemented

    @staticmethod
    def refuse(op: NodeView) -> str:
        rank, axes = _x(op).rank, _axes(op)
        return (
            ""
            if axes == tuple(range(rank - len(axes), rank))
            else "it normalises other axes than the last ones"
        )

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray] | None:
        wide = numpy_dtype(widened(_x(op).dtype))
        dy, x, mean, inverse = (np.asarray(a).astype(wide) for a in arrays[:4])
        scale = arrays[_SCALE] if len(arrays) > _SCALE else None
        inverse = inverse.reshape(_kept(op))
        normal = (x - mean.reshape(_kept(op))) * inverse
        g = dy if scale is None else dy * scale.astype(wide).reshape(_spread(op))
        axes = _axes(op)
        rest = tuple(i for i in range(x.ndim) if i not in axes)
        slope = (g * normal).mean(axes, keepdims=True)
        dx = (g - g.mean(axes, keepdims=True) - normal * slope) * inverse
        found = [dx, (dy * normal).sum(rest), dy.sum(rest)]
        descs = LayerNormGrad.infer(op)
        return [
            f.astype(numpy_dtype(d.dtype)) if kept else np.empty(0, numpy_dtype(d.dtype))
            for f, d, kept in zip(found, descs, op.wanted, strict=True)
        ]

    @staticmethod
    def task(op: NodeView, inputs: list[View | None], outputs: list[View]) -> Task:
        given = [v for v in inputs if v is not None]
        written = [v for v, kept in zip(outputs, op.wanted, strict=True) if kept]
        return Task(_KIND, op.name, given, written, _attrs(op))

    @staticmethod
    def flops(op: NodeView) -> int:
        return 12 * _x(op).size


def _gradients(b: Any, op: NodeView, values: Sequence[Any]) -> list[Any]:
    """With g = dy * scale and n = (x - mean) * inverse: dx = (g - mean(g) - n * mean(g n)) * inverse."""
    axes, wide = list(_axes(op)), widened(_x(op).dtype)
    rest = [i for i in range(_x(op).rank) if i not in axes]
    dy, x, mean, inverse = (b.cast(v, wide) for v in values[:4])
    scale = values[_SCALE] if len(values) > _SCALE else None
    mean, inverse = (_shaped(b, v, _kept(op)) for v in (mean, inverse))
    normal = b.op("Mul", b.op("Sub", x, mean), inverse)

    def input_gradient() -> Any:
        g = dy if scale is None else b.op("Mul", dy, _shaped(b, b.cast(scale, wide), _spread(op)))
        level = b.op("ReduceMean", g, axes=axes, keepdims=True)
        slope = b.op("ReduceMean", b.op("Mul", g, normal), axes=axes, keepdims=True)
        return b.op("Mul", b.op("Sub", b.op("Sub", g, level), b.op("Mul", normal, slope)), inverse)

    makers = (
        input_gradient,
        lambda: _sum(b, b.op("Mul", dy, normal), rest),
        lambda: _sum(b, dy, rest),
    )
    descs = LayerNormGrad.infer(op)
    return [
        b.cast(make(), d.dtype) if kept else b.constant(np.empty(0, numpy_dtype(d.dtype)))
        for make, d, kept in zip(makers, descs, op.wanted, strict=True)
    ]


def _sum(b: Any, value: Any, axes: list[int]) -> Any:
    return b.op("ReduceSum", value, axes=axes) if axes else value


def _shaped(b: Any, value: Any, shape: Sequence[int]) -> Any:
    return value if desc_of(value).shape == tuple(shape) else b.op("Reshape", value, shape=list(shape))
