"""Convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

import tbe
from ge.ir.types import FLOATS, NUMBERS, TensorDesc
from ge.ir.values import desc_of
from ge.ops.aten import AtenNode, aten
from ge.ops.base import Attr, Input, NodeView, Operator, Output, fail, register
from ge.ops.math.reduce import widened, widened_array
from ge.ops.nn.post_ops import apply_post_ops
from ge.ops.nn.spatial import (
    FORMATS,
    WEIGHT_FORMATS,
    Images,
    Window,
    array_windows,
    channels_first_perm,
    channels_last_perm,
    expression_windows,
    fused_activation,
    onnx_window,
    per_axis,
    post_operands,
    tf_format,
    tf_window,
    weight_perm,
)
from ge.ops.plugins import Node, Results, Unsupported, plugin
from ge.ops.traits import ImageFormat, Precision, WeightAxes
from ge.ops.views import has_wide_rows
from ge.plan import Task, View


class Convolving(Operator):
    """What both convolutions share."""

    x = Input("T", FLOATS)
    w = Input("T", FLOATS)
    bias = Input("", FLOATS, optional=True)
    post = Input("", NUMBERS, variadic=True)
    y = Output("T")
    strides = Attr(list, None)
    dilations = Attr(list, None)
    pads_begin = Attr(list, None)
    pads_end = Attr(list, None)
    groups = Attr(int, 1)
    data_format = Attr(str, "channels_first", choices=FORMATS)
    weight_format = Attr(str, "OI", choices=WEIGHT_FORMATS)
    post_ops = Attr(list, (), item=str)
    dataflow = Images()
    precision = Precision(narrows=True, product=True, widens=True)
    takes_epilogues = True
    image_format = ImageFormat(leads=True)

    @staticmethod
    def refuse(op: NodeView) -> str:
        return "more than 3 spatial axes" if op.inputs[0].rank > 5 else ""  # type: ignore[union-attr]


def _channel_axis(op: NodeView) -> int:
    return -1 if op.data_format == "channels_last" else 1


def _layout(op: NodeView) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of x as (N, C, space) and of w as (O, I, kernel)."""
    x, w = op.inputs[0], op.inputs[1]
    assert x is not None and w is not None
    if x.rank < 3 or w.rank != x.rank:
        raise fail(op, f"input {x} and weight {w} do not go together")
    data = tuple(x.shape[p] for p in channels_first_perm(x.rank, op.data_format))
    weight = tuple(w.shape[p] for p in weight_perm(w.rank, op.weight_format))
    return data, weight


def _window(op: NodeView, kernel: Sequence[int]) -> Window:
    return Window.of(kernel, op)


def _task(op: NodeView, kind: str, inputs: Sequence[View], outputs: Sequence[View], window: Window) -> Task:
    """The runtime's task, with its views in the order N, C, space and O, I, kernel."""
    rank = len(inputs[0].shape)
    order = channels_first_perm(rank, op.data_format)
    bias = inputs[2] if len(inputs) > 2 else None
    views = [inputs[0].permute(order), inputs[1].permute(weight_perm(rank, op.weight_format))]
    views += [bias] if bias is not None else []
    views += post_operands(inputs, 3, rank, order)
    attrs: dict[str, Any] = {
        "strides": list(window.strides),
        "dilations": list(window.dilations),
        "pads_begin": list(window.pads_begin),
        "pads_end": list(window.pads_end),
        "groups": op.groups,
        "has_bias": bias is not None,
        "post_ops": list(op.post_ops),
    }
    return Task(kind, op.name, views, [outputs[0].permute(order)], attrs)


# -- convolution -------------------------------------------------------------------------------------------


def _finished(op: NodeView, y: tbe.Tensor, bias: tbe.Tensor | None, dtype: str) -> tbe.Tensor:
    """Sums (channels first) plus the bias, in the node's layout and element type."""
    rank = len(y.shape)
    if bias is not None:
        y = y + tbe.reshape(tbe.cast(widened(bias), y.dtype), (bias.shape[0], *(1,) * (rank - 2)))
    return tbe.cast(tbe.transpose(y, channels_last_perm(rank, op.data_format)), dtype)


