"""Weight gradients of convolutions, and input gradients of poolings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import tbe
from ge.ir.types import FLOATS, TensorDesc, numpy_dtype
from ge.ops.base import Attr, Input, NodeView, Operator, Output, fail, lookup, register
from ge.ops.math.reduce import widened, widened_array
from ge.ops.nn.spatial import (
    FORMATS,
    WEIGHT_FORMATS,
    Window,
    array_windows,
    channels_first_perm,
    channels_last_perm,
    expression_windows,
    tf_format,
    tf_window,
    weight_perm,
)
from ge.ops.nn.tasks import decomposes
from ge.ops.plugins import Node, Results, plugin
from ge.ops.traits import ImageFormat, Precision, Result
from ge.plan import Task, View

_PRIMITIVE = frozenset({"float32", "bfloat16"})  # element types that pooling primitives support


class Windowed(Operator):
    """What gradients over windows share."""

    kernel = Attr(list)
    strides = Attr(list, None)
    dilations = Attr(list, None)
    pads_begin = Attr(list, None)
    pads_end = Attr(list, None)
    data_format = Attr(str, "channels_first", choices=FORMATS)

    @staticmethod
    def refuse(op: NodeView) -> str:
        return "more than 3 spatial axes" if len(op.kernel) > 3 else ""


def _window(op: NodeView) -> Window:
    return Window.of(op.kernel, op)


def _first(desc: TensorDesc | None, op: NodeView) -> tuple[int, ...]:
    """A shape in the order N, C, space."""
    assert desc is not None
    return tuple(desc.shape[p] for p in channels_first_perm(desc.rank, op.data_format))


# -- weight gradients of convolutions --------------------------------------------------------------------------


@register
class ConvGradWeight(Windowed):
    """The gradient of a convolution by its weight, from its input and the gradient of its result.

    `output_dtype` "float32" keeps the sums of 16-bit products.
    """

    x = Input("T", FLOATS)
    incoming = Input("T", FLOATS)
    y = Output("")
    groups = Attr(int, 1)
    weight_format = Attr(str, "OI", choices=WEIGHT_FORMATS)
    output_dtype = Attr(str, "")
    precision = Precision(narrows=True, product=True, result=Result.WIDE)
    algorithm_names = ("Conv2DBackpropFilter", "Conv3DBackpropFilter")
    image_format = ImageFormat(2, leads=True, image_result=False)
    aligned_rows = True

    @staticmethod
    def verify(op: NodeView) -> None:
        data, result = _first(op.inputs[0], op), _first(op.inputs[1], op)
        window = _window(op)
        if data[0] != result[0] or data[1] % op.groups or result[1] % op.groups:
            raise fail(op, f"input {op.inputs[0]} and gradient {op.inputs[1]} do not go together")
        problem = window.problem(data[2:])
        if problem or window.outputs(data[2:]) != result[2:]:
            raise fail(op, problem or f"the window does not lead to the gradient's shape {op.inputs[1]}")

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        data, result = _first(op.inputs[0], op), _first(op.inputs[1], op)
        weight = (result[1], data[1] // op.groups, *op.kernel)
        back = np.argsort(weight_perm(len(weight), op.weight_format))
        return TensorDesc(tuple(weight[p] for p in back), op.output_dtype or op.inputs[0].dtype)  # type: ignore[union-attr]

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor, gradient: tbe.Tensor) -> tbe.Tensor:
        rank, groups = len(x.shape), op.groups
        order = channels_first_perm(rank, op.data_format)
        data, slope = (tbe.transpose(widened(t), order) for t in (x, gradient))
        n, c, o, space = data.shape[0], data.shape[1], slope.shape[1], slope.shape[2:]
        ones = (1,) * len(space)
        views = expression_windows(data, _window(op), 0)
        views = tbe.reshape(views, (n, groups, 1, c // groups, *space, *op.kernel))
        slope = tbe.reshape(slope, (n, groups, o // groups, 1, *space, *ones))
        total = tbe.reduce("sum", views * slope, (0, *range(4, 4 + len(space))))
        weight = tbe.reshape(total, (o, c // groups, *op.kernel))
        back = tuple(int(p) for p in np.argsort(weight_perm(rank, op.weight_format)))
        return tbe.cast(tbe.transpose(weight, back), op.output_dtype or x.dtype)

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray] | None:
        order = channels_first_perm(len(op.kernel) + 2, op.data_format)
        data, slope = (widened_array(a).transpose(order) for a in arrays)
        n, o, positions = slope.shape[0], slope.shape[1], math.prod(slope.shape[2:])
        views = array_windows(data, _window(op), 0)
        channels = data.shape[1] // op.groups
        columns = views.reshape(n, op.groups, channels, positions, math.prod(op.kernel))
        rows = slope.reshape(n, op.groups, o // op.groups, positions)
        weight = np.einsum("ngop,ngcpk->gock", rows, columns, optimize=True)
        weight = weight.reshape(o, channels, *op.kernel)
        back = np.argsort(weight_perm(weight.ndim, op.weight_format))
        return [weight.transpose(back).astype(numpy_dtype(op.outputs[0].dtype))]

    @staticmethod
    def task(op: NodeView, inputs: list[View], outputs: list[View]) -> Task:
        rank = len(inputs[0].shape)
        order = channels_first_perm(rank, op.data_format)
        attrs = {**_window(op).attrs, "groups": op.groups}
        target = outputs[0].permute(weight_perm(rank, op.weight_format))
        return Task("conv_grad_weights", op.name, [v.permute(order) for v in inputs], [target], attrs)

    @staticmethod
    def flops(op: NodeView) -> int:
        data, result = _first(op.inputs[0], op), _first(op.inputs[1], op)
        return 2 * math.prod(result) * data[1] // op.groups * math.prod(op.kernel)


# -- poolings --------------------------------------------------------------------------------------------------


class PoolGrad(Windowed):
    """The gradient of a pooling by its input, in the input's shape."""

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        assert op.inputs[1] is not None
        return op.inputs[1]

    @staticmethod
    def flops(op: NodeView) -> int:
        return op.inputs[0].size * math.prod(op.kernel)  # type: ignore[union-attr]


