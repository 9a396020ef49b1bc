"""Pooling and local response normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import tbe
from ge.ir.types import FLOATS, NUMBERS, TensorDesc, numpy_dtype
from ge.ir.values import desc_of
from ge.ops.aten import AtenNode, aten
from ge.ops.base import Attr, Input, NodeView, Operator, Output, Pattern, fail, register
from ge.ops.math.checks import indices_of
from ge.ops.math.reduce import widened
from ge.ops.nn.spatial import (
    FORMATS,
    Images,
    Window,
    array_windows,
    channels_first_perm,
    channels_last_perm,
    expression_windows,
    onnx_window,
    per_axis,
    tf_format,
    tf_window,
)
from ge.ops.plugins import Node, Results, Unsupported, plugin
from ge.ops.traits import ImageFormat, Precision
from ge.ops.views import has_wide_rows
from ge.plan import Task, View


class Pooling(Operator):
    """A reduction over windows of space."""

    x = Input("T", NUMBERS)
    y = Output("T")
    kernel = Attr(list)
    strides = Attr(list, None)
    dilations = Attr(list, None)
    pads_begin = Attr(list, None)
    pads_end = Attr(list, None)
    data_format = Attr(str, "channels_first", choices=FORMATS)

    @staticmethod
    def verify(op: NodeView) -> None:
        desc = op.inputs[0]
        assert desc is not None
        if desc.rank != len(op.kernel) + 2:
            raise fail(op, f"a window of {len(op.kernel)} axes does not match {desc}")
        problem = Window.of(op.kernel, op).problem(_data_shape(op)[2:])
        if problem:
            raise fail(op, problem)

    @staticmethod
    def infer(op: NodeView) -> Any:
        data = _data_shape(op)
        first = (*data[:2], *Window.of(op.kernel, op).outputs(data[2:]))
        back = channels_last_perm(len(first), op.data_format)
        return TensorDesc(tuple(first[p] for p in back), op.inputs[0].dtype)  # type: ignore[union-attr]

    @staticmethod
    def refuse(op: NodeView) -> str:
        if len(op.kernel) > 3:
            return "more than 3 spatial axes"
        window = Window.of(op.kernel, op)
        wide = any(
            p >= e for p, e in zip(window.pads_begin + window.pads_end, window.extents * 2, strict=True)
        )
        return "a window is entirely in the border" if wide else ""

    @staticmethod
    def flops(op: NodeView) -> int:
        return op.outputs[0].size * math.prod(op.kernel)


def _data_shape(op: NodeView) -> tuple[int, ...]:
    desc = op.inputs[0]
    assert desc is not None
    return tuple(desc.shape[p] for p in channels_first_perm(desc.rank, op.data_format))


def _lowest(dtype: str) -> float | int:
    return -math.inf if dtype in FLOATS else int(np.iinfo(numpy_dtype(dtype)).min)


def _window_axes(rank: int) -> tuple[int, ...]:
    """The positions of the kernel's axes among those of windows over a tensor of this rank."""
    return tuple(range(rank, 2 * rank - 2))


def _task(op: NodeView, kind: str, inputs: Sequence[View], outputs: Sequence[View]) -> Task:
    order = channels_first_perm(len(inputs[0].shape), op.data_format)
    window = Window.of(op.kernel, op)
    attrs: dict[str, Any] = {
        "kind": kind,
        "kernel": list(window.kernel),
        "strides": list(window.strides),
        "dilations": list(window.dilations),
        "pads_begin": list(window.pads_begin),
        "pads_end": list(window.pads_end),
    }
    return Task(
        "pool",
        op.name,
        [inputs[0].permute(order)],
        [outputs[0].permute(order)],
        attrs,
        flops=Pooling.flops(op),
    )


