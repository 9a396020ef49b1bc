"""Softmax and the normalisations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import tbe
from ge.ir.types import FLOATS, numpy_dtype
from ge.ir.values import constant_of, desc_of
from ge.ops.aten import AtenNode, aten
from ge.ops.base import Attr, Input, NodeView, Operator, Output, Pattern, fail, register
from ge.ops.dataflow import Dataflow, Order, Part, Reordered, Sliced
from ge.ops.dataflow import OverAxes as Along
from ge.ops.math.checks import in_range
from ge.ops.math.reduce import Reduction, mean, normal_axes, widened
from ge.ops.plugins import Node, Results, Unsupported, plugin
from ge.ops.traits import Precision, Sign

# -- softmax ------------------------------------------------------------------------------------------------


class OverAxes(Operator):
    """A normalisation over some axes."""

    x = Input("T", FLOATS)
    y = Output("T")
    axes = Attr(list, (-1,))
    pattern = Pattern.REDUCE
    dataflow = Along()

    verify = Reduction.verify
    precision = Precision(sensitive=True)

    @staticmethod
    def flops(op: NodeView) -> int:
        return 5 * op.inputs[0].size  # type: ignore[union-attr]


def _shifted(op: NodeView, x: tbe.Tensor) -> tuple[tbe.Tensor, tuple[int, ...]]:
    """x minus its maximum over the axes, so that exp does not overflow."""
    axes = normal_axes(op.axes, len(x.shape))
    wide = widened(x)
    return wide - tbe.reduce("max", wide, axes, True), axes


@register
class Softmax(OverAxes):
    """exp(x) / sum(exp(x)) over axes."""

    sign = Sign.NON_NEGATIVE

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        shifted, axes = _shifted(op, x)
        exp = tbe.unary("exp", shifted)
        return tbe.cast(exp / tbe.reduce("sum", exp, axes, True), x.dtype)


@register
class LogSoftmax(OverAxes):
    """log(softmax(x)) over axes."""

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        shifted, axes = _shifted(op, x)
        total = tbe.reduce("sum", tbe.unary("exp", shifted), axes, True)
        return tbe.cast(shifted - tbe.unary("log", total), x.dtype)


@register
class Hardmax(Operator):
    """1 at the first maximum along axis, 0 elsewhere."""

    x = Input("T", FLOATS)
    y = Output("T")
    axis = Attr(int, -1)
    pattern = Pattern.REDUCE
    dataflow = Along("axis")
    piecewise_constant = True

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        axis = op.axis % len(x.shape)
        best = tbe.reduce("argmax", x, (axis,), True)
        return tbe.cast(tbe.binary("eq", tbe.iota(x.shape, axis, "int64"), best), x.dtype)


@plugin(onnx=["Softmax", "LogSoftmax"])
def _softmax_flattened(n: Node) -> Results:
    """Before version 13 all axes from `axis` on are normalised together."""
    rank = n.desc().rank
    axis = int(n.attr("axis", 1)) % rank if rank else 0
    return n.op(n.type, n.inputs[0], axes=list(range(axis, rank)))


@plugin(onnx=["Softmax", "LogSoftmax"], since=13)
def _softmax(n: Node) -> Results:
    return n.op(n.type, n.inputs[0], axes=[int(n.attr("axis", -1))])


@plugin(onnx="Hardmax")
def _hardmax_flattened(n: Node) -> Results:
    shape = n.desc().shape
    axis = int(n.attr("axis", 1)) % len(shape)
    rows, columns = _split_product(shape, axis)
    flat = n.op("Reshape", n.inputs[0], shape=[rows, columns])
    return n.op("Reshape", n.op("Hardmax", flat, axis=1), shape=list(shape))


@plugin(onnx="Hardmax", since=13)
def _hardmax(n: Node) -> Results:
    return n.op("Hardmax", n.inputs[0], axis=int(n.attr("axis", -1)))


def _split_product(shape: Sequence[int], axis: int) -> tuple[int, int]:
    rows = columns = 1
    for index, extent in enumerate(shape):
        rows, columns = (rows * extent, columns) if index < axis else (rows, columns * extent)
    return rows, columns


# -- normalisations ----------------------------------------------------------------------------------------


def _standardised(x: tbe.Tensor, axes: tuple[int, ...], epsilon: float) -> tbe.Tensor:
    """x with mean 0 and variance 1 over axes."""
    centred = x - mean(x, axes)
    variance = mean(tbe.unary("square", centred), axes)
    return centred * tbe.unary("rsqrt", variance + epsilon)


def _per_channel(x: tbe.Tensor, rank: int, axis: int) -> tbe.Tensor:
    """A vector of channels, widened and shaped to broadcast along a channel axis."""
    return tbe.reshape(widened(x), tuple(x.shape[0] if i == axis else 1 for i in range(rank)))


@register
class LayerNorm(Operator):
    """x with mean 0 and variance 1 over axes, scaled and shifted; 16-bit floats are computed in float32."""

    x = Input("T", FLOATS)
    scale = Input("S", FLOATS, optional=True)
    bias = Input("S", FLOATS, optional=True)
    y = Output("T")
    axes = Attr(list, (-1,))
    epsilon = Attr(float, 1e-5)
    pattern = Pattern.REDUCE
    dataflow = Along(reorders=False)

    verify = Reduction.verify
    precision = Precision(sensitive=True, normalises=True)

    @staticmethod
    def compute(
        op: NodeView, x: tbe.Tensor, scale: tbe.Tensor | None = None, bias: tbe.Tensor | None = None
    ) -> tbe.Tensor:
        wide = widened(x)
        y = _standardised(wide, normal_axes(op.axes, len(x.shape)), op.epsilon)
        y = y if scale is None else y * tbe.cast(scale, wide.dtype)
        y = y if bias is None else y + tbe.cast(bias, wide.dtype)
        return tbe.cast(y, x.dtype)

    @staticmethod
    def flops(op: NodeView) -> int:
        return 8 * op.inputs[0].size  # type: ignore[union-attr]


@register
class RmsNorm(Operator):
    """x divided by its root mean square over axes, then scaled; 16-bit floats are computed in float32."""

    x = Input("T", FLOATS)
    scale = Input("S", FLOATS, optional=True)
    y = Output("T")
    axes = Attr(list, (-1,))
    epsilon = Attr(float, 1e-5)
    pattern = Pattern.REDUCE
    dataflow = Along(reorders=False)

    verify = Reduction.verify
    precision = Precision(sensitive=True, normalises=True)

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor, scale: tbe.Tensor | None = None) -> tbe.Tensor:
        wide = widened(x)
        axes = normal_axes(op.axes, len(x.shape))
        y = wide * tbe.unary("rsqrt", mean(tbe.unary("square", wide), axes) + op.epsilon)
        y = y if scale is None else y * tbe.cast(scale, wide.dtype)
        return tbe.cast(y, x.dtype)

    @staticmethod
    def flops(op: NodeView) -> int:
        return 5 * op.inputs[0].size  # type: ignore[union-attr]


class PerChannel(Dataflow):
    """Channels have their own scales; rows of the batch are independent."""

    def slice(self, op: NodeView, part: Part) -> Sliced | None:
        return Sliced({0: part}) if part.axis == 0 and op.channel_axis % op.outputs[0].rank else None

    def reorder(self, op: NodeView, order: Order) -> Reordered | None:
        if order.perm[0] != 0:
            return None
        return Reordered(order.perm, {"channel_axis": order.axis(op.channel_axis)}, first_only=True)


class ChannelNorm(Operator):
    """A normalisation with one scale and bias a channel."""

    x = Input("T", FLOATS)
    scale = Input("S", FLOATS)
    bias = Input("S", FLOATS)
    y = Output("T")
    epsilon = Attr(float, 1e-5)
    channel_axis = Attr(int, 1)
    dataflow = PerChannel()

    @staticmethod
    def verify(op: NodeView) -> None:
        desc = op.inputs[0]
        assert desc is not None
        if not -desc.rank <= op.channel_axis < desc.rank:
            raise fail(op, f"channel_axis {op.channel_axis} is out of range for {desc}")
        channels = desc.shape[op.channel_axis]
        for index in range(1, len(op.inputs)):
            found = op.inputs[index]
            if found is not None and found.shape != (channels,):
                raise fail(op, f"input {index} is {found} where a vector of {channels} channels is expected")

    @staticmethod
    def flops(op: NodeView) -> int:
        return 8 * op.inputs[0].size  # type: ignore[union-attr]


@register
class BatchNorm(ChannelNorm):
    """(x - mean) / sqrt(var + epsilon) * scale + bias, with given statistics a channel."""

    mean = Input("S", FLOATS)
    var = Input("S", FLOATS)
    pattern = Pattern.BROADCAST

    @staticmethod
    def compute(
        op: NodeView, x: tbe.Tensor, scale: tbe.Tensor, bias: tbe.Tensor, mean: tbe.Tensor, var: tbe.Tensor
    ) -> tbe.Tensor:
        rank, axis = len(x.shape), op.channel_axis % len(x.shape)
        wide = widened(x)
        scale, bias, mean, var = (tbe.cast(widened(v), wide.dtype) for v in (scale, bias, mean, var))
        factor = scale * tbe.unary("rsqrt", var + op.epsilon)
        centred = wide - _per_channel(mean, rank, axis)
        return tbe.cast(centred * _per_channel(factor, rank, axis) + _per_channel(bias, rank, axis), x.dtype)

    @staticmethod
    def flops(op: NodeView) -> int:
        return 2 * op.inputs[0].size  # type: ignore[union-attr]


@register
class InstanceNorm(ChannelNorm):
    """Each channel of each sample with mean 0 and variance 1, then scaled and shifted a channel."""

    pattern = Pattern.REDUCE

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor, scale: tbe.Tensor, bias: tbe.Tensor) -> tbe.Tensor:
        rank, axis = len(x.shape), op.channel_axis % len(x.shape)
        axes = tuple(i for i in range(1, rank) if i != axis)
        y = _standardised(widened(x), axes, op.epsilon)
        scale, bias = (tbe.cast(widened(v), y.dtype) for v in (scale, bias))
        return tbe.cast(y * _per_channel(scale, rank, axis) + _per_channel(bias, rank, axis), x.dtype)


@register
class GroupNorm(ChannelNorm):
    """Groups of channels with mean 0 and variance 1, then scaled and shifted a channel."""

    groups = Attr(int)
    pattern = Pattern.REDUCE

    @staticmethod
    def verify(op: NodeView) -> None:
        ChannelNorm.verify(op)
        channels = op.inputs[0].shape[op.channel_axis]  # type: ignore[union-attr]
        if op.groups < 1 or channels % op.groups:
            raise fail(op, f"{channels} channels do not divide into {op.groups} groups")

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor, scale: tbe.Tensor, bias: tbe.Tensor) -> tbe.Tensor:
        rank, axis = len(x.shape), op.channel_axis % len(x.shape)
        size = x.shape[axis] // op.groups
        grouped = tbe.reshape(widened(x), (*x.shape[:axis], op.groups, size, *x.shape[axis + 1 :]))
        axes = tuple(i for i in range(1, rank + 1) if i != axis)
        y = tbe.reshape(_standardised(grouped, axes, op.epsilon), x.shape)
        scale, bias = (tbe.cast(widened(v), y.dtype) for v in (scale, bias))
        return tbe.cast(y * _per_channel(scale, rank, axis) + _per_channel(bias, rank, axis), x.dtype)


@register
class LpNormalize(Operator):
    """x divided by its p-norm along axis; where the norm is 0 the result is 0."""

    x = Input("T", FLOATS)
    y = Output("T")
    p = Attr(int, 2, choices=(1, 2))
    axis = Attr(int, -1)
    pattern = Pattern.REDUCE
    dataflow = Along("axis")

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        wide, axes = widened(x), (op.axis % len(x.shape),)
        if op.p == 1:
            norm = tbe.reduce("sum", tbe.unary("abs", wide), axes, True)
        else:
            norm = tbe.unary("sqrt", tbe.reduce("sum", tbe.unary("square", wide), axes, True))
        return tbe.cast(tbe.select(tbe.binary("eq", norm, 0), 0, wide / norm), x.dtype)


# -- ONNX --------------------------------------------------------------------------------------------------


@plugin(onnx="LayerNormalization")
def _layer_norm(n: Node) -> Results:
    desc = n.desc()
    axes = list(range(int(n.attr("axis", -1)) % desc.rank, desc.rank))
    epsilon = float(n.attr("epsilon", 1e-5))
    y = n.op("LayerNorm", *n.inputs, axes=axes, epsilon=epsilon)
    if n.outputs == 1:
        return y
    x = n.inputs[0] if desc.dtype in ("float32", "float64") else n.op("Cast", n.inputs[0], to="float32")
    average = n.op("ReduceMean", x, axes=axes, keepdims=True)
    variance = n.op("ReduceMean", n.op("SquaredDifference", x, average), axes=axes, keepdims=True)
    return y, average, n.op("Rsqrt", n.op("Add", variance, epsilon))


@plugin(onnx=["RMSNormalization", "SimplifiedLayerNormalization"])
def _rms_norm(n: Node) -> Results:
    rank = n.desc().rank
    axes = list(range(int(n.attr("axis", -1)) % rank, rank))
    return n.op("RmsNorm", *n.inputs, axes=axes, epsilon=float(n.attr("epsilon", 1e-5)))


@plugin(onnx="BatchNormalization")
def _batch_norm(n: Node) -> Results:
    """The inference form; the training form (since version 14) also returns the running statistics."""
    epsilon = float(n.attr("epsilon", 1e-5))
    x, scale, bias, average, variance = n.inputs[:5]
    if n.version < 9 and not n.attr("spatial", 1):
        raise Unsupported(
            "BatchNormalization with spatial=0 is not supported", "export with operator set 9 or newer"
        )
    if not n.attr("training_mode", 0):
        if n.outputs > 1:
            raise Unsupported(
                "BatchNormalization in training form of operator set 13 or older is not supported",
                "export the model in inference mode",
            )
        return n.op("BatchNorm", x, scale, bias, average, variance, epsilon=epsilon)
    return _batch_norm_training(n, epsilon)


def _batch_norm_training(n: Node, epsilon: float) -> Results:
    x, scale, bias, average, variance = n.inputs[:5]
    axes = [i for i in range(n.desc().rank) if i != 1]
    momentum = float(n.attr("momentum", 0.9))
    batch_mean = n.op("ReduceMean", x, axes=axes)
    centre = n.op("ReduceMean", x, axes=axes, keepdims=True)
    batch_var = n.op("ReduceMean", n.op("SquaredDifference", x, centre), axes=axes)

    def moved(old: Any, new: Any) -> Any:
        kept = n.op("Mul", old, momentum)
        return n.op("Add", kept, n.op("Mul", new, 1 - momentum))

    y = n.op("BatchNorm", x, scale, bias, batch_mean, batch_var, epsilon=epsilon)
    return (y, moved(average, batch_mean), moved(variance, batch_var))[: n.outputs]


@plugin(onnx="InstanceNormalization")
def _instance_norm(n: Node) -> Results:
    return n.op("InstanceNorm", *n.inputs, epsilon=float(n.attr("epsilon", 1e-5)))


@plugin(onnx="GroupNormalization")
def _group_norm(n: Node) -> Results:
    """Up to version 20 scale and bias are per group, later per channel."""
    x, scale, bias = n.inputs[:3]
    groups, channels = int(n.attr("num_groups")), n.desc().shape[1]
    if n.version < 21 and groups and not channels % groups:
        scale, bias = (_repeated(n, v, channels // groups) for v in (scale, bias))
    return n.op("GroupNorm", x, scale, bias, groups=groups, epsilon=float(n.attr("epsilon", 1e-5)))


def _repeated(n: Node, vector: Any, times: int) -> Any:
    count = int(vector.shape[0])
    column = n.op("Reshape", vector, shape=[count, 1])
    return n.op("Reshape", n.op("BroadcastTo", column, shape=[count, times]), shape=[count * times])


@plugin(onnx="LpNormalization")
def _lp_normalize(n: Node) -> Results:
    return n.op("LpNormalize", n.inputs[0], p=int(n.attr("p", 2)), axis=int(n.attr("axis", -1)))


# -- TensorFlow --------------------------------------------------------------------------------------------


@plugin(tensorflow=["Softmax", "LogSoftmax"])
def _softmax_tf(n: Node) -> Results:
    return n.op(n.type, n.inputs[0], axes=[-1])


_BATCH_NORM_EPSILON = 1e-4  # TensorFlow's default


@plugin(tensorflow=["FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3", "_FusedBatchNormEx"])
def _fused_batch_norm(n: Node) -> Results:
    """With given statistics, one normalisation; in training, batch statistics are computed first."""
    x, scale, offset = n.inputs[:3]
    rank = n.desc().rank
    last = str(n.attr("data_format", "NHWC")).endswith("C")
    attrs = {
        "epsilon": float(n.attr("epsilon", _BATCH_NORM_EPSILON)),
        "channel_axis": rank - 1 if last else 1,
    }
    if bool(n.attr("is_training", True)):
        return _batch_statistics(n, attrs)
    mean, variance = n.inputs[3], n.inputs[4]
    y = n.op("BatchNorm", x, scale, offset, mean, variance, **attrs)
    y = _batch_norm_activation(n, y)
    return [y, mean, variance, mean, variance, n.builder.constant(np.zeros(0, np.float32))]


def _batch_norm_activation(n: Node, y: Any) -> Any:
    """The activation of _FusedBatchNormEx after the normalisation."""
    if int(n.attr("num_side_inputs", 0)):
        y = n.op("Add", y, n.inputs[5])
    mode = str(n.attr("activation_mode", "Identity"))
    if mode not in ("Identity", "Relu"):
        raise Unsupported(f"the activation {mode} of a fused batch normalisation is unknown")
    return n.op("Relu", y) if mode == "Relu" else y


def _batch_statistics(n: Node, attrs: dict[str, Any]) -> Results:
    """Normalisation by the batch's own mean and variance, and the resulting running statistics."""
    x, scale, offset = n.inputs[:3]
    desc = n.desc()
    axis = attrs["channel_axis"]
    axes = [i for i in range(desc.rank) if i != axis]
    wide = x if desc.dtype in ("float32", "float64") else n.op("Cast", x, to="float32")
    mean = n.op("ReduceMean", wide, axes=axes, keepdims=True)
    variance = n.op("ReduceMean", n.op("Square", n.op("Sub", wide, mean)), axes=axes)
    mean = n.op("Reshape", mean, shape=[desc.shape[axis]])
    y = _batch_norm_activation(n, n.op("BatchNorm", x, scale, offset, mean, variance, **attrs))
    count = desc.size // max(desc.shape[axis], 1)
    unbiased = n.op("Mul", variance, count / max(count - 1, 1))
    factor = float(n.attr("exponential_avg_factor", 1.0))
    running = [mean, unbiased]
    if factor != 1.0:
        running = [
            n.op("Add", n.op("Mul", old, 1.0 - factor), n.op("Mul", new, factor))
            for old, new in zip(n.inputs[3:5], running, strict=True)
        ]
    return [y, *running, mean, variance, n.builder.constant(np.zeros(0, np.float32))]