def _pool_task(op: NodeView, kind: str, inputs: Sequence[View], outputs: Sequence[View]) -> Task:
    order = channels_first_perm(len(inputs[0].shape), op.data_format)
    views = [v.permute(order) for v in (*inputs, *outputs)]
    attrs = {"kind": kind, "kernel": list(op.kernel), **_window(op).attrs}
    return Task("pool_grad", op.name, views[: len(inputs)], views[len(inputs) :], attrs)


def _spread(op: NodeView, shares: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The sum for each input element, from the shares (N, C, positions, kernel) of all windows."""
    window = _window(op)
    space = len(op.kernel)
    room = [
        e + low + high for e, low, high in zip(shape[2:], window.pads_begin, window.pads_end, strict=True)
    ]
    total = np.zeros((*shape[:2], *room), shares.dtype)
    for offset in np.ndindex(*window.kernel):
        where = [
            slice(o * hole, o * hole + (count - 1) * stride + 1, stride)
            for o, hole, count, stride in zip(
                offset, window.dilations, shares.shape[2 : 2 + space], window.strides, strict=True
            )
        ]
        total[(slice(None), slice(None), *where)] += shares[(..., *offset)]
    cut = [slice(low, low + e) for low, e in zip(window.pads_begin, shape[2:], strict=True)]
    return total[(slice(None), slice(None), *cut)]


def _outcome(op: NodeView, total: np.ndarray) -> list[np.ndarray]:
    back = channels_last_perm(total.ndim, op.data_format)
    return [total.transpose(back).astype(numpy_dtype(op.outputs[0].dtype))]


@register
class WindowSum(Windowed):
    """Each place of planes of the given shape gets the values of all windows whose position is that place.

    Positions are row-major places in the plane, inside the window that has them: each place looks at its windows.
    """

    incoming = Input("T", FLOATS)
    positions = Input("I", frozenset({"int32", "int64"}))
    y = Output("T")
    shape = Attr(list)

    @staticmethod
    def verify(op: NodeView) -> None:
        if op.inputs[0].shape != op.inputs[1].shape:  # type: ignore[union-attr]
            raise fail(op, f"values {op.inputs[0]} and positions {op.inputs[1]} do not go together")

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        return TensorDesc(tuple(op.shape), op.inputs[0].dtype)  # type: ignore[union-attr]

    @staticmethod
    def compute(op: NodeView, incoming: tbe.Tensor, positions: tbe.Tensor) -> tbe.Tensor:
        rank, window = len(incoming.shape), _window(op)
        order = channels_first_perm(rank, op.data_format)
        values, spots = (tbe.transpose(t, order) for t in (widened(incoming), positions))
        sizes = [op.shape[axis] for axis in order[2:]]

        def term(n: tbe.Scalar, c: tbe.Scalar, *index: tbe.Scalar) -> tbe.Scalar:
            place, back = index[: rank - 2], index[rank - 2 :]
            rows = zip(place, back, window.strides, window.pads_begin, strict=True)
            source = [
                (p + low) // stride - j for p, j, stride, low in rows
            ]  # the last window there, or before
            flat = place[0]
            for p, size in zip(place[1:], sizes[1:], strict=True):
                flat = flat * size + p
            hit = tbe.binary("eq", spots[(n, c, *source)], tbe.cast(flat, positions.dtype))
            for q, extent in zip(source, values.shape[2:], strict=True):
                hit = hit & (q >= 0) & (q < extent)
            return tbe.select(hit, values[(n, c, *source)], 0)

        terms = tbe.compute((*values.shape[:2], *sizes, *_windows_over_a_place(op)), term)
        total = tbe.reduce("sum", terms, tuple(range(rank, 2 * rank - 2)))
        return tbe.cast(tbe.transpose(total, channels_last_perm(rank, op.data_format)), incoming.dtype)

    @staticmethod
    def flops(op: NodeView) -> int:
        return math.prod(op.shape) * math.prod(_windows_over_a_place(op))


def _windows_over_a_place(op: NodeView) -> list[int]:
    """The maximum number of windows along each axis that cover one position."""
    window = _window(op)
    sides = zip(window.kernel, window.dilations, window.strides, strict=True)
    return [-(-((k - 1) * hole + 1) // stride) for k, hole, stride in sides]


def _looked_up(builder: Any, op: NodeView, gradient: Any, x: Any) -> Any:
    """The gradient of a maximum by positions, on channels-last data as for convolutions."""
    assert op.inputs[1] is not None
    rank = op.inputs[1].rank
    order = channels_last_perm(rank, FORMATS[1])
    first = op.data_format == FORMATS[0]
    if first:
        gradient, x = (builder.op("Transpose", v, perm=list(order)) for v in (gradient, x))
    shape = [op.inputs[1].shape[p] for p in (order if first else range(rank))]
    window = {"kernel": list(op.kernel), "data_format": FORMATS[1], **_window(op).attrs}
    plane = builder.op("Cast", builder.op("MaxPoolIndices", x, **window)[1], to="int32")
    y = builder.op("WindowSum", gradient, plane, shape=shape, **window)
    return builder.op("Transpose", y, perm=list(channels_first_perm(rank, FORMATS[1]))) if first else y


@register
class MaxPoolGrad(PoolGrad):
    """Each gradient goes to where its window's first maximum is."""

    incoming = Input("T", FLOATS)
    x = Input("T", FLOATS)
    y = Output("T")
    precision = Precision(narrows=True)
    image_format = ImageFormat(2)

    @staticmethod
    def expand(builder: Any, op: NodeView, gradient: Any, x: Any) -> Any:
        """Without a primitive: positions of the maxima, then a scatter; on a GPU every position visits its windows."""
        dtype = op.inputs[0].dtype  # type: ignore[union-attr]
        if dtype in _PRIMITIVE and not decomposes(lookup(op.type), op, builder.target):
            return NotImplemented
        if builder.target is not None and builder.target.kind == "cuda":
            return _looked_up(builder, op, gradient, x)
        shape, last = op.inputs[1].shape, op.data_format == FORMATS[1]  # type: ignore[union-attr]
        attrs = {"kernel": list(op.kernel), "data_format": op.data_format, **_window(op).attrs}
        _, plane = builder.op("MaxPoolIndices", x, **attrs)
        data, taken = _first(op.inputs[1], op), _first(op.inputs[0], op)
        rows = [math.prod(taken[2:]), math.prod(data[2:])]
        flat, whole = ([shape[0], r, data[1]] if last else [shape[0], data[1], r] for r in rows)
        zeros = builder.op(
            "BroadcastTo",
            builder.constant(np.zeros((), numpy_dtype(op.inputs[1].dtype))),  # type: ignore[union-attr]
            shape=whole,
        )
        spots, values = (builder.op("Reshape", v, shape=flat) for v in (plane, gradient))
        total = builder.op("ScatterElements", zeros, spots, values, axis=1 if last else 2, reduction="add")
        return builder.op("Reshape", total, shape=list(shape))

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray] | None:
        order = channels_first_perm(len(op.kernel) + 2, op.data_format)
        slope, data = (widened_array(a).transpose(order) for a in arrays)
        views = array_windows(data, _window(op), -np.inf)
        flat = views.reshape(*slope.shape, math.prod(op.kernel))
        chosen = np.arange(flat.shape[-1]) == flat.argmax(-1)[..., None]
        spread = np.where(chosen, slope[..., None], 0)  # a product with infinity would be NaN
        return _outcome(op, _spread(op, spread.reshape(views.shape), data.shape))

    @staticmethod
    def task(op: NodeView, inputs: list[View], outputs: list[View]) -> Task:
        return _pool_task(op, "max", inputs, outputs)