@register
class MaxPool(Pooling):
    """The maximum of each window; borders do not count.

    Frameworks disagree on NaN in a window, and on -inf as its maximum: with `keeps_nan` that is the result, otherwise
    implementations may differ.
    """

    keeps_nan = Attr(bool, False)
    dataflow = Images()
    selects = True
    keeps_means = True
    precision = Precision(narrows=True)
    image_format = ImageFormat()
    strided_output = has_wide_rows

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        rank = len(x.shape)
        data = tbe.transpose(x, channels_first_perm(rank, op.data_format))
        views = expression_windows(data, Window.of(op.kernel, op), _lowest(x.dtype))
        y = tbe.reduce("max", views, _window_axes(rank))
        return tbe.transpose(y, channels_last_perm(rank, op.data_format))

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        x = np.asarray(arrays[0])
        data = x.transpose(channels_first_perm(x.ndim, op.data_format))
        views = array_windows(data, Window.of(op.kernel, op), _lowest(op.inputs[0].dtype))  # type: ignore[union-attr]
        y = views.max(axis=_window_axes(x.ndim))
        return [y.transpose(channels_last_perm(x.ndim, op.data_format))]

    @staticmethod
    def task(op: NodeView, inputs: list[View], outputs: list[View]) -> Task:
        task = _task(op, "max", inputs, outputs)
        if op.keeps_nan and op.inputs[0].dtype in FLOATS:  # type: ignore[union-attr]
            task.attrs["keeps_nan"] = True
        return task