@plugin(tensorflow="SoftmaxCrossEntropyWithLogits")
def _softmax_cross_entropy(n: Node) -> Results:
    """The loss of each row, and its gradient with respect to the logits."""
    logits, labels = n.inputs[0], n.inputs[1]
    shape = list(np.broadcast_shapes(n.desc(0).shape, n.desc(1).shape))
    logits, labels = (
        v if v is None or list(desc_of(v).shape) == shape else n.op("BroadcastTo", v, shape=shape)
        for v in (logits, labels)
    )
    loss = n.op(
        "Neg", n.op("ReduceSum", n.op("Mul", labels, n.op("LogSoftmax", logits, axes=[-1])), axes=[-1])
    )
    return [loss, n.op("Sub", n.op("Softmax", logits, axes=[-1]), labels)]


@plugin(tensorflow="SparseSoftmaxCrossEntropyWithLogits")
def _sparse_softmax_cross_entropy(n: Node) -> Results:
    """The same for labels that are class numbers; logits of other classes may be -inf."""
    logits, desc = n.inputs[0], n.desc()
    one, zero = (np.asarray(v, numpy_dtype(desc.dtype)) for v in (1, 0))
    numbers = in_range(n.builder, n.inputs[1], desc.shape[-1:], "labels")
    labels = n.op("OneHot", numbers, one, zero, depth=desc.shape[-1])
    own = n.op("Select", n.op("Equal", labels, one), n.op("LogSoftmax", logits, axes=[-1]), zero)
    loss = n.op("Neg", n.op("ReduceSum", own, axes=[-1]))
    return [loss, n.op("Sub", n.op("Softmax", logits, axes=[-1]), labels)]