@register
class AvgPoolGrad(PoolGrad):
    """Each gradient is spread evenly over the elements of its window that are in the image of the given shape."""

    incoming = Input("T", FLOATS)
    y = Output("T")
    shape = Attr(list)
    precision = Precision(narrows=True)

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        return TensorDesc(tuple(op.shape), op.inputs[0].dtype)  # type: ignore[union-attr]

    @staticmethod
    def expand(builder: Any, op: NodeView, gradient: Any) -> Any:
        """Without a primitive: a transposed convolution of ones."""
        dtype = op.inputs[0].dtype  # type: ignore[union-attr]
        if dtype in _PRIMITIVE and not decomposes(lookup(op.type), op, builder.target):
            return NotImplemented
        counts = _inside(op).sum(axis=tuple(range(-len(op.kernel), 0)), dtype=np.float64)
        shares = (1 / counts).transpose(channels_last_perm(counts.ndim, op.data_format))
        weighted = builder.op("Mul", gradient, builder.constant(shares.astype(numpy_dtype(dtype))))
        channels = _first(TensorDesc(tuple(op.shape), dtype), op)[1]
        window = _window(op).attrs
        del window["pads_end"]
        return builder.op(
            "ConvTranspose",
            weighted,
            builder.constant(np.ones((*op.kernel, 1, channels), numpy_dtype(dtype))),
            output_shape=list(_first(TensorDesc(tuple(op.shape), dtype), op)[2:]),
            groups=channels,
            data_format=op.data_format,
            weight_format="IO",
            **window,
        )

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray] | None:
        slope = widened_array(arrays[0]).transpose(channels_first_perm(len(op.kernel) + 2, op.data_format))
        inside = _inside(op)
        axes = tuple(range(-len(op.kernel), 0))
        with np.errstate(invalid="ignore"):
            shares = inside / inside.sum(axes, keepdims=True) * slope.reshape(*slope.shape, *(1,) * len(axes))
        return _outcome(op, _spread(op, shares, _first(op.outputs[0], op)))

    @staticmethod
    def task(op: NodeView, inputs: list[View], outputs: list[View]) -> Task:
        return _pool_task(op, "avg_exclude", inputs, outputs)