def _inside_counts(shape: Sequence[int], sizes: Sequence[int], window: Window) -> Any:
    """The number of elements of each window inside the image: a product over the axes."""
    total: Any = None
    for axis, (size, kernel) in enumerate(zip(sizes, window.kernel, strict=True)):
        stride, hole, low = window.strides[axis], window.dilations[axis], window.pads_begin[axis]
        start = tbe.iota(shape, 2 + axis, "int32") * stride - low
        first = tbe.binary("max", (hole - 1 - start) // hole, 0)  # the first element at or after 0
        last = tbe.binary("min", (size - 1 - start) // hole, kernel - 1)
        count = last - first + 1
        total = count if total is None else total * count
    return total


@register
class AvgPool(Pooling):
    """The mean of each window; the border's elements count as zeros or not at all."""

    x = Input("T", FLOATS)
    count_include_pad = Attr(bool, False)
    keeps_means = True
    dataflow = Images()
    precision = Precision(narrows=True)
    image_format = ImageFormat()
    strided_output = has_wide_rows

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        rank, window = len(x.shape), Window.of(op.kernel, op)
        data = tbe.transpose(widened(x), channels_first_perm(rank, op.data_format))
        total = tbe.reduce("sum", expression_windows(data, window, 0), _window_axes(rank))
        if op.count_include_pad or not any((*window.pads_begin, *window.pads_end)):
            y = total * (1 / math.prod(window.kernel))
        else:
            y = total / tbe.cast(_inside_counts(total.shape, data.shape[2:], window), data.dtype)
        return tbe.cast(tbe.transpose(y, channels_last_perm(rank, op.data_format)), x.dtype)

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        x = np.asarray(arrays[0])
        wide = x.astype(np.float32) if x.dtype.itemsize == 2 else x
        data, window = wide.transpose(channels_first_perm(x.ndim, op.data_format)), Window.of(op.kernel, op)
        total = array_windows(data, window, 0).sum(axis=_window_axes(x.ndim))
        ones = np.ones((1, 1, *data.shape[2:]), data.dtype)
        count = array_windows(ones, window, 1 if op.count_include_pad else 0).sum(axis=_window_axes(x.ndim))
        with np.errstate(divide="ignore", invalid="ignore"):
            y = total / count
        return [y.transpose(channels_last_perm(x.ndim, op.data_format))]

    @staticmethod
    def task(op: NodeView, inputs: list[View], outputs: list[View]) -> Task:
        return _task(op, "avg_include" if op.count_include_pad else "avg_exclude", inputs, outputs)


@register
class MaxPoolIndices(Pooling):
    """The maximum of each window and where in the plane it was found (row-major, int64)."""

    indices = Output()
    pattern = Pattern.REDUCE

    @staticmethod
    def infer(op: NodeView) -> Sequence[TensorDesc]:
        y = Pooling.infer(op)
        return [y, TensorDesc(y.shape, "int64")]

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tuple[tbe.Tensor, tbe.Tensor]:
        rank, window = len(x.shape), Window.of(op.kernel, op)
        space = rank - 2
        data = tbe.transpose(x, channels_first_perm(rank, op.data_format))
        views = expression_windows(data, window, _lowest(x.dtype))
        y = tbe.reduce("max", views, _window_axes(rank))
        best = tbe.reduce("argmax", views, _window_axes(rank))
        plane = tbe.binary("mul", best, 0)
        for axis in range(space):
            inside = best // math.prod(window.kernel[axis + 1 :]) % window.kernel[axis]
            start = tbe.iota(best.shape, 2 + axis, "int64") * window.strides[axis] - window.pads_begin[axis]
            # A border comes first among equals where a window has nothing but the lowest value.
            hole = window.dilations[axis]
            inside = tbe.binary("max", inside, (hole - 1 - start) // hole)
            plane = plane * data.shape[2 + axis] + start + inside * hole
        back = channels_last_perm(rank, op.data_format)
        return tbe.transpose(y, back), tbe.transpose(plane, back)


MAX_NEIGHBOURS = 4096  # of a local normalisation; each is a term of an expression


@register
class Lrn(Operator):
    """x / (k + alpha / size * the sum of squares of `size` neighbouring channels) ** beta."""

    x = Input("T", FLOATS)
    y = Output("T")
    size = Attr(int)
    alpha = Attr(float, 1e-4)
    beta = Attr(float, 0.75)
    k = Attr(float, 1.0)
    data_format = Attr(str, "channels_first", choices=FORMATS)
    dataflow = Images()
    image_format = ImageFormat()

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        return op.inputs[0]  # type: ignore[return-value]

    @staticmethod
    def verify(op: NodeView) -> None:
        if not 0 < op.size <= MAX_NEIGHBOURS:
            raise fail(op, f"a sum over {op.size} channels", f"use a size in 1..{MAX_NEIGHBOURS}")

    @staticmethod
    def refuse(op: NodeView) -> str:
        rank = op.inputs[0].rank  # type: ignore[union-attr]
        return "" if op.size % 2 and rank == 4 else "the primitive takes images and odd sizes only"

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        rank = len(x.shape)
        axis = rank - 1 if op.data_format == FORMATS[1] else 1
        before, others = (op.size - 1) // 2, max(x.shape[axis] - 1, 0)
        before, after = min(before, others), min(op.size - 1 - before, others)
        wide = widened(x)
        low = tuple(before if i == axis else 0 for i in range(rank))
        high = tuple(after if i == axis else 0 for i in range(rank))
        squares = tbe.pad(tbe.unary("square", wide), low, high, 0)
        total: Any = None
        for offset in range(before + 1 + after):
            starts = tuple(offset if i == axis else 0 for i in range(rank))
            part = tbe.slice(squares, starts, (1,) * rank, x.shape)
            total = part if total is None else total + part
        return tbe.cast(wide / (total * (op.alpha / op.size) + op.k) ** op.beta, x.dtype)

    @staticmethod
    def task(op: NodeView, inputs: list[View], outputs: list[View]) -> Task:
        order = channels_first_perm(len(inputs[0].shape), op.data_format)
        attrs = {"size": op.size, "alpha": op.alpha, "beta": op.beta, "k": op.k}
        return Task("lrn", op.name, [inputs[0].permute(order)], [outputs[0].permute(order)], attrs)


# -- ONNX --------------------------------------------------------------------------------------------------


def _attrs_of(window: Window) -> dict[str, Any]:
    return {
        "kernel": list(window.kernel),
        "strides": list(window.strides),
        "dilations": list(window.dilations),
        "pads_begin": list(window.pads_begin),
        "pads_end": list(window.pads_end),
    }


def _windows_of(n: Node) -> tuple[Window, Window]:
    """The window as declared, and as it is applied (with the padding that ceil_mode adds)."""
    sizes = n.desc().shape[2:]
    given = onnx_window(n, n.attr("kernel_shape"), sizes)
    return given, given.ceiled(sizes) if n.attr("ceil_mode", 0) else given


@plugin(onnx="MaxPool")
def _max_pool(n: Node) -> Results:
    _, window = _windows_of(n)
    if n.outputs == 1:
        return n.op("MaxPool", n.inputs[0], **_attrs_of(window))
    y, plane = n.op("MaxPoolIndices", n.inputs[0], **_attrs_of(window))
    return y, _flat_indices(n, plane)


def _flat_indices(n: Node, plane: Any) -> Any:
    """Positions in the plane as positions in the whole tensor, with the plane in row- or column-major order."""
    shape = n.desc().shape
    area, sizes = math.prod(shape[2:]), shape[2:]
    if n.attr("storage_order", 0):
        turned = n.builder.constant(
            np.arange(area).reshape(sizes[::-1]).transpose().reshape(-1).astype(np.int64)
        )
        plane = n.op("Gather", turned, plane, axis=0)
    start = np.arange(shape[0] * shape[1], dtype=np.int64).reshape(*shape[:2], *(1,) * len(sizes)) * area
    return n.op("Add", plane, n.builder.constant(start))


@plugin(onnx="AveragePool")
def _average_pool(n: Node) -> Results:
    """If the padding counts but the part that ceil_mode adds does not, the padding becomes explicit zeros."""
    given, window = _windows_of(n)
    x: Any = n.inputs[0]
    include = bool(n.attr("count_include_pad", 0))
    if include and window != given:
        x = n.op("Pad", x, low=[0, 0, *given.pads_begin], high=[0, 0, *given.pads_end])
        rest = tuple(max(a - b, 0) for a, b in zip(window.pads_end, given.pads_end, strict=True))
        window = Window(window.kernel, window.strides, window.dilations, (0,) * len(rest), rest)
        include = False
    return n.op("AvgPool", x, count_include_pad=include, **_attrs_of(window))


@plugin(onnx="LpPool")
def _lp_pool(n: Node) -> Results:
    _, window = _windows_of(n)
    p = float(n.attr("p", 2))
    x = _wide_magnitudes(n)
    powers = n.op("Square", x) if p == 2 else n.op("Pow", x, p)
    average = n.op("AvgPool", powers, count_include_pad=True, **_attrs_of(window))
    total = n.op("Mul", average, float(math.prod(window.kernel)))
    return _narrowed(n, n.op("Sqrt", total) if p == 2 else n.op("Pow", total, 1 / p))


def _wide_magnitudes(n: Node) -> Any:
    """Absolute values whose powers do not overflow a half-precision type."""
    x = n.op("Abs", n.inputs[0])
    return n.op("Cast", x, to="float32") if n.desc().dtype in ("float16", "bfloat16") else x


def _narrowed(n: Node, y: Any) -> Any:
    """The result in the type of the input."""
    return n.op("Cast", y, to=n.desc().dtype) if n.desc().dtype in ("float16", "bfloat16") else y


@plugin(onnx=["GlobalAveragePool", "GlobalMaxPool"])
def _global_pool(n: Node) -> Results:
    type_ = "ReduceMean" if n.type == "GlobalAveragePool" else "ReduceMax"
    return n.op(type_, n.inputs[0], axes=list(range(2, n.desc().rank)), keepdims=True)


@plugin(onnx="GlobalLpPool")
def _global_lp_pool(n: Node) -> Results:
    p = float(n.attr("p", 2))
    powers = n.op("Pow", _wide_magnitudes(n), p)
    total = n.op("ReduceSum", powers, axes=list(range(2, n.desc().rank)), keepdims=True)
    return _narrowed(n, n.op("Pow", total, 1 / p))


@plugin(onnx="LRN")
def _lrn(n: Node) -> Results:
    defaults = {"alpha": 1e-4, "beta": 0.75}
    attrs = {k: float(n.attr(k, v)) for k, v in defaults.items()}
    return n.op("Lrn", n.inputs[0], size=int(n.attr("size")), k=float(n.attr("bias", 1.0)), **attrs)


@plugin(onnx="MaxUnpool")
def _max_unpool(n: Node) -> Results:
    """Scatter values back to where MaxPool found them, zeros elsewhere."""
    shape = n.desc().shape
    kernel = n.attr("kernel_shape")
    strides, pads = n.attr("strides") or [1] * len(kernel), n.attr("pads") or [0] * (2 * len(kernel))
    rank = len(kernel)
    inner = [
        (d - 1) * s - low - high + k
        for d, s, low, high, k in zip(shape[2:], strides, pads[:rank], pads[rank:], kernel, strict=True)
    ]
    target = n.ints(2, "output_shape") if n.input(2) is not None else [*shape[:2], *inner]
    if len(target) != len(shape):
        raise Unsupported(f"output_shape {target} of MaxUnpool does not match {n.desc()}")
    # Indices refer to the pooled tensor, of the inner sizes.
    size = math.prod([*shape[:2], *inner])
    zeros = n.op("BroadcastTo", n.builder.constant(np.zeros((), numpy_dtype(n.desc().dtype))), shape=[size])
    indices = n.op("Reshape", indices_of(n, n.inputs[1], [size], from_end=False), shape=[n.desc().size])
    updates = n.op("Reshape", n.inputs[0], shape=[n.desc().size])
    y = n.op("Reshape", n.op("ScatterElements", zeros, indices, updates, axis=0), shape=[*shape[:2], *inner])
    if list(target) == [*shape[:2], *inner]:
        return y
    high = [t - s for t, s in zip(target, [*shape[:2], *inner], strict=True)]
    if any(h < 0 for h in high):
        raise Unsupported(f"output_shape {target} of MaxUnpool is smaller than the pooled tensor {inner}")
    return n.op("Pad", y, low=[0] * len(high), high=high)


# -- TensorFlow --------------------------------------------------------------------------------------------


def _tf_pool(n: Node) -> tuple[Window, str]:
    """The window and data format of a pooling node; version 2 has them as inputs."""
    rank = n.desc().rank
    form, axes = tf_format(n, rank)
    as_inputs = n.type == "MaxPoolV2"
    kernel = n.ints(1, "ksize") if as_inputs else list(n.attr("ksize", []))
    strides = n.ints(2, "strides") if as_inputs else None
    if len(kernel) != rank or any(v != 1 for i, v in enumerate(kernel) if i not in axes):
        raise Unsupported(f"the window {kernel} of {n.type} reaches over batch or channels")
    return tf_window(n, [kernel[a] for a in axes], [n.desc().shape[a] for a in axes], axes, strides), form


@plugin(tensorflow=["MaxPool", "MaxPoolV2", "MaxPool3D"])
def _max_pool_tf(n: Node) -> Results:
    window, form = _tf_pool(n)
    return n.op("MaxPool", n.inputs[0], data_format=form, **_attrs_of(window))


@plugin(tensorflow=["AvgPool", "AvgPool3D"])
def _avg_pool_tf(n: Node) -> Results:
    window, form = _tf_pool(n)
    return n.op("AvgPool", n.inputs[0], data_format=form, count_include_pad=False, **_attrs_of(window))


@plugin(tensorflow="MaxPoolWithArgmax")
def _max_pool_with_argmax(n: Node) -> Results:
    """Positions refer to the flattened (H, W, C) sample, or to the whole batch."""
    window, form = _tf_pool(n)
    y, plane = n.op("MaxPoolIndices", n.inputs[0], data_format=form, **_attrs_of(window))
    batch, height, width, channels = n.desc().shape
    flat = n.op("Add", n.op("Mul", plane, channels), n.builder.constant(np.arange(channels, dtype=np.int64)))
    if bool(n.attr("include_batch_in_index", False)):
        start = np.arange(batch, dtype=np.int64).reshape(batch, 1, 1, 1) * (height * width * channels)
        flat = n.op("Add", flat, n.builder.constant(start))
    to = str(n.attr("Targmax", "int64"))
    return [y, flat if to == "int64" else n.op("Cast", flat, to=to)]


@plugin(tensorflow="LRN")
def _lrn_tf(n: Node) -> Results:
    """TensorFlow's alpha scales the sum itself, not its mean."""
    size = 2 * int(n.attr("depth_radius", 5)) + 1
    alpha, beta = float(n.attr("alpha", 1.0)), float(n.attr("beta", 0.5))
    k = float(n.attr("bias", 1.0))
    return n.op("Lrn", n.inputs[0], size=size, alpha=alpha * size, beta=beta, k=k, data_format=FORMATS[1])


# -- ATen ------------------------------------------------------------------------------------------------


def _window(n: AtenNode, x: TensorDesc) -> tuple[Window, Window]:
    """The window as it is written, and with the border that ceil_mode adds."""
    kernel = n.arg("kernel_size")
    space = {"1": 1, "2": 2, "3": 3}[next(c for c in n.type if c.isdigit())]
    kernel = per_axis(kernel, space)
    strides = per_axis(n.arg("stride") or kernel, space)
    pads = per_axis(n.arg("padding", [0]), space)
    holes = per_axis(n.arg("dilation", [1]), space)
    window = Window(tuple(kernel), tuple(strides), tuple(holes), tuple(pads), tuple(pads))
    return window, window.ceiled(x.shape[-space:]) if n.arg("ceil_mode") else window


def _window_attrs(window: Window) -> dict[str, Any]:
    names = ("kernel", "strides", "dilations", "pads_begin", "pads_end")
    return {name: list(getattr(window, name)) for name in names}


def _batched(n: AtenNode, x: Any, space: int) -> Any:
    """With a batch axis in front."""
    shape = desc_of(x).shape
    return x if len(shape) == space + 2 else n.shaped(x, [1, *shape])


@aten("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool_aten(n: AtenNode) -> Any:
    x = n.arg("self")
    if desc_of(x).dtype not in FLOATS:
        raise Unsupported("the maximum of whole numbers in windows")
    _, window = _window(n, desc_of(x))
    x = _batched(n, x, len(window.kernel))
    # The primitive; positions are dead where no gradient reads them.
    y = n.op("MaxPool", x, keeps_nan=True, **_window_attrs(window))
    _, places = n.op("MaxPoolIndices", x, **_window_attrs(window))
    return [n.shaped(y, n.out(0).shape), n.shaped(places, n.out(1).shape)]


@aten("max_pool1d", "max_pool2d", "max_pool3d")
def _max_pool_only(n: AtenNode) -> Any:
    x = n.arg("self")
    _, window = _window(n, desc_of(x))
    x = _batched(n, x, len(window.kernel))
    return n.shaped(n.op("MaxPool", x, keeps_nan=True, **_window_attrs(window)), n.out().shape)


@aten("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
def _max_pool_backward(n: AtenNode) -> Any:
    """Each gradient goes to where its window's maximum was."""
    g, places, out = n.arg("grad_output"), n.arg("indices"), n.out()
    space = 3 if "3d" in n.type else 2
    planes, area = math.prod(out.shape[:-space]), math.prod(out.shape[-space:])
    taken = math.prod(desc_of(g).shape[-space:])
    wide = n.wide(n.shaped(g, [planes, taken]))
    zeros = n.filled(0, TensorDesc((planes, area), desc_of(wide).dtype))
    spread = n.op("ScatterElements", zeros, n.shaped(places, [planes, taken]), wide, axis=1, reduction="add")
    return n.shaped(n.back(spread), out.shape)


@aten("torchair.max_pool2d_backward")
def _max_pool_backward_of_data(n: AtenNode) -> Any:
    """Each gradient goes to where its window's first maximum is."""
    x = n.arg("self")
    _, window = _window(n, desc_of(x))
    return n.op("MaxPoolGrad", n.arg("grad_output"), x, **_window_attrs(window))


@aten("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(n: AtenNode) -> Any:
    """Where the border counts but the part that ceil_mode adds does not, the border becomes real zeros."""
    x = n.arg("self")
    if n.arg("divisor_override") is not None or desc_of(x).dtype not in FLOATS:
        raise Unsupported("an average with a divisor of its own")
    given, window = _window(n, desc_of(x))
    x = _batched(n, x, len(window.kernel))
    include = bool(n.attrs.get("count_include_pad", True))
    if include and window != given:
        x = n.op("Pad", x, low=[0, 0, *given.pads_begin], high=[0, 0, *given.pads_end])
        rest = tuple(max(a - b, 0) for a, b in zip(window.pads_end, given.pads_end, strict=True))
        window = Window(window.kernel, window.strides, window.dilations, (0,) * len(rest), rest)
        include = False
    return n.shaped(n.op("AvgPool", x, count_include_pad=include, **_window_attrs(window)), n.out().shape)


@aten("avg_pool2d_backward", "avg_pool3d_backward")
def _avg_pool_backward(n: AtenNode) -> Any:
    """Each gradient is spread evenly over its window."""
    g, x = n.arg("grad_output"), desc_of(n.arg("self"))
    if n.arg("divisor_override") is not None or n.arg("ceil_mode"):
        raise Unsupported("the gradient of an average with a divisor of its own")
    window, _ = _window(n, x)
    space = len(window.kernel)
    sizes, channels = list(x.shape[-space:]), math.prod(x.shape[:-space])
    ones = np.ones((1, 1, *sizes))
    if n.attrs.get("count_include_pad", True):
        shares: Any = np.asarray(1 / math.prod(window.kernel))
    else:
        shares = 1 / array_windows(ones, window, 0).sum(axis=tuple(range(space + 2, 2 * space + 2)))
    wide = n.wide(n.shaped(g, [1, channels, *desc_of(g).shape[-space:]]))
    dtype = numpy_dtype(desc_of(wide).dtype)
    weighted = n.op("Mul", wide, n.builder.constant(shares.astype(dtype)))
    kernel = n.builder.constant(np.ones((channels, 1, *window.kernel), dtype))
    y = n.op(
        "ConvTranspose",
        weighted,
        kernel,
        strides=list(window.strides),
        pads_begin=list(window.pads_begin),
        output_shape=sizes,
        groups=channels,
    )
    return n.shaped(n.back(y), n.out().shape)


@aten(
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
)
def _adaptive_avg_pool(n: AtenNode) -> Any:
    x = n.arg("self")
    target = [int(d) for d in n.arg("output_size")]
    space, shape = len(target), desc_of(x).shape
    sizes = shape[-space:]
    if set(target) == {1}:
        axes = list(range(len(shape) - space, len(shape)))
        return n.op("ReduceMean", x, axes=axes, keepdims=True)
    if 0 in target or 0 in shape:
        raise Unsupported("windows of an empty tensor")
    if any(s % t for s, t in zip(sizes, target, strict=True)):
        return n.back(_averaged(n, n.wide(x), sizes, target))
    kernel = [s // t for s, t in zip(sizes, target, strict=True)]
    return n.shaped(n.op("AvgPool", _batched(n, x, space), kernel=kernel, strides=kernel), n.out().shape)


def _averaged(n: AtenNode, x: Any, sizes: Sequence[int], target: Sequence[int]) -> Any:
    """Means over windows of different sizes, one axis after another; what is beside a window is not read as 0 * x."""
    for axis, (size, count) in enumerate(zip(sizes, target, strict=True), desc_of(x).rank - len(sizes)):
        begin, end = _adaptive_windows(size, count)
        places = begin[:, None] + np.arange((end - begin).max())
        inside = places < end[:, None]
        taken = n.op("Gather", x, n.builder.constant(np.minimum(places, size - 1)), axis=axis)
        if not inside.all():
            after = (1,) * (desc_of(x).rank - axis - 1)
            taken = n.op("Select", n.builder.constant(inside.reshape(*inside.shape, *after)), taken, 0.0)
        total = n.op("ReduceSum", taken, axes=[axis + 1], keepdims=False)
        shares = (1 / (end - begin)).reshape(-1, *(1,) * (desc_of(x).rank - axis - 1))
        x = n.op("Mul", total, n.builder.constant(shares.astype(numpy_dtype(desc_of(x).dtype))))
    return x


def _spread_means(n: AtenNode, g: Any, sizes: Sequence[int], target: Sequence[int]) -> Any:
    """Gradients of these means, one axis after another, as products with constant matrices."""
    for axis, (size, count) in enumerate(zip(sizes, target, strict=True), desc_of(g).rank - len(sizes)):
        begin, end = _adaptive_windows(size, count)
        places = np.arange(size)
        inside = (places >= begin[:, None]) & (places < end[:, None])
        matrix = (inside / (end - begin)[:, None]).astype(numpy_dtype(desc_of(g).dtype))
        rank = desc_of(g).rank
        swap = [*(a for a in range(rank) if a != axis), axis]
        made = n.op("MatMul", n.turned(g, swap), n.builder.constant(matrix))
        g = n.turned(made, [swap.index(a) for a in range(rank)])
    return g


def _adaptive_windows(size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each of `count` windows begins and ends."""
    numbers = np.arange(count)
    return numbers * size // count, -(-(numbers + 1) * size // count)


@aten("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def _adaptive_backward(n: AtenNode) -> Any:
    """Windows of one size: each gradient repeated over its window."""
    g, x = n.wide(n.arg("grad_output")), desc_of(n.arg("self"))
    space = 3 if "3d" in n.type else 2
    target, sizes = desc_of(g).shape[-space:], x.shape[-space:]
    if not desc_of(g).size or not x.size:
        raise Unsupported("windows of an empty tensor")
    if any(s % t for s, t in zip(sizes, target, strict=True)):
        return n.back(_spread_means(n, g, sizes, target))
    kernel = [s // t for s, t in zip(sizes, target, strict=True)]
    share = n.op("Mul", g, 1 / math.prod(kernel))
    outer = list(x.shape[:-space])
    split = n.shaped(share, [*outer, *(v for t in target for v in (t, 1))])
    wide = n.spread(split, [*outer, *(v for t, k in zip(target, kernel, strict=True) for v in (t, k))])
    return n.back(n.shaped(wide, x.shape))