@plugin(tensorflow=["FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3"])
def _fused_batch_norm_gradient(n: Node) -> Results:
    """The gradients with respect to input, scale and offset, for batch statistics or given ones."""
    gradient, x, scale, mean, variance = n.inputs[:5]
    desc = n.desc(1)
    axis = desc.rank - 1 if str(n.attr("data_format", "NHWC")).endswith("C") else 1
    axes = [i for i in range(desc.rank) if i != axis]
    column = [desc.shape[axis] if i == axis else 1 for i in range(desc.rank)]
    wide = desc.dtype in ("float32", "float64")
    g, v = (t if wide else n.op("Cast", t, to="float32") for t in (gradient, x))
    factor = n.op("Rsqrt", n.op("Add", variance, float(n.attr("epsilon", _BATCH_NORM_EPSILON))))
    centred = n.op("Sub", v, n.op("Reshape", mean, shape=column))
    by_scale = n.op("Mul", n.op("ReduceSum", n.op("Mul", g, centred), axes=axes), factor)
    by_offset = n.op("ReduceSum", g, axes=axes)
    if bool(n.attr("is_training", True)):
        count = desc.size // max(desc.shape[axis], 1)
        level = n.op("Reshape", n.op("Mul", by_offset, 1 / count), shape=column)
        slope = n.op("Reshape", n.op("Mul", n.op("Mul", by_scale, factor), 1 / count), shape=column)
        g = n.op("Sub", n.op("Sub", g, level), n.op("Mul", centred, slope))
    y = n.op("Mul", g, n.op("Reshape", n.op("Mul", scale, factor), shape=column))
    y = y if wide else n.op("Cast", y, to=desc.dtype)
    empty = n.builder.constant(np.zeros(0, np.float32))
    return [y, by_scale, by_offset, empty, empty]


