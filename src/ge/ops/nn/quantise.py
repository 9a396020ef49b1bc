"""Quantisation, and integer products with their scales."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import tbe
from ge.ir.types import FLOATS, INTS, TensorDesc, numpy_dtype
from ge.ir.values import constant_of, desc_of
from ge.ops.base import Attr, Input, NodeView, Operator, Output, Pattern, fail, register
from ge.ops.dataflow import Dataflow, Order, Part, Reordered, Sliced
from ge.ops.nn.convolution import convolution_expression, convolve
from ge.ops.nn.post_ops import apply_post_ops
from ge.ops.nn.spatial import (
    FORMATS,
    WEIGHT_FORMATS,
    Images,
    Window,
    aligned,
    channels_first_perm,
    channels_last_perm,
    onnx_window,
    weight_perm,
)
from ge.ops.plugins import Node, Results, Unsupported, plugin
from ge.ops.traits import ImageFormat
from ge.plan import Task, View

EIGHT_BIT = frozenset({"int8", "uint8"})
_STORED = frozenset({"int8", "uint8", "int16", "uint16"})


class Scaled(Dataflow):
    """Element by element; scales and zero points run along one axis or are scalars."""

    def slice(self, op: NodeView, part: Part) -> Sliced | None:
        whole = all(d is None or d.size == 1 or d.rank == 1 for d in op.inputs[1:])
        along = op.outputs[0].rank and part.axis == op.axis % op.outputs[0].rank
        return Sliced({0: part}) if _one_scale(op) or (whole and not along) else None

    def reorder(self, op: NodeView, order: Order) -> Reordered | None:
        return Reordered(order.perm, first_only=True) if _one_scale(op) else None


def _one_scale(op: NodeView) -> bool:
    return all(d is None or d.size == 1 for d in op.inputs[1:])


class Quantisation(Operator):
    """Scale and zero point are one number, one per element of `axis`, or one per block along it."""

    pattern = Pattern.BROADCAST
    axis = Attr(int, 1)
    block_size = Attr(int, 0)
    dataflow = Scaled()
    quantises = True


def _spread(param: tbe.Tensor, x: tbe.Tensor, axis: int, block: int) -> tbe.Tensor:
    """A scale or zero point shaped to broadcast with x."""
    rank = len(x.shape)
    if math.prod(param.shape) == 1:
        return tbe.reshape(param, ())
    axis = axis % rank
    if len(param.shape) == 1 and not (block and rank == 1):
        return tbe.reshape(param, tuple(param.shape[0] if i == axis else 1 for i in range(rank)))
    block = block or -(-x.shape[axis] // param.shape[axis])
    split = tbe.reshape(param, (*param.shape[: axis + 1], 1, *param.shape[axis + 1 :]))
    wide = tbe.broadcast_to(split, (*param.shape[: axis + 1], block, *param.shape[axis + 1 :]))
    flat = tbe.reshape(wide, (*param.shape[:axis], param.shape[axis] * block, *param.shape[axis + 1 :]))
    return tbe.slice(flat, (0,) * rank, (1,) * rank, tuple(x.shape))


@register
class Quantize(Quantisation):
    """saturate(round(x / scale) + zero_point), rounding half to even."""

    x = Input("", FLOATS | {"int32"})
    scale = Input("", FLOATS)
    zero_point = Input("", INTS, optional=True)
    y = Output()
    dtype = Attr(str, "uint8", choices=tuple(sorted(_STORED)))

    @staticmethod
    def compute(
        op: NodeView, x: tbe.Tensor, scale: tbe.Tensor, zero_point: tbe.Tensor | None = None
    ) -> tbe.Tensor:
        step = tbe.cast(_spread(scale, x, op.axis, op.block_size), "float32")
        level = tbe.unary("round", tbe.cast(x, "float32") / step)
        if zero_point is not None:
            level = level + tbe.cast(_spread(zero_point, x, op.axis, op.block_size), "float32")
        return tbe.cast(level, op.dtype)


@register
class Dequantize(Quantisation):
    """(x - zero_point) * scale."""

    x = Input("", INTS)
    scale = Input("", FLOATS)
    zero_point = Input("", INTS, optional=True)
    y = Output()
    dtype = Attr(str, "float32", choices=tuple(sorted(FLOATS)))
    folds_late = True

    @staticmethod
    def compute(
        op: NodeView, x: tbe.Tensor, scale: tbe.Tensor, zero_point: tbe.Tensor | None = None
    ) -> tbe.Tensor:
        level = tbe.cast(x, "float32")
        if zero_point is not None:
            level = level - tbe.cast(_spread(zero_point, x, op.axis, op.block_size), "float32")
        return tbe.cast(level * tbe.cast(_spread(scale, x, op.axis, op.block_size), "float32"), op.dtype)


class OfFirst(Dataflow):
    """Element by element of the first input; of the others all is needed."""

    def slice(self, op: NodeView, part: Part) -> Sliced | None:
        return Sliced({0: part})

    def reorder(self, op: NodeView, order: Order) -> Reordered | None:
        return Reordered(order.perm, first_only=True)


@register
class ByteTable(Operator):
    """The elements of a table of 256 at the places that the bits of x are, as numbers without sign."""

    x = Input("X", EIGHT_BIT)
    table = Input("T", EIGHT_BIT)
    y = Output("T")
    pattern = Pattern.INJECTIVE
    dataflow = OfFirst()
    quantises = True

    @staticmethod
    def verify(op: NodeView) -> None:
        if op.inputs[1].shape != (256,):  # type: ignore[union-attr]
            raise fail(op, f"the table is {op.inputs[1]}, not of 256 elements")

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor, table: tbe.Tensor) -> tbe.Tensor:
        return tbe.take(table, tbe.cast(x, "uint8"), 0)


# -- integer products --------------------------------------------------------------------------------------


class IntegerProduct(Operator):
    """An exact product of 8-bit integers, summed in 32 bits, then (for other results than int32) scaled:

    y = saturate(round(post_ops(sum * src_scale * weight_scales + bias) / dst_scale) + dst_zero_point).

    The residual is what the post-op "add" adds, an 8-bit tensor of the result's shape.
    """

    x = Input("", EIGHT_BIT)
    w = Input("", frozenset({"int8"}))
    bias = Input("", frozenset({"int32", "float32"}), optional=True)
    weight_scales = Input("", frozenset({"float32"}), optional=True)
    residual = Input("", EIGHT_BIT, optional=True)
    y = Output()
    post_ops = Attr(list, (), item=str)
    src_scale = Attr(float, 1.0)
    dst_scale = Attr(float, 1.0)
    src_zero_point = Attr(int, 0)
    dst_zero_point = Attr(int, 0)
    output_dtype = Attr(str, "int32", choices=("int32", "float32", "int8", "uint8"))


def _scaled(
    op: NodeView, total: np.ndarray, arrays: Sequence[np.ndarray | None], channel_axis: int
) -> np.ndarray:
    """The reference for the epilogue of the sum."""
    shape = [1] * total.ndim
    shape[channel_axis] = -1
    bias = arrays[2] if len(arrays) > 2 else None
    if op.output_dtype == "int32":
        return total if bias is None else total + bias.astype(np.int32).reshape(shape)
    y = total.astype(np.float64) * op.src_scale
    if len(arrays) > 3 and arrays[3] is not None:
        y = y * arrays[3].reshape(shape)
    if bias is not None:
        y = y + bias.astype(np.float64).reshape(shape)
    y = apply_post_ops(y, op.post_ops, arrays[4:])
    if op.output_dtype == "float32":
        return y.astype(np.float32)
    info = np.iinfo(numpy_dtype(op.output_dtype))
    return np.clip(np.rint(y.astype(np.float32) / op.dst_scale) + op.dst_zero_point, info.min, info.max)


def _scaled_expression(
    op: NodeView, total: tbe.Tensor, bias: tbe.Tensor | None, scales: tbe.Tensor | None, channel_axis: int
) -> tbe.Tensor:
    """The same as an expression."""
    assert not op.post_ops, "post-ops are fused into AI Core nodes only"
    shape = [1] * len(total.shape)

    def along(t: tbe.Tensor) -> tbe.Tensor:
        shape[channel_axis] = t.size
        return tbe.reshape(t, tuple(shape))

    if op.output_dtype == "int32":
        return total if bias is None else total + along(tbe.cast(bias, "int32"))
    y = tbe.cast(total, "float32") * op.src_scale
    if scales is not None:
        y = y * along(scales)
    if bias is not None:
        y = y + along(tbe.cast(bias, "float32"))
    if op.output_dtype == "float32":
        return y
    return tbe.cast(tbe.unary("round", y / op.dst_scale) + float(op.dst_zero_point), op.output_dtype)


def _quantised_attrs(op: NodeView, inputs: Sequence[View | None]) -> dict[str, Any]:
    return {
        "has_bias": len(inputs) > 2 and inputs[2] is not None,
        "has_weight_scales": len(inputs) > 3 and inputs[3] is not None,
        "src_scale": op.src_scale,
        "dst_scale": op.dst_scale,
        "src_zero_point": op.src_zero_point,
        "dst_zero_point": op.dst_zero_point,
        "post_ops": list(op.post_ops),
    }


@register
class QMatMul(IntegerProduct):
    """A matrix product of 8-bit integers; batch axes broadcast."""

    @staticmethod
    def verify(op: NodeView) -> None:
        a, b = op.inputs[:2]
        assert a is not None and b is not None
        if op.post_ops or op.input(4) is not None:
            raise fail(op, "only convolutions take a residual")
        if a.rank < 2 or b.rank < 2 or a.shape[-1] != b.shape[-2]:
            raise fail(op, f"cannot multiply {a} by {b}")

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        a, b = op.inputs[0].shape, op.inputs[1].shape  # type: ignore[union-attr]
        return TensorDesc((*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1]), op.output_dtype)

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        a, b = (np.asarray(v, np.int32) for v in arrays[:2])
        return [_scaled(op, np.matmul(a - op.src_zero_point, b), arrays, -1)]

    @staticmethod
    def compute(
        op: NodeView,
        x: tbe.Tensor,
        w: tbe.Tensor,
        bias: tbe.Tensor | None = None,
        weight_scales: tbe.Tensor | None = None,
    ) -> tbe.Tensor:
        a, b = tbe.cast(x, "int32") - op.src_zero_point, tbe.cast(w, "int32")
        products = tbe.reshape(a, (*a.shape, 1)) * tbe.reshape(b, (*b.shape[:-2], 1, *b.shape[-2:]))
        total = tbe.reduce("sum", products, (len(products.shape) - 2,))
        return _scaled_expression(op, total, bias, weight_scales, -1)

    @staticmethod
    def task(op: NodeView, inputs: list[View], outputs: list[View]) -> Task:
        rank = len(outputs[0].shape)
        views = [aligned(v, rank) if i < 3 else v for i, v in enumerate(inputs) if v is not None]
        return Task("matmul", op.name, views, list(outputs), _quantised_attrs(op, inputs))

    @staticmethod
    def flops(op: NodeView) -> int:
        return 2 * op.outputs[0].size * op.inputs[0].shape[-1]  # type: ignore[union-attr]


@register
class QConv(IntegerProduct):
    """A convolution of 8-bit integers; borders hold the zero point."""

    dataflow = Images(slices=False)

    strides = Attr(list, None)
    dilations = Attr(list, None)
    pads_begin = Attr(list, None)
    pads_end = Attr(list, None)
    groups = Attr(int, 1)
    data_format = Attr(str, "channels_first", choices=FORMATS)
    weight_format = Attr(str, "OI", choices=WEIGHT_FORMATS)
    image_format = ImageFormat(leads=True)

    @staticmethod
    def verify(op: NodeView) -> None:
        data, weight = _conv_shapes(op)
        if len(data) != len(weight) or data[1] != weight[1] * op.groups or weight[0] % op.groups:
            raise fail(op, f"input {op.inputs[0]} and weight {op.inputs[1]} do not go together")
        problem = Window.of(weight[2:], op).problem(data[2:])
        if problem:
            raise fail(op, problem)
        residual = op.input(4)
        if (residual is not None) != ("add" in op.post_ops):
            raise fail(op, "a residual and the post-op that adds it go together")
        if residual is not None and residual.shape != QConv.infer(op).shape:
            raise fail(op, f"the residual is {residual} where the result is {QConv.infer(op)}")

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        data, weight = _conv_shapes(op)
        first = (data[0], weight[0], *Window.of(weight[2:], op).outputs(data[2:]))
        back = channels_last_perm(len(first), op.data_format)
        return TensorDesc(tuple(first[p] for p in back), op.output_dtype)

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        x, w = (np.asarray(v, np.int32) for v in arrays[:2])
        data = x.transpose(channels_first_perm(x.ndim, op.data_format)) - op.src_zero_point
        weight = w.transpose(weight_perm(w.ndim, op.weight_format))
        total = convolve(data, weight, Window.of(weight.shape[2:], op), op.groups)
        given = list(arrays)
        if len(given) > 4:
            given[4] = np.asarray(arrays[4]).transpose(channels_first_perm(x.ndim, op.data_format))
        return [_scaled(op, total, given, 1).transpose(channels_last_perm(x.ndim, op.data_format))]

    @staticmethod
    def compute(
        op: NodeView,
        x: tbe.Tensor,
        w: tbe.Tensor,
        bias: tbe.Tensor | None = None,
        weight_scales: tbe.Tensor | None = None,
    ) -> tbe.Tensor:
        rank = len(x.shape)
        data = tbe.transpose(tbe.cast(x, "int32"), channels_first_perm(rank, op.data_format))
        weight = tbe.transpose(tbe.cast(w, "int32"), weight_perm(rank, op.weight_format))
        window = Window.of(weight.shape[2:], op)
        total = convolution_expression(data - op.src_zero_point, weight, window, op.groups)
        y = _scaled_expression(op, total, bias, weight_scales, 1)
        return tbe.transpose(y, channels_last_perm(rank, op.data_format))

    @staticmethod
    def task(op: NodeView, inputs: list[View], outputs: list[View]) -> Task:
        rank = len(inputs[0].shape)
        order = channels_first_perm(rank, op.data_format)
        window = Window.of(_conv_shapes(op)[1][2:], op)
        views = [inputs[0].permute(order), inputs[1].permute(weight_perm(rank, op.weight_format))]
        views += [v for v in inputs[2:4] if v is not None]
        views += [v.permute(order) for v in inputs[4:] if v is not None]
        attrs = _quantised_attrs(op, inputs) | {
            "strides": list(window.strides),
            "dilations": list(window.dilations),
            "pads_begin": list(window.pads_begin),
            "pads_end": list(window.pads_end),
            "groups": op.groups,
        }
        return Task("conv", op.name, views, [outputs[0].permute(order)], attrs)

    @staticmethod
    def flops(op: NodeView) -> int:
        return 2 * op.outputs[0].size * math.prod(_conv_shapes(op)[1][1:])


def _conv_shapes(op: NodeView) -> tuple[tuple[int, ...], tuple[int, ...]]:
    x, w = op.inputs[:2]
    assert x is not None and w is not None
    data = tuple(x.shape[p] for p in channels_first_perm(x.rank, op.data_format))
    return data, tuple(w.shape[p] for p in weight_perm(w.rank, op.weight_format))


# -- ONNX --------------------------------------------------------------------------------------------------


@plugin(onnx="QuantizeLinear")
def _quantize(n: Node) -> Results:
    zero = n.input(2)
    dtype = n.element_type("output_dtype") or (n.desc(2).dtype if zero is not None else "uint8")
    if dtype not in _STORED:
        raise Unsupported(
            f"quantisation to {dtype} is not supported", f"use one of {', '.join(sorted(_STORED))}"
        )
    axis, block = int(n.attr("axis", 1)), int(n.attr("block_size", 0))
    return n.op("Quantize", *n.inputs[:3], axis=_axis(n, axis), block_size=block, dtype=dtype)


@plugin(onnx="DequantizeLinear")
def _dequantize(n: Node) -> Results:
    axis, block = int(n.attr("axis", 1)), int(n.attr("block_size", 0))
    dtype = n.element_type("output_dtype") or n.desc(1).dtype
    return n.op("Dequantize", *n.inputs[:3], axis=_axis(n, axis), block_size=block, dtype=dtype)


def _axis(n: Node, axis: int) -> int:
    """The axis is meaningless if the scale is one number."""
    return 0 if n.desc(1).size == 1 else axis


def _signed(n: Node, value: Any, zero: Any) -> tuple[Any, Any]:
    """A weight and its zero point as int8: an unsigned one is shifted by 128."""
    if desc_dtype(value) == "int8":
        return value, zero
    wide = n.op("Sub", n.op("Cast", value, to="int16"), 128)
    shifted = n.op("Cast", wide, to="int8")
    base = n.builder.constant(np.int32(0)) if zero is None else n.op("Cast", zero, to="int32")
    return shifted, n.op("Sub", base, 128)


def desc_dtype(value: Any) -> str:
    """The element type of a value."""
    return desc_of(value).dtype


def _is_zero(n: Node, value: Any) -> bool:
    known = constant_of(value)
    return value is None or (known is not None and not known.any())


def integer_matmul(n: Node, a: Any, b: Any, a_zero: Any, b_zero: Any) -> Any:
    """The exact sum of (a - a_zero) * (b - b_zero) as int32: the product of the stored values, corrected.

    Zero points may be numbers or vectors: one value per row of a, one per column of b.
    """
    b, b_zero = _signed(n, b, b_zero)
    rows, columns = desc_of(a).shape, desc_of(b).shape
    total = n.op("QMatMul", a, b)
    left = None if _is_zero(n, a_zero) else _zero_point(n, a_zero, len(rows), -2)
    right = None if _is_zero(n, b_zero) else _zero_point(n, b_zero, len(columns), -1)
    if left is not None:
        sums = n.op("ReduceSum", n.op("Cast", b, to="int32"), axes=[len(columns) - 2], keepdims=True)
        total = n.op("Sub", total, n.op("Mul", left, sums))
    if right is not None:
        sums = n.op("ReduceSum", n.op("Cast", a, to="int32"), axes=[len(rows) - 1], keepdims=True)
        total = n.op("Sub", total, n.op("Mul", right, sums))
    if left is not None and right is not None:
        total = n.op("Add", total, n.op("Mul", n.op("Mul", left, right), int(rows[-1])))
    return total


def _zero_point(n: Node, value: Any, rank: int, axis: int) -> Any:
    """A zero point as int32, a vector shaped along an axis."""
    wide = value if desc_dtype(value) == "int32" else n.op("Cast", value, to="int32")
    shape = desc_of(wide).shape
    if len(shape) != 1:
        return wide
    if shape[0] == 1:
        return n.op("Reshape", wide, shape=[])
    return n.op("Reshape", wide, shape=[shape[0] if i == rank + axis else 1 for i in range(rank)])


@plugin(onnx="MatMulInteger")
def _matmul_integer(n: Node) -> Results:
    return _vectors_as_matrices(n, n.inputs[0], n.inputs[1], n.input(2), n.input(3))


def _vectors_as_matrices(n: Node, a: Any, b: Any, a_zero: Any, b_zero: Any) -> Any:
    left, right = desc_of(a).shape, desc_of(b).shape
    a = n.op("Reshape", a, shape=[1, *left]) if len(left) == 1 else a
    b = n.op("Reshape", b, shape=[*right, 1]) if len(right) == 1 else b
    y = integer_matmul(n, a, b, a_zero, b_zero)
    shape = list(desc_of(y).shape)
    if len(right) == 1:
        shape = shape[:-1]
    if len(left) == 1:
        shape = shape[:-1] if len(right) == 1 else [*shape[:-2], shape[-1]]
    return y if len(shape) == len(desc_of(y).shape) else n.op("Reshape", y, shape=shape)


@plugin(onnx="QLinearMatMul")
def _qlinear_matmul(n: Node) -> Results:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = n.inputs[:8]
    total = integer_matmul(n, a, b, a_zero, b_zero)
    rank = n.desc(0).rank
    scale = n.op("Mul", _as_scale(n, a_scale, rank, -2), _as_scale(n, b_scale, rank, -1))
    real = n.op("Mul", n.op("Cast", total, to="float32"), scale)
    return n.op(
        "Quantize",
        real,
        _as_scale(n, y_scale, rank, -2),
        y_zero,
        dtype=n.desc(7).dtype,
        axis=max(rank - 2, 0),
    )


def _as_scale(n: Node, value: Any, rank: int, axis: int) -> Any:
    wide = value if desc_dtype(value) == "float32" else n.op("Cast", value, to="float32")
    shape = desc_of(wide).shape
    if len(shape) != 1 or shape[0] == 1:
        return wide if not shape or len(shape) != 1 else n.op("Reshape", wide, shape=[])
    return n.op("Reshape", wide, shape=[shape[0] if i == rank + axis else 1 for i in range(rank)])


def _conv_attrs(n: Node, window: Window) -> dict[str, Any]:
    return {
        "strides": list(window.strides),
        "dilations": list(window.dilations),
        "pads_begin": list(window.pads_begin),
        "pads_end": list(window.pads_end),
        "groups": int(n.attr("group", 1)),
    }


def _integer_conv(n: Node, x: Any, w: Any, x_zero: Any, w_zero: Any, window: Window) -> Any:
    """A convolution of 8-bit integers as int32.

    The primitive supports no zero point of the weight; with one, the sums are computed in float32, which is exact while
    they stay below 2 ** 24.
    """
    attrs = _conv_attrs(n, window)
    known = None if x_zero is None else constant_of(x_zero)
    w, w_zero = _signed(n, w, w_zero)
    if _is_zero(n, w_zero) and (x_zero is None or (known is not None and known.size == 1)):
        zero = 0 if known is None else int(known.reshape(-1)[0])
        return n.op("QConv", x, w, src_zero_point=zero, **attrs)
    rank = len(window.kernel) + 2
    data = _centred(n, x, x_zero, rank, 1)
    weight = _centred(n, w, w_zero, rank, 0)
    return n.op("Cast", n.op("Round", n.op("Conv", data, weight, **attrs)), to="int32")


def _centred(n: Node, value: Any, zero: Any, rank: int, axis: int) -> Any:
    real = n.op("Cast", value, to="float32")
    if zero is None:
        return real
    return n.op("Sub", real, n.op("Cast", _zero_point(n, zero, rank, axis - rank), to="float32"))


@plugin(onnx="ConvInteger")
def _conv_integer(n: Node) -> Results:
    window = onnx_window(n, n.attr("kernel_shape") or n.desc(1).shape[2:], n.desc(0).shape[2:])
    return _integer_conv(n, n.inputs[0], n.inputs[1], n.input(2), n.input(3), window)


@plugin(onnx="QLinearConv")
def _qlinear_conv(n: Node) -> Results:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = n.inputs[:8]
    window = onnx_window(n, n.attr("kernel_shape") or n.desc(3).shape[2:], n.desc(0).shape[2:])
    fused = _scaled_conv(n, window)
    if fused is not None:
        return fused
    total = _integer_conv(n, x, w, x_zero, w_zero, window)
    rank = n.desc(0).rank
    if n.input(8) is not None:
        channels = n.desc(8).shape[0]
        total = n.op("Add", total, n.op("Reshape", n.inputs[8], shape=[channels] + [1] * (rank - 2)))
    scale = n.op("Mul", _as_scale(n, x_scale, rank, 1 - rank), _as_scale(n, w_scale, rank, 1 - rank))
    real = n.op("Mul", n.op("Cast", total, to="float32"), scale)
    return n.op("Quantize", real, _as_scale(n, y_scale, rank, 1 - rank), y_zero, dtype=n.desc(7).dtype)


def _scaled_conv(n: Node, window: Window) -> Any:
    """The convolution with its scales as one operator, if all but the data is constant and the weight is symmetric;
    else None."""
    known = [n.maybe_const(i) for i in range(1, 9)]
    x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = known
    if any(k is None for k in known[:7]) or (bias is None and n.input(8) is not None):
        return None
    assert w is not None and w_scale is not None and w_zero is not None
    shift = 0 if w.dtype == np.int8 else 128
    if (w_zero != shift).any() or any(
        k.size != 1 for k in (x_scale, x_zero, y_scale, y_zero) if k is not None
    ):
        return None
    sx, zx, sy, zy = (k.reshape(-1)[0].item() for k in (x_scale, x_zero, y_scale, y_zero) if k is not None)
    scales = np.broadcast_to(w_scale.astype(np.float32).reshape(-1), (w.shape[0],)).copy()
    real = None if bias is None else (bias.astype(np.float64) * sx * scales).astype(np.float32)
    return n.op(
        "QConv",
        n.inputs[0],
        (w.astype(np.int16) - shift).astype(np.int8),
        real,
        scales,
        src_scale=float(sx),
        src_zero_point=int(zx),
        dst_scale=float(sy),
        dst_zero_point=int(zy),
        output_dtype=n.desc(7).dtype,
        **_conv_attrs(n, window),
    )


@plugin(onnx="DynamicQuantizeLinear")
def _dynamic_quantize(n: Node) -> Results:
    """Scale and zero point from the range of x, which always contains 0; if all elements are 0, the scale is 1."""
    x = n.inputs[0]
    high = n.op("Maximum", n.op("ReduceMax", x), 0.0)
    low = n.op("Minimum", n.op("ReduceMin", x), 0.0)
    span = n.op("Sub", high, low)
    scale = n.op("Select", n.op("Equal", span, 0.0), 1.0, n.op("Div", span, 255.0))
    zero = n.op("Round", n.op("Clip", n.op("Div", n.op("Sub", 0.0, low), scale), min=0.0, max=255.0))
    zero = n.op("Cast", zero, to="uint8")
    return n.op("Quantize", x, scale, zero, dtype="uint8"), scale, zero


# -- TensorFlow --------------------------------------------------------------------------------------------


def _fake_range(n: Node, index: int) -> tuple[Any, Any, Any, Any, Any]:
    """Whether the range (from inputs or attributes) is just zero; its ends, shifted so that zero is a level; the step;
    the number of steps from zero to the lower end."""
    low, high = n.input(index), n.input(index + 1)
    if "Args" in n.type:
        low, high = (n.builder.constant(np.float32(n.attr(k, v))) for k, v in (("min", -6.0), ("max", 6.0)))
    least, most = int(bool(n.attr("narrow_range", False))), 2 ** int(n.attr("num_bits", 8)) - 1
    step = n.op("Div", n.op("Sub", high, low), float(most - least))
    place = n.op("Sub", float(least), n.op("Div", low, step))
    zero = n.op("Clip", n.op("Floor", n.op("Add", place, 0.5)), min=float(least), max=float(most))
    steps = [n.op("Sub", float(v), zero) for v in (least, most)]
    bottom, top = (n.op("Mul", s, step) for s in steps)
    return n.op("And", n.op("Equal", low, 0.0), n.op("Equal", high, 0.0)), bottom, top, step, steps[0]


@plugin(
    tensorflow=["FakeQuantWithMinMaxArgs", "FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsPerChannel"]
)
def _fake_quantised(n: Node) -> Results:
    """Round to one of 2 ** num_bits levels between min and max, shifted so that zero is one of them."""
    none, bottom, top, step, below = _fake_range(n, 1)
    inside = n.op("Maximum", n.op("Minimum", n.inputs[0], top), bottom)
    level = n.op("Floor", n.op("Add", n.op("Mul", n.op("Sub", inside, bottom), n.op("Div", 1.0, step)), 0.5))
    return n.op("Select", none, 0.0, n.op("Mul", n.op("Add", level, below), step))  # zero stays exact


def _levels(n: Node, bits: int, signed: bool) -> tuple[float, float]:
    """The smallest and largest level of a symmetric quantisation."""
    if not signed:
        return 0.0, float(2**bits - 1)
    return float(-(2 ** (bits - 1)) + bool(n.attr("narrow_range", False))), float(2 ** (bits - 1) - 1)


@plugin(tensorflow=[f"QuantizeAndDequantize{version}" for version in ("V2", "V3", "V4")])
def _quantised_and_back(n: Node) -> Results:
    """Round to levels of equal width, so that the range, given or found in the data, just fits."""
    signed, axis = bool(n.attr("signed_input", True)), int(n.attr("axis", -1))
    bits = n.ints(3, "num_bits")[0] if n.type.endswith("V3") else int(n.attr("num_bits", 8))
    least, most = _levels(n, bits, signed)
    x, rank = n.inputs[0], n.desc().rank
    shape = [n.desc().shape[axis] if i == axis else 1 for i in range(rank)] if axis >= 0 else []
    if n.attr("range_given", False):
        low, high = (n.op("Reshape", n.inputs[i], shape=shape) for i in (1, 2))
    else:
        axes = [i for i in range(rank) if i != axis] if axis >= 0 else None
        low, high = (n.op(t, x, axes=axes, keepdims=axis >= 0) for t in ("ReduceMin", "ReduceMax"))
    if not n.attr("range_given", False):
        low, high = n.op("Minimum", low, 0.0), n.op("Maximum", high, 0.0)
    by_high = n.op("Div", high, most)
    width = by_high if least == 0 else n.op("Maximum", by_high, n.op("Div", low, least))
    inside = n.op("Minimum", n.op("Maximum", x, n.op("Mul", width, least)), n.op("Mul", width, most))
    scaled = n.op("Div", inside, width)
    if n.attr("round_mode", "HALF_TO_EVEN") == "HALF_UP":
        level = n.op("Floor", n.op("Add", scaled, 0.5))
    else:
        level = n.op("Round", scaled)
    return n.op("Select", n.op("LessEqual", width, 0.0), 0.0, n.op("Mul", level, width))


def _range_tf(n: Node) -> tuple[float, float, float, float, float]:
    """The given range, that of the stored type, and half of it for signed types."""
    if int(n.attr("axis", -1)) != -1:
        raise Unsupported(f"{n.type} with a range a channel", "quantise the tensor as a whole")
    low, high = (float(n.const(i, "the range").reshape(())) for i in (1, 2))
    info = np.iinfo(numpy_dtype(str(n.attr("T", "uint8"))))
    half = (info.max - info.min + 1) / 2 if info.min < 0 else 0.0
    return low, high, float(info.min), float(info.max), half


def _scaled_width(n: Node, low: float, high: float, least: float, most: float) -> float:
    """The width of a level in mode SCALED."""
    least = least + bool(n.attr("narrow_range", False)) if least < 0 else least
    return max(high / most, low / least) if least < 0 else high / most


@plugin(tensorflow="QuantizeV2")
def _quantize_tf(n: Node) -> Results:
    low, high, least, most, half = _range_tf(n)
    gap = float(n.attr("ensure_minimum_range", 0.01))
    low, high = min(low, 0.0), max(high, max(low, low + gap * max(1.0, abs(low), abs(high)) if gap else low))
    x, dtype, mode = n.inputs[0], str(n.attr("T", "uint8")), str(n.attr("mode", "MIN_COMBINED"))
    if mode == "SCALED":
        width = _scaled_width(n, low, high, least, most)
        least = least + bool(n.attr("narrow_range", False)) if least < 0 else least
        low, high = least * width, most * width
        scaled = n.op("Mul", n.op("Clip", x, min=low, max=high), 1.0 / width)
    elif mode == "MIN_COMBINED":
        inside = n.op("Sub", n.op("Clip", x, min=low, max=high), low)
        scaled = n.op("Sub", n.op("Mul", inside, (most - least) / (high - low)), half)
    else:
        raise Unsupported(f"the mode {mode} of QuantizeV2 is not supported", "use MIN_COMBINED or SCALED")
    even = n.attr("round_mode", "HALF_AWAY_FROM_ZERO") == "HALF_TO_EVEN"
    away = n.op("Mul", n.op("Sign", scaled), n.op("Floor", n.op("Add", n.op("Abs", scaled), 0.5)))
    y = n.op("Cast", n.op("Round", scaled) if even else away, to=dtype)
    return [y, n.builder.constant(np.float32(low)), n.builder.constant(np.float32(high))]


@plugin(tensorflow="Dequantize")
def _dequantize_tf(n: Node) -> Results:
    low, high, least, most, half = _range_tf(n)
    x = n.op("Cast", n.inputs[0], to="float32")
    mode = str(n.attr("mode", "MIN_COMBINED"))
    if mode == "SCALED":
        y = n.op("Mul", x, _scaled_width(n, low, high, least, most))
    elif mode == "MIN_COMBINED":
        y = n.op("Add", n.op("Mul", n.op("Add", x, half), (high - low) / (most - least)), low)
    else:
        raise Unsupported(f"the mode {mode} of Dequantize is not supported", "use MIN_COMBINED or SCALED")
    to = str(n.attr("dtype", "float32"))
    return y if to == "float32" else n.op("Cast", y, to=to)


@plugin(tensorflow=[f"FakeQuantWithMinMax{kind}Gradient" for kind in ("Args", "Vars", "VarsPerChannel")])
def _fake_quantised_gradient(n: Node) -> Results:
    """Gradients pass inside the (shifted) range; those below and above go to its bounds."""
    g, x = n.inputs[0], n.inputs[1]
    none, low, high, _, _ = _fake_range(n, 2)
    inside = n.op("Mul", g, n.op("Cast", n.op("Or", none, _is_inside(n, x, low, high)), to=n.desc().dtype))
    if "Args" in n.type:
        return inside
    axes = [i for i in range(n.desc().rank) if i != n.desc().rank - 1 or "PerChannel" not in n.type]
    sides = (
        n.op("Select", none, 0.0, n.op("Mul", g, n.op("Cast", outside, to=n.desc().dtype)))
        for outside in (n.op("Less", x, low), n.op("Greater", x, high))
    )
    return [inside, *(n.op("ReduceSum", side, axes=axes) for side in sides)]


def _is_inside(n: Node, x: Any, low: Any, high: Any) -> Any:
    """Whether elements are between two bounds; NaN is not."""
    return n.op("And", n.op("GreaterEqual", x, low), n.op("LessEqual", x, high))


@plugin(tensorflow="QuantizeAndDequantizeV4Grad")
def _quantised_and_back_gradient(n: Node) -> Results:
    """Gradients pass inside the range; the range itself gets none."""
    axis, rank = int(n.attr("axis", -1)), n.desc().rank
    shape = [n.desc().shape[i] if i == axis else 1 for i in range(rank)] if axis >= 0 else []
    low, high = (n.op("Reshape", n.inputs[i], shape=shape) for i in (2, 3))
    inside = n.op("Cast", _is_inside(n, n.inputs[1], low, high), to=n.desc().dtype)
    nothing = [n.builder.constant(np.zeros(n.desc(i).shape, numpy_dtype(n.desc(i).dtype))) for i in (2, 3)]
    return [n.op("Mul", n.inputs[0], inside), *nothing]
