"""Experimental operators of early ONNX files, which ONNX Runtime still runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge.ir.types import numpy_dtype
from ge.ops.microsoft.standard import Writer, standard
from ge.ops.plugins import Node, Results, Unsupported, plugin


def _linear(n: Node, x: Any, scale: float, offset: float) -> Any:
    return n.op("Add", n.op("Mul", x, scale), offset)


@plugin(onnx="Affine")
def _affine(n: Node) -> Results:
    return _linear(n, n.inputs[0], float(n.attr("alpha", 1.0)), float(n.attr("beta", 0.0)))


@plugin(onnx="Scale")
def _scale(n: Node) -> Results:
    return n.op("Mul", n.inputs[0], float(n.attr("scale", 1.0)))


@plugin(onnx="ScaledTanh")
def _scaled_tanh(n: Node) -> Results:
    inner = n.op("Mul", n.inputs[0], float(n.attr("beta", 1.0)))
    return n.op("Mul", n.op("Tanh", inner), float(n.attr("alpha", 1.0)))


@plugin(onnx="ParametricSoftplus")
def _parametric_softplus(n: Node) -> Results:
    inner = n.op("Mul", n.inputs[0], float(n.attr("beta", 1.0)))
    return n.op("Mul", standard(n, "Softplus", inner), float(n.attr("alpha", 1.0)))


@plugin(onnx="ImageScaler")
def _image_scaler(n: Node) -> Results:
    """x * scale, plus a number for each channel."""
    bias = np.asarray(n.attr("bias") or [0.0] * n.desc().shape[1], numpy_dtype(n.desc().dtype))
    scaled = n.op("Mul", n.inputs[0], float(n.attr("scale", 1.0)))
    return n.op("Add", scaled, n.builder.constant(bias.reshape(1, -1, 1, 1)))


@plugin(onnx="Crop")
def _crop(n: Node) -> Results:
    """Images without their border, or `scale` rows and columns of them."""
    batch, channels, height, width = n.desc().shape
    left, top, right, bottom = (int(v) for v in n.attr("border"))
    bottom, right = height - bottom, width - right
    if n.attr("scale"):
        rows, columns = (int(v) for v in n.attr("scale"))
        bottom, right = top + rows, left + columns
    if not (0 <= top <= bottom <= height and 0 <= left <= right <= width):
        raise Unsupported(
            f"the border {n.attr('border')} does not fit images {n.desc()}", "check border and scale"
        )
    return n.op("Slice", n.inputs[0], starts=[0, 0, top, left], ends=[batch, channels, bottom, right])


@plugin(onnx="DynamicSlice")
def _dynamic_slice(n: Node) -> Results:
    return standard(n, "Slice", *n.inputs)


@plugin(onnx="MeanVarianceNormalization")
def _mean_variance(n: Node) -> Results:
    """x minus its mean, over its deviation; axes are named since version 9."""
    w, rank = Writer(n, n.builder), n.desc().rank
    later = n.version >= 9
    whole = n.attr("across_channels", 0) and not later
    axes = [int(a) for a in n.attr("axes", [0, 2, 3])] if later else [0, *range(1 if whole else 2, rank)]
    places = np.array(axes, np.int64)
    centred = w.op("Sub", n.inputs[0], w.op("ReduceMean", n.inputs[0], places))
    if not later and not n.attr("normalize_variance", 1):
        return centred
    deviation = n.op("Sqrt", w.op("ReduceMean", n.op("Mul", centred, centred), places))
    return n.op("Div", centred, n.op("Add", deviation, 1e-9) if later else deviation)