# -- ATen ------------------------------------------------------------------------------------------------


def _statistics(n: AtenNode, x: Any, axes: list[int], epsilon: float) -> tuple[Any, Any, Any]:
    """x with mean 0 and variance 1 over axes, the mean, and the inverse deviation, axes kept."""
    mean = n.op("ReduceMean", x, axes=axes, keepdims=True)
    centred = n.op("Sub", x, mean)
    variance = n.op("ReduceMean", n.op("Square", centred), axes=axes, keepdims=True)
    inverse = n.op("Rsqrt", n.op("Add", variance, epsilon))
    return n.op("Mul", centred, inverse), mean, inverse


def _affine(n: AtenNode, y: Any, scale: Any, bias: Any, shape: Sequence[int] | None = None) -> Any:
    """Scaled and shifted, the factors brought to a shape that broadcasts."""
    dtype = desc_of(y).dtype
    for type_, factor in (("Mul", scale), ("Add", bias)):
        if factor is not None:
            factor = n.cast(factor, dtype)
            y = n.op(type_, y, factor if shape is None else n.shaped(factor, shape))
    return y


@aten("native_layer_norm")
def _layer_norm_aten(n: AtenNode) -> Any:
    x, axes = n.arg("input"), len(n.arg("normalized_shape"))
    rank = desc_of(x).rank
    over = list(range(rank - axes, rank))
    epsilon = float(n.arg("eps"))
    scale, bias = n.arg("weight"), n.arg("bias")
    if not desc_of(x).size:
        raise Unsupported("a normalisation of an empty tensor")
    if scale is not None and bias is not None:
        y = n.op("LayerNorm", x, scale, bias, axes=over, epsilon=epsilon)
    else:
        y = n.op("LayerNorm", x, axes=over, epsilon=epsilon)
        y = n.back(_affine(n, n.wide(y), scale, bias)) if scale is not None or bias is not None else y
    _, mean, inverse = _statistics(n, n.wide(x), over, epsilon)
    return [y, n.back(n.shaped(mean, n.out(1).shape), 1), n.back(n.shaped(inverse, n.out(2).shape), 2)]