def _spreads(node: ir.Node) -> bool:
    """The library reads bfloat16 channels in pairs: an odd last one together with one of the next group or pixel.

    Kernels for images of one or three channels, and depthwise kernels, do not.
    """
    w, groups = desc_of(node.inputs[1]), node.attributes.get_int("groups", 1)  # type: ignore[arg-type]
    layout = weight_perm(w.rank, node.attributes.get_string("weight_format", "OI"))
    outputs, channels, *kernel = (w.shape[p] for p in layout)
    if groups == 1:
        return channels % 2 == 1 and (channels > 3 or (channels == 3 and math.prod(kernel) == 1))
    return channels % 2 == 1 and (channels > 1 or outputs > groups)


@register
class Conv(Convolving):
    """Convolution over 1 to 3 spatial axes.

    weight_format "OI" is (O, I / groups, kernel…), "IO" is (kernel…, I / groups, O). A gated convolution multiplies
    each channel of each image by a number of its own first: the gate, of x's rank, is the input after the bias.
    """

    gated = Attr(bool, False)
    precision = Precision(narrows=True, product=True, widens=True, spreads=_spreads)
    algorithm_names = ("Conv2D", "Conv3D", "Convolution", "DepthwiseConv2D", "DepthwiseConv2dNative")
    # Wider rows are written directly, or at the cost of the copy that a Concat would be.
    strided_output = has_wide_rows
    aligned_rows = True

    @staticmethod
    def weight_axes(op: NodeView) -> WeightAxes:
        outputs, *summed = weight_perm(op.inputs[1].rank, op.weight_format)  # type: ignore[union-attr]
        inputs = summed[0] if op.groups == 1 else None
        return WeightAxes(_channel_axis(op), outputs, inputs, tuple(summed), op.groups)

    @staticmethod
    def verify(op: NodeView) -> None:
        data, weight = _layout(op)
        if op.groups < 1 or data[1] != weight[1] * op.groups or weight[0] % op.groups:
            raise fail(
                op,
                f"{data[1]} channels in {op.groups} group(s) do not match a weight of "
                f"{weight[0]}x{weight[1]} channels",
            )
        bias = op.input(2)
        if bias is not None and bias.shape != (weight[0],):
            raise fail(op, f"the bias is {bias} where a vector of {weight[0]} channels is expected")
        problem = _window(op, weight[2:]).problem(data[2:])
        if problem:
            raise fail(op, problem)
        gate = op.input(3) if op.gated else None
        if op.gated and (gate is None or gate.shape != _gate_shape(op)):
            raise fail(op, f"the gate is {gate} where {_gate_shape(op)} is expected")

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        data, weight = _layout(op)
        first = (data[0], weight[0], *_window(op, weight[2:]).outputs(data[2:]))
        back = channels_last_perm(len(first), op.data_format)
        return TensorDesc(tuple(first[p] for p in back), op.inputs[0].dtype)  # type: ignore[union-attr]

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor, w: tbe.Tensor, bias: tbe.Tensor | None = None) -> tbe.Tensor:
        assert not op.post_ops and not op.gated, "post-ops and gates are fused into AI Core nodes only"
        rank, dtype = len(x.shape), x.dtype
        data = tbe.transpose(widened(x), channels_first_perm(rank, op.data_format))
        weight = tbe.transpose(widened(w), weight_perm(rank, op.weight_format))
        y = convolution_expression(data, weight, _window(op, weight.shape[2:]), op.groups)
        return _finished(op, y, bias, dtype)

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray] | None:
        x, w = widened_array(arrays[0]), widened_array(arrays[1])
        if op.gated:
            x = x * widened_array(arrays[3])
        data = x.transpose(channels_first_perm(x.ndim, op.data_format))
        weight = w.transpose(weight_perm(w.ndim, op.weight_format))
        bias = arrays[2] if len(arrays) > 2 else None
        y = convolve(data, weight, _window(op, weight.shape[2:]), op.groups)
        if bias is not None:
            y = y + bias.astype(y.dtype).reshape(-1, *(1,) * (x.ndim - 2))
        y = y.transpose(channels_last_perm(x.ndim, op.data_format))
        return [apply_post_ops(y, op.post_ops, arrays[4 if op.gated else 3 :])]

    @staticmethod
    def task(op: NodeView, inputs: list[View], outputs: list[View]) -> Task:
        _, weight = _layout(op)
        task = _task(op, "conv", inputs, outputs, _window(op, weight[2:]))
        task.attrs["has_gate"] = op.gated
        task.flops = Conv.flops(op)
        return task

    @staticmethod
    def flops(op: NodeView) -> int:
        _, weight = _layout(op)
        return 2 * op.outputs[0].size * math.prod(weight[1:])