def _inside(op: NodeView) -> np.ndarray:
    """Ones where windows overlap the image, as (1, 1, positions, kernel)."""
    space = _first(TensorDesc(tuple(op.shape), "float32"), op)[2:]
    return array_windows(np.ones((1, 1, *space), np.float32), _window(op), 0)


# -- TensorFlow ------------------------------------------------------------------------------------------------


@plugin(tensorflow=["Conv2DBackpropFilter", "Conv3DBackpropFilterV2"])
def _filter_gradient(n: Node) -> Results:
    sizes = n.ints(1, "the filter sizes")
    return _by_weight(n, sizes, max(_channels(n) // max(sizes[-2], 1), 1))


@plugin(tensorflow="DepthwiseConv2dNativeBackpropFilter")
def _depthwise_filter_gradient(n: Node) -> Results:
    sizes = n.ints(1, "the filter sizes")
    return n.op("Reshape", _by_weight(n, sizes, sizes[-2]), shape=sizes)


def _channels(n: Node) -> int:
    form, _ = tf_format(n, n.desc().rank)
    return n.desc().shape[-1] if form == FORMATS[1] else n.desc().shape[1]


def _by_weight(n: Node, sizes: Sequence[int], groups: int) -> Any:
    form, axes = tf_format(n, n.desc().rank)
    window = tf_window(n, sizes[:-2], [n.desc().shape[a] for a in axes], axes)
    return n.op(
        "ConvGradWeight",
        n.inputs[0],
        n.inputs[2],
        kernel=list(window.kernel),
        groups=groups,
        data_format=form,
        weight_format="IO",
        **window.attrs,
    )


@plugin(tensorflow=["MaxPoolGrad", "MaxPoolGradV2", "MaxPool3DGrad"])
def _max_pool_gradient(n: Node) -> Results:
    form, axes = tf_format(n, n.desc().rank)
    as_inputs = n.type.endswith("V2")
    kernel = n.ints(3, "ksize") if as_inputs else list(n.attr("ksize", []))
    strides = n.ints(4, "strides") if as_inputs else None
    shape = n.desc().shape
    window = tf_window(n, [kernel[a] for a in axes], [shape[a] for a in axes], axes, strides)
    return n.op(
        "MaxPoolGrad",
        n.inputs[2],
        n.inputs[0],
        kernel=list(window.kernel),
        data_format=form,
        **window.attrs,
    )


@plugin(tensorflow=["AvgPoolGrad", "AvgPool3DGrad"])
def _avg_pool_gradient(n: Node) -> Results:
    shape = n.ints(0, "the input shape")
    form, axes = tf_format(n, len(shape))
    kernel = [list(n.attr("ksize", []))[a] for a in axes]
    window = tf_window(n, kernel, [shape[a] for a in axes], axes)
    return n.op("AvgPoolGrad", n.inputs[1], kernel=kernel, shape=shape, data_format=form, **window.attrs)


@plugin(tensorflow="MaxPoolGradWithArgmax")
def _max_pool_gradient_at(n: Node) -> Results:
    """Each gradient goes to the recorded position, which refers to a sample or to the whole batch."""
    gradient, where = n.inputs[1:3]
    shape, count = n.desc().shape, n.desc(1).size
    flat = n.op("Cast", n.op("Reshape", where, shape=[shape[0], count // max(shape[0], 1)]), to="int64")
    if not bool(n.attr("include_batch_in_index", False)):
        starts = np.arange(shape[0], dtype=np.int64)[:, None] * (n.desc().size // max(shape[0], 1))
        flat = n.op("Add", flat, n.builder.constant(starts))
    zero = n.builder.constant(np.zeros((), numpy_dtype(n.desc().dtype)))
    zeros = n.op("BroadcastTo", zero, shape=[n.desc().size])
    rows = n.op("Reshape", gradient, shape=[count])
    total = n.op("ScatterNd", zeros, n.op("Reshape", flat, shape=[count, 1]), rows, reduction="add")
    return n.op("Reshape", total, shape=list(shape))


@plugin(tensorflow="LRNGrad")
def _lrn_gradient(n: Node) -> Results:
    """Sums over neighbouring channels are products with a band matrix of ones."""
    gradient, x, y = n.inputs[:3]
    radius, channels = int(n.attr("depth_radius", 5)), n.desc().shape[-1]
    alpha, beta = float(n.attr("alpha", 1.0)), float(n.attr("beta", 0.5))
    place = np.arange(channels)
    near = np.abs(place[:, None] - place) <= radius
    band = n.builder.constant(near.astype(numpy_dtype(n.desc().dtype)))
    squares = n.op("MatMul", n.op("Square", x), band)
    level = n.op("Add", n.op("Mul", squares, alpha), float(n.attr("bias", 1.0)))
    spread = n.op("MatMul", n.op("Div", n.op("Mul", gradient, y), level), band)
    direct = n.op("Mul", gradient, n.op("Pow", level, -beta))
    return n.op("Sub", direct, n.op("Mul", n.op("Mul", x, spread), 2 * alpha * beta))