@aten("native_layer_norm_backward")
def _layer_norm_backward(n: AtenNode) -> Any:
    x, axes = n.arg("input"), len(n.arg("normalized_shape"))
    rank, scale = desc_of(x).rank, n.arg("weight")
    wanted = [bool(kept) and n.results[i] is not None for i, kept in enumerate(n.arg("output_mask"))]
    if not desc_of(x).size:
        raise Unsupported("a normalisation of an empty tensor")
    if wanted[1] and scale is None:
        raise Unsupported("the gradient of a scale that is not given")
    if not any(wanted):
        return [None, None, None]
    over = list(range(rank - axes, rank))
    values = [n.cast(n.arg("grad_out"), desc_of(x).dtype), x, n.arg("mean"), n.arg("rstd"), scale]
    found = n.op("LayerNormGrad", *values, axes=over, wanted=[int(w) for w in wanted])
    return [n.back(v, i) if w else None for i, (v, w) in enumerate(zip(found, wanted, strict=True))]


@aten("native_group_norm")
def _group_norm_aten(n: AtenNode) -> Any:
    x, groups, epsilon = n.arg("input"), int(n.arg("group")), float(n.arg("eps"))
    shape, channels = desc_of(x).shape, desc_of(x).shape[1]
    if not desc_of(x).size:
        raise Unsupported("a normalisation of an empty tensor")
    grouped = n.shaped(n.wide(x), [shape[0], groups, math.prod(shape[1:]) // groups])
    flat, mean, inverse = _statistics(n, grouped, [2], epsilon)
    factor_shape = [channels] + [1] * (len(shape) - 2)
    y = _affine(n, n.shaped(flat, shape), n.arg("weight"), n.arg("bias"), factor_shape)
    return [
        n.back(y),
        n.back(n.shaped(mean, n.out(1).shape), 1),
        n.back(n.shaped(inverse, n.out(2).shape), 2),
    ]


@aten("_native_batch_norm_legit_no_training")
def _batch_norm_inference(n: AtenNode) -> Any:
    x = n.arg("input")
    mean, var = n.arg("running_mean"), n.arg("running_var")
    channels = desc_of(x).shape[1]
    dtype = desc_of(mean).dtype
    one = n.builder.constant(np.ones(channels, numpy_dtype(dtype)))
    zero = n.builder.constant(np.zeros(channels, numpy_dtype(dtype)))
    scale, bias = n.arg("weight", one), n.arg("bias", zero)
    scale, bias = n.cast(scale, dtype), n.cast(bias, dtype)
    y = _into_convolution(n, x, scale, bias, mean, var)
    if y is None:
        y = n.op("BatchNorm", x, scale, bias, mean, var, epsilon=float(n.arg("eps")), channel_axis=1)
    empty = [n.filled(0, d) if d is not None else None for d in n.results[1:]]
    return [y, *empty]


def _into_convolution(n: AtenNode, x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    """A normalisation by constants as part of a 16-bit convolution before it; None where that is not possible.

    Passes fold those of float32. Here sums stay in float32 until after the normalisation, which rounds once where
    the framework rounds twice; the weights are rounded anew.
    """
    node = x.producer()
    if desc_of(x).dtype not in ("bfloat16", "float16") or node is None or node.op_type != "Conv":
        return None
    weight, old = constant_of(node.inputs[1]), np.zeros((), np.float32)
    arrays = [constant_of(v) for v in (scale, bias, mean, var)]
    if weight is None or any(a is None for a in arrays):
        return None
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        given = constant_of(node.inputs[2])
        if given is None:
            return None
        old = given.astype(np.float32)
    scales, shifts, means, variances = (np.asarray(a, np.float32) for a in arrays)
    factor = scales / np.sqrt(variances + float(n.arg("eps")))
    scaled = (weight.astype(np.float32) * factor.reshape(-1, *(1,) * (weight.ndim - 1))).astype(weight.dtype)
    moved = (shifts + (old - means) * factor).astype(np.float32)
    attrs = {k: v for k, v in NodeView.of(node).attrs.items() if v is not None}
    return n.op("Conv", node.inputs[0], scaled, moved, **attrs)


@aten("_native_batch_norm_legit.default", "_native_batch_norm_legit.no_stats", "native_batch_norm",
      "_native_batch_norm_legit_functional", "_batch_norm_with_update_functional")  # fmt: skip
def _batch_norm_training_aten(n: AtenNode) -> Any:
    """Statistics of the batch; the functional forms also give the new running ones."""
    x = n.arg("input")
    training = n.attrs.get("training", True)
    if not training:
        return _batch_norm_given(n)
    desc = desc_of(x)
    axes = [0, *range(2, desc.rank)]
    count = math.prod(desc.shape[a] for a in axes)
    if not desc.size:
        raise Unsupported("a normalisation of an empty tensor")
    epsilon, momentum = float(n.arg("eps")), float(n.arg("momentum"))
    wide = n.wide(x)
    _, mean, inverse = _statistics(n, wide, axes, epsilon)
    factor_shape = [1, desc.shape[1]] + [1] * (desc.rank - 2)
    dtype = desc_of(wide).dtype
    scale, bias = (
        None if v is None else n.shaped(n.cast(v, dtype), factor_shape)
        for v in (n.arg("weight"), n.arg("bias"))
    )
    # One factor and one shift a channel, as the framework computes it: statistics are not worked out again.
    factor = inverse if scale is None else n.op("Mul", inverse, scale)
    shift = n.op("Neg", n.op("Mul", mean, factor))
    shift = shift if bias is None else n.op("Add", shift, bias)
    y = n.back(n.op("Add", n.op("Mul", wide, factor), shift))
    results = [y, n.back(n.shaped(mean, n.out(1).shape), 1), n.back(n.shaped(inverse, n.out(2).shape), 2)]
    if len(n.results) == 3:
        if n.arg("running_mean") is not None:
            raise Unsupported("running statistics written in place")
        return results
    centred = n.op("Sub", wide, mean)
    variance = n.op("ReduceMean", n.op("Square", centred), axes=axes, keepdims=True)
    unbiased = n.op("Mul", variance, count / (count - 1)) if count > 1 else variance
    extra = []
    for index, name, new in ((0, "running_mean", mean), (1, "running_var", unbiased)):
        old = n.arg(name)
        position = len(n.results) - 2 + index
        fresh = n.cast(n.shaped(new, desc_of(old).shape), desc_of(old).dtype)
        mixed = n.op("Add", n.op("Mul", fresh, momentum), n.op("Mul", old, 1 - momentum))
        extra.append(n.back(mixed, position))
    reserve = [n.filled(0, n.out(3))] if len(n.results) == 6 else []
    return [*results, *reserve, *extra]


@aten("native_batch_norm_backward")
def _batch_norm_backward(n: AtenNode) -> Any:
    """Two sums a channel; the gradient of the input is then a sum of both tensors with factors a channel."""
    g, x = n.wide(n.arg("grad_out")), n.wide(n.arg("input"))
    desc, dtype = desc_of(x), desc_of(x).dtype
    channels, axes = desc.shape[1], [0, *range(2, desc.rank)]
    shape = [1, channels] + [1] * (desc.rank - 2)
    count = math.prod(desc.shape[a] for a in axes)
    if not desc.size:
        raise Unsupported("a normalisation of an empty tensor")
    training = bool(n.arg("train"))
    mean = n.shaped(n.cast(n.arg("save_mean" if training else "running_mean"), dtype), shape)
    if training:
        inverse = n.shaped(n.cast(n.arg("save_invstd"), dtype), shape)
    else:
        variance = n.shaped(n.cast(n.arg("running_var"), dtype), shape)
        inverse = n.op("Rsqrt", n.op("Add", variance, float(n.arg("eps"))))
    dot = n.op("ReduceSum", n.op("Mul", g, n.op("Sub", x, mean)), axes=axes, keepdims=True)
    total = n.op("ReduceSum", g, axes=axes, keepdims=True)
    weight = n.arg("weight")
    first = inverse if weight is None else n.op("Mul", inverse, n.shaped(n.cast(weight, dtype), shape))
    by_input = n.op("Mul", g, first)
    if training:
        slope = n.op("Mul", n.op("Mul", dot, n.op("Square", inverse)), 1 / count)
        second = n.op("Neg", n.op("Mul", slope, first))
        third = n.op("Mul", n.op("Sub", n.op("Mul", mean, slope), n.op("Mul", total, 1 / count)), first)
        by_input = n.op("Add", n.op("Add", by_input, n.op("Mul", x, second)), third)
    found = [by_input, n.shaped(n.op("Mul", dot, inverse), [channels]), n.shaped(total, [channels])]
    mask = n.arg("output_mask")
    wanted = [bool(kept) and n.results[i] is not None for i, kept in enumerate(mask)]
    return [n.back(v, i) if wanted[i] else None for i, v in enumerate(found)]


def _batch_norm_given(n: AtenNode) -> Any:
    y, *_ = _batch_norm_inference(n)
    rest = [n.filled(0, d) if d is not None else None for d in n.results[1:3]]
    if len(n.results) > 3:
        old = [n.op("Identity", n.arg("running_mean")), n.op("Identity", n.arg("running_var"))]
        reserve = [n.filled(0, n.out(3))] if len(n.results) == 6 else []
        rest = [*rest, *reserve, *old]
    return [y, *rest]