def _gate_shape(op: NodeView) -> tuple[int, ...]:
    """One number per image and channel."""
    x = op.inputs[0]
    assert x is not None
    axis = 1 if op.data_format == FORMATS[0] else x.rank - 1
    return tuple(n if i in (0, axis) else 1 for i, n in enumerate(x.shape))


def convolution_expression(data: tbe.Tensor, weight: tbe.Tensor, window: Window, groups: int) -> tbe.Tensor:
    """Convolution of expressions (N, C, space) and (O, I / groups, kernel)."""
    n, c, space = data.shape[0], data.shape[1], len(window.kernel)
    views = expression_windows(data, window, 0)
    outputs, outs = views.shape[2 : 2 + space], weight.shape[0]
    views = tbe.reshape(views, (n, groups, 1, c // groups, *outputs, *window.kernel))
    kernel = tbe.reshape(weight, (groups, outs // groups, c // groups, *(1,) * space, *window.kernel))
    axes = (3, *range(4 + space, 4 + 2 * space))
    return tbe.reshape(tbe.reduce("sum", views * kernel, axes), (n, outs, *outputs))


def convolve(data: np.ndarray, weight: np.ndarray, window: Window, groups: int) -> np.ndarray:
    """Convolution of arrays (N, C, space) and (O, I / groups, kernel), by matrix products."""
    space = data.ndim - 2
    views = array_windows(data, window, 0)
    n, c = data.shape[:2]
    outputs = views.shape[2 : 2 + space]
    order = (0, *range(2, 2 + space), 1, *range(2 + space, 2 + 2 * space))
    terms = c // groups * math.prod(window.kernel)
    rows = views.transpose(order).reshape(n * math.prod(outputs), groups, terms)
    columns = weight.reshape(groups, weight.shape[0] // groups, terms)
    product = np.matmul(rows.transpose(1, 0, 2), columns.transpose(0, 2, 1))  # (G, N * positions, O / G)
    y = product.transpose(1, 0, 2).reshape(n, *outputs, weight.shape[0])
    return y.transpose(0, space + 1, *range(1, space + 1))


# -- transposed convolution --------------------------------------------------------------------------------


@register
class ConvTranspose(Convolving):
    """The gradient of a convolution by its input; the weight is in the layout of that convolution.

    So "OI" is (channels of x, channels of y / groups, kernel…), "IO" (kernel…, channels of y / groups,
    channels of x). `output_shape` holds the spatial sizes of y when the borders do not decide them.
    """

    output_shape = Attr(list, None)
    output_padding = Attr(list, None)
    algorithm_names = (
        "Conv2DBackpropInput",
        "Conv2DTranspose",
        "Conv3DBackpropInput",
        "Conv3DTranspose",
        "Deconvolution",
    )

    @staticmethod
    def weight_axes(op: NodeView) -> WeightAxes:
        _, outputs, *_ = weight_perm(op.inputs[1].rank, op.weight_format)  # type: ignore[union-attr]
        return WeightAxes(_channel_axis(op), outputs if op.groups == 1 else None, None)

    @staticmethod
    def verify(op: NodeView) -> None:
        data, weight = _layout(op)
        if op.groups < 1 or data[1] != weight[0] or data[1] % op.groups:
            raise fail(op, f"{data[1]} channels do not match a weight of {weight[0]}x{weight[1]} channels")
        bias = op.input(2)
        if bias is not None and bias.shape != (weight[1] * op.groups,):
            raise fail(
                op, f"the bias is {bias} where a vector of {weight[1] * op.groups} channels is expected"
            )
        if any(s < 1 for s in _upscaled(op)):
            raise fail(op, "the borders leave nothing of the result")

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        data, weight = _layout(op)
        first = (data[0], weight[1] * op.groups, *_upscaled(op))
        back = channels_last_perm(len(first), op.data_format)
        return TensorDesc(tuple(first[p] for p in back), op.inputs[0].dtype)  # type: ignore[union-attr]

    @staticmethod
    def expand(builder: Any, op: NodeView, *values: Any) -> Any:
        """Rows of the result that no window reaches contain only the bias: pad the reachable part."""
        data, weight = _layout(op)
        window = _window(op, weight[2:])
        reach = _reach(window, data[2:])
        sizes = _upscaled(op)
        extra = [size - r + low for size, r, low in zip(sizes, reach, window.pads_begin, strict=True)]
        # A primitive accepts up to stride - 1 rows beyond the last window.
        if all(e < s for e, s in zip(extra, window.strides, strict=True)):
            return NotImplemented
        return _padded_result(builder, op, values, sizes, extra)

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor, w: tbe.Tensor, bias: tbe.Tensor | None = None) -> tbe.Tensor:
        assert not op.post_ops, "post-ops are fused into AI Core nodes only"
        rank, groups, dtype = len(x.shape), op.groups, x.dtype
        data = tbe.transpose(widened(x), channels_first_perm(rank, op.data_format))
        weight = tbe.transpose(widened(w), weight_perm(rank, op.weight_format))
        window, sizes = _window(op, weight.shape[2:]), _upscaled(op)
        n, c, space, per_group = data.shape[0], data.shape[1], rank - 2, weight.shape[1]
        data = tbe.reshape(data, (n, groups, c // groups, *data.shape[2:]))
        weight = tbe.reshape(weight, (groups, c // groups, *weight.shape[1:]))

        def term(*index: tbe.Scalar) -> tbe.Scalar:
            b, g, o, *rest = index
            place, i, kernel = rest[:space], rest[space], rest[space + 1 :]
            rows = zip(place, kernel, window.strides, window.dilations, window.pads_begin, strict=True)
            shifted = [p + low - k * hole for p, k, _, hole, low in rows]
            source = [s // stride for s, stride in zip(shifted, window.strides, strict=True)]
            value = data[(b, g, i, *source)] * weight[(g, i, o, *kernel)]
            for s, q, stride, extent in zip(shifted, source, window.strides, data.shape[3:], strict=True):
                hit = (tbe.binary("eq", s % stride, 0)) & (q >= 0) & (q < extent)
                value = tbe.select(hit, value, 0)
            return value

        terms = tbe.compute((n, groups, per_group, *sizes, c // groups, *window.kernel), term)
        axes = tuple(range(3 + space, 4 + 2 * space))
        y = tbe.reshape(tbe.reduce("sum", terms, axes), (n, groups * per_group, *sizes))
        return _finished(op, y, bias, dtype)

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray] | None:
        x, w = widened_array(arrays[0]), widened_array(arrays[1])
        data = x.transpose(channels_first_perm(x.ndim, op.data_format))
        weight = w.transpose(weight_perm(w.ndim, op.weight_format))
        y = deconvolve(data, weight, _window(op, weight.shape[2:]), op.groups, _upscaled(op))
        if len(arrays) > 2 and arrays[2] is not None:
            y = y + arrays[2].astype(y.dtype).reshape(-1, *(1,) * (x.ndim - 2))
        return [
            apply_post_ops(y.transpose(channels_last_perm(x.ndim, op.data_format)), op.post_ops, arrays[3:])
        ]

    @staticmethod
    def task(op: NodeView, inputs: list[View], outputs: list[View]) -> Task:
        data, weight = _layout(op)
        window = _window(op, weight[2:])
        reach = _reach(window, data[2:])
        sizes = _upscaled(op)
        # The primitive needs the padding that, with whole strides, leads back to x.
        ends = [max(r - low - size, 0) for r, low, size in zip(reach, window.pads_begin, sizes, strict=True)]
        window = Window(window.kernel, window.strides, window.dilations, window.pads_begin, tuple(ends))
        task = _task(op, "deconv", inputs, outputs, window)
        task.flops = ConvTranspose.flops(op)
        return task

    @staticmethod
    def flops(op: NodeView) -> int:
        data, weight = _layout(op)
        return 2 * math.prod(data) * math.prod(weight[1:])


def _reach(window: Window, sizes: Sequence[int]) -> tuple[int, ...]:
    """Sizes of the result before cropping."""
    return tuple(
        (s - 1) * stride + e for s, stride, e in zip(sizes, window.strides, window.extents, strict=True)
    )


def _upscaled(op: NodeView) -> tuple[int, ...]:
    """The spatial sizes of a transposed convolution's result."""
    if op.output_shape:
        return tuple(op.output_shape)
    data, weight = _layout(op)
    window = _window(op, weight[2:])
    extra = op.output_padding or (0,) * len(window.kernel)
    rows = zip(_reach(window, data[2:]), window.pads_begin, window.pads_end, extra, strict=True)
    return tuple(r - low - high + e for r, low, high, e in rows)


def _padded_result(
    builder: Any, op: NodeView, values: Sequence[Any], sizes: Sequence[int], extra: Sequence[int]
) -> Any:
    inner = [s - max(e, 0) for s, e in zip(sizes, extra, strict=True)]
    attrs = {
        k: v for k, v in op.attrs.items() if v is not None and k not in ("output_padding", "output_shape")
    }
    y = builder.op("ConvTranspose", values[0], values[1], **{**attrs, "output_shape": inner})
    high = [max(e, 0) for e in extra]
    high = [0, *high, 0] if op.data_format == FORMATS[1] else [0, 0, *high]
    y = builder.op("Pad", y, low=[0] * len(high), high=high)
    if len(values) < 3 or values[2] is None:
        return y
    rank = len(high)
    bias = (
        values[2]
        if op.data_format == FORMATS[1]
        else builder.op("Reshape", values[2], shape=[int(values[2].shape[0])] + [1] * (rank - 2))
    )
    return builder.op("Add", y, bias)


def deconvolve(
    data: np.ndarray, weight: np.ndarray, window: Window, groups: int, sizes: Sequence[int]
) -> np.ndarray:
    """Transposed convolution of (N, C, space) and (C, O / groups, kernel): each kernel offset adds a grid."""
    n, c = data.shape[:2]
    per_group, space = weight.shape[1], data.ndim - 2
    rows = data.reshape(n, groups, c // groups, math.prod(data.shape[2:]))
    columns = weight.reshape(groups, c // groups, per_group, math.prod(window.kernel))
    full = [
        max(r, low + s)
        for r, low, s in zip(_reach(window, data.shape[2:]), window.pads_begin, sizes, strict=True)
    ]
    y = np.zeros((n, groups * per_group, *full), data.dtype)
    for index, offset in enumerate(np.ndindex(*window.kernel)):
        part = np.einsum("ngcp,gco->ngop", rows, columns[..., index]).reshape(
            n, groups * per_group, *data.shape[2:]
        )
        where = tuple(
            slice(o * hole, o * hole + (size - 1) * stride + 1, stride)
            for o, hole, stride, size in zip(
                offset, window.dilations, window.strides, data.shape[2:], strict=True
            )
        )
        y[(slice(None), slice(None), *where)] += part
    cut = tuple(slice(low, low + size) for low, size in zip(window.pads_begin, sizes, strict=True))
    assert len(cut) == space
    return y[(slice(None), slice(None), *cut)]


# -- ONNX --------------------------------------------------------------------------------------------------


@plugin(onnx="Conv")
def _conv(n: Node) -> Results:
    data, weight = n.desc(0).shape, n.desc(1).shape
    window = onnx_window(n, n.attr("kernel_shape") or weight[2:], data[2:])
    return n.op("Conv", *n.inputs[:3], groups=int(n.attr("group", 1)), **window.attrs)


@plugin(onnx="ConvTranspose")
def _conv_transpose(n: Node) -> Results:
    data, weight = n.desc(0).shape, n.desc(1).shape
    kernel = tuple(n.attr("kernel_shape") or weight[2:])
    rank = len(kernel)
    strides = tuple(n.attr("strides") or (1,) * rank)
    dilations = tuple(n.attr("dilations") or (1,) * rank)
    extra = tuple(n.attr("output_padding") or (0,) * rank)
    auto, shape = n.attr("auto_pad", "NOTSET"), n.attr("output_shape")
    window = Window(kernel, strides, dilations, (0,) * rank, (0,) * rank)
    reach = [r + e for r, e in zip(_reach(window, data[2:]), extra, strict=True)]
    if shape is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        shape = [d * s for d, s in zip(data[2:], strides, strict=True)]
    if shape is None:
        pads = n.attr("pads") or (0,) * (2 * rank)
        begin, end = tuple(pads[:rank]), tuple(pads[rank:])
        shape = [r - low - high for r, low, high in zip(reach, begin, end, strict=True)]
    else:
        shape = list(shape)[-rank:]
        total = [max(r - s, 0) for r, s in zip(reach, shape, strict=True)]
        halves = [t // 2 for t in total]
        begin = tuple(halves if auto == "SAME_UPPER" else [t - h for t, h in zip(total, halves, strict=True)])
    if any(p < 0 for p in begin):
        raise Unsupported("negative borders of ConvTranspose are not supported", "slice the result instead")
    return n.op(
        "ConvTranspose",
        *n.inputs[:3],
        groups=int(n.attr("group", 1)),
        strides=list(strides),
        dilations=list(dilations),
        pads_begin=list(begin),
        output_shape=list(shape),
    )


# -- TensorFlow --------------------------------------------------------------------------------------------


def _conv_tf(n: Node, weight: Any, groups: int | None = None, bias: Any = None) -> Any:
    """A convolution with a weight (kernel…, I / groups, O)."""
    data, kernel = n.desc().shape, [int(d) for d in weight.shape]
    form, axes = tf_format(n, len(data))
    window = tf_window(n, kernel[:-2], [data[a] for a in axes], axes)
    channels = data[-1] if form == FORMATS[1] else data[1]
    if groups is None:
        groups = max(channels // max(kernel[-2], 1), 1)
    return n.op(
        "Conv",
        n.inputs[0],
        weight,
        bias,
        groups=groups,
        data_format=form,
        weight_format="IO",
        **window.attrs,
    )


@plugin(tensorflow=["Conv2D", "Conv3D", "Conv"])
def _convolution(n: Node) -> Results:
    return _conv_tf(n, n.inputs[1])


def _depthwise_weight(n: Node) -> tuple[Any, int]:
    """(kernel…, C, M) as the weight of a convolution with C groups of one channel and M results each."""
    *kernel, channels, multiplier = n.desc(1).shape
    return n.op("Reshape", n.inputs[1], shape=[*kernel, 1, channels * multiplier]), channels


@plugin(tensorflow="DepthwiseConv2dNative")
def _depthwise(n: Node) -> Results:
    return _conv_tf(n, *_depthwise_weight(n))


@plugin(tensorflow=["_FusedConv2D", "_FusedDepthwiseConv2dNative"])
def _fused_convolution(n: Node) -> Results:
    """A convolution with a bias or a normalisation, and one activation, as TensorFlow's own optimiser writes it."""
    weight, groups = (n.inputs[1], None) if n.type == "_FusedConv2D" else _depthwise_weight(n)
    after = [str(v) for v in n.attr("fused_ops", [])]
    if after[:1] == ["FusedBatchNorm"]:
        y = _conv_tf(n, weight, groups)
        form, _ = tf_format(n, n.desc().rank)
        axis = n.desc().rank - 1 if form == FORMATS[1] else 1
        y = n.op("BatchNorm", y, *n.inputs[2:6], epsilon=float(n.attr("epsilon", 1e-4)), channel_axis=axis)
        return fused_activation(n, y, after[1:], n.inputs[6:])
    biased = after[:1] == ["BiasAdd"]
    y = _conv_tf(n, weight, groups, n.inputs[2] if biased else None)
    return fused_activation(n, y, after[1:] if biased else after, n.inputs[2 + biased :])


@plugin(tensorflow=["Conv2DBackpropInput", "Conv3DBackpropInputV2", "Conv3DBackpropInput"])
def _transposed_convolution(n: Node) -> Results:
    """The data gradient of a convolution: a transposed convolution of the incoming gradient."""
    sizes = list(n.desc(0).shape) if n.type == "Conv3DBackpropInput" else n.ints(0, "the input sizes")
    return _backprop_input(n, sizes, n.inputs[1], None)


@plugin(tensorflow="DepthwiseConv2dNativeBackpropInput")
def _transposed_depthwise(n: Node) -> Results:
    weight, channels = _depthwise_weight(n)
    return _backprop_input(n, n.ints(0, "the input sizes"), weight, channels)


def _backprop_input(n: Node, sizes: Sequence[int], weight: Any, groups: int | None) -> Any:
    gradient, rank = n.inputs[2], n.desc(2).rank
    form, axes = tf_format(n, rank)
    if len(sizes) == rank - 2:  # only the spatial ones
        sizes = [0, *sizes, 0] if form == FORMATS[1] else [0, 0, *sizes]
    space = [sizes[a] for a in axes]
    kernel = [int(d) for d in weight.shape]
    window = tf_window(n, kernel[:-2], space, axes)
    channels = sizes[-1] if form == FORMATS[1] else sizes[1]
    if groups is None:
        groups = max(channels // max(kernel[-2], 1), 1) if channels else 1
    return n.op(
        "ConvTranspose",
        gradient,
        weight,
        strides=list(window.strides),
        dilations=list(window.dilations),
        pads_begin=list(window.pads_begin),
        output_shape=space,
        groups=groups,
        data_format=form,
        weight_format="IO",
    )


# -- ATen ------------------------------------------------------------------------------------------------


FEW_CHANNELS = 4  # of a picture: vectors of channels would be mostly empty


def _patches(n: AtenNode, x: Any, w: TensorDesc, pads: list[int], attrs: dict[str, Any]) -> Any | None:
    """The windows of an image as rows if they do not overlap: the convolution is then a matrix product."""
    batch, channels, *sizes = desc_of(x).shape
    kernel = list(w.shape[2:])
    is_tiled = attrs["strides"] == kernel and not any(s % k for s, k in zip(sizes, kernel, strict=True))
    plain = attrs["groups"] == 1 and set(attrs["dilations"]) == {1} and not any(pads)
    if not (is_tiled and plain) or channels > FEW_CHANNELS or math.prod(kernel) < 16:
        return None
    counts = [s // k for s, k in zip(sizes, kernel, strict=True)]
    pairs = [v for pair in zip(counts, kernel, strict=True) for v in pair]
    places, within = range(2, 2 + len(pairs), 2), range(3, 2 + len(pairs), 2)
    cut = n.op("Transpose", n.shaped(x, [batch, channels, *pairs]), perm=[0, *places, 1, *within])
    return n.shaped(cut, [batch * math.prod(counts), channels * math.prod(kernel)])


@aten("convolution", "_convolution")
def _convolution_aten(n: AtenNode) -> Any:
    x, w, bias = n.arg("input"), n.arg("weight"), n.arg("bias")
    rank = desc_of(x).rank
    if rank != desc_of(w).rank or not desc_of(x).size or not desc_of(w).size:
        raise Unsupported(f"a convolution of {desc_of(x)} with {desc_of(w)}")
    if desc_of(x).dtype not in FLOATS:
        raise Unsupported("a convolution of whole numbers")
    space = rank - 2
    strides, pads, holes = (per_axis(n.arg(k), space) for k in ("stride", "padding", "dilation"))
    attrs: dict[str, Any] = {"strides": strides, "dilations": holes, "groups": int(n.arg("groups", 1))}
    if not n.arg("transposed"):
        rows = _patches(n, x, desc_of(w), pads, attrs)
        if rows is not None:
            return _of_patches(n, n.op("MatMul", rows, _as_rows(n, w), bias, transpose_b=True))
        return n.op("Conv", x, w, bias, pads_begin=pads, pads_end=pads, **attrs)
    return n.op("ConvTranspose", x, w, bias, pads_begin=pads, output_shape=list(n.out().shape[2:]), **attrs)


def _as_rows(n: AtenNode, w: Any) -> Any:
    first, *rest = desc_of(w).shape
    return n.shaped(w, [first, math.prod(rest)])


def _of_patches(n: AtenNode, y: Any) -> Any:
    """A convolution's result from its rows."""
    batch, channels, *space = n.out().shape
    rank = 2 + len(space)
    return n.op("Transpose", n.shaped(y, [batch, *space, channels]), perm=[0, rank - 1, *range(1, rank - 1)])


@aten("convolution_backward")
def _convolution_backward(n: AtenNode) -> Any:
    """By the input a transposed convolution of the gradient, by the weight a product over all windows."""
    g, x, w = n.arg("grad_output"), n.arg("input"), n.arg("weight")
    space = desc_of(x).rank - 2
    if desc_of(x).rank != desc_of(w).rank or not desc_of(g).size:
        raise Unsupported(f"a convolution of {desc_of(x)}")
    strides, pads, holes = (per_axis(n.arg(k), space) for k in ("stride", "padding", "dilation"))
    attrs: dict[str, Any] = {"strides": strides, "dilations": holes, "groups": int(n.arg("groups", 1))}
    mask = [bool(m) for m in n.arg("output_mask")]
    transposed = bool(n.arg("transposed"))
    results: list[Any] = [None, None, None]
    if mask[0]:
        results[0] = _by_input(n, g, w, pads, attrs, transposed, desc_of(x))
    if mask[1]:
        # A transposed convolution exchanges what is convolved and what it gives.
        data, gradient = (g, x) if transposed else (x, g)
        rows = None if transposed else _patches(n, data, desc_of(w), pads, attrs)
        if rows is not None:
            results[1] = _by_weight_of_patches(n, rows, gradient, w)
        else:
            ends = _end_borders(desc_of(data), desc_of(gradient), desc_of(w), strides, pads, holes)
            results[1] = _by_weight(n, data, gradient, w, pads, ends, attrs)
    if mask[2]:
        axes = [0, *range(2, desc_of(g).rank)]
        results[2] = n.op("ReduceSum", g, axes=axes, keepdims=False)
    return results


def _by_input(
    n: AtenNode, g: Any, w: Any, pads: list[int], attrs: dict[str, Any], transposed: bool, x: TensorDesc
) -> Any:
    if not transposed:
        return n.op("ConvTranspose", g, w, pads_begin=pads, output_shape=list(x.shape[2:]), **attrs)
    ends = _end_borders(desc_of(g), x, desc_of(w), attrs["strides"], pads, attrs["dilations"])
    return n.op("Conv", g, w, pads_begin=pads, pads_end=ends, **attrs)


def _by_weight(
    n: AtenNode, data: Any, gradient: Any, w: Any, pads: list[int], ends: list[int], attrs: dict[str, Any]
) -> Any:
    """Rows at the end that would make room for further windows are cut off."""
    kernel = list(desc_of(w).shape[2:])
    window = Window(
        tuple(kernel), tuple(attrs["strides"]), tuple(attrs["dilations"]), tuple(pads), tuple(ends)
    )
    space = desc_of(gradient).shape[2:]
    rows = zip(space, window.strides, window.extents, pads, strict=True)
    used = [(out - 1) * stride + extent - low for out, stride, extent, low in rows]
    sizes = list(desc_of(data).shape)
    kept = [*sizes[:2], *(min(u, s) for u, s in zip(used, sizes[2:], strict=True))]
    if window.outputs(sizes[2:]) != tuple(space):
        data = n.op("Slice", data, starts=[0] * len(kept), ends=kept)
    return n.op("ConvGradWeight", data, gradient, kernel=kernel, pads_begin=pads, pads_end=ends, **attrs)


def _by_weight_of_patches(n: AtenNode, rows: Any, gradient: Any, w: Any) -> Any:
    rank, channels = desc_of(gradient).rank, desc_of(w).shape[0]
    last = n.op("Transpose", gradient, perm=[0, *range(2, rank), 1])
    product = n.op("MatMul", n.shaped(last, [desc_of(rows).shape[0], channels]), rows, transpose_a=True)
    return n.shaped(product, list(desc_of(w).shape))


def _end_borders(
    data: TensorDesc,
    result: TensorDesc,
    weight: TensorDesc,
    strides: list[int],
    pads: list[int],
    holes: list[int],
) -> list[int]:
    """The borders at the end with which a convolution of `data` has the sizes of `result`."""
    rows = zip(data.shape[2:], result.shape[2:], weight.shape[2:], strides, pads, holes, strict=True)
    ends = [(out - 1) * s + (k - 1) * h + 1 - size - low for size, out, k, s, low, h in rows]
    return [max(e, 0) for e in ends]
