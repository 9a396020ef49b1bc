"""Tensors created from positions, shapes and constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import tbe
from ge.ir.types import BOOL, numpy_dtype
from ge.ir.values import constant_of
from ge.ops.base import Attr, Input, NodeView, Operator, Output, Pattern, register
from ge.ops.plugins import Node, Results, Unsupported, plugin
from ge.ops.tensor.movement import Movement

_CONSTANTS = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}
_RANGE_LIMIT = 1 << 28


@register
class Iota(Operator):
    """The position along axis."""

    y = Output()
    shape = Attr(list)
    axis = Attr(int, 0)
    dtype = Attr(str, "int64")
    pattern = Pattern.INJECTIVE

    @staticmethod
    def compute(op: NodeView) -> tbe.Tensor:
        return tbe.iota(op.shape, op.axis, op.dtype)


@register
class Range(Operator):
    """start + delta * position, of a known length; start and delta are computed scalars."""

    start = Input("T")
    delta = Input("T")
    y = Output("T")
    size = Attr(int)
    pattern = Pattern.INJECTIVE
    piecewise_constant = True

    @staticmethod
    def compute(op: NodeView, start: tbe.Tensor, delta: tbe.Tensor) -> tbe.Tensor:
        return start + tbe.iota((op.size,), 0, start.dtype) * delta


@register
class Eye(Operator):
    """1 on diagonal k, 0 elsewhere."""

    y = Output()
    shape = Attr(list)
    k = Attr(int, 0)
    dtype = Attr(str, "float32")
    pattern = Pattern.INJECTIVE

    @staticmethod
    def compute(op: NodeView) -> tbe.Tensor:
        rank = len(op.shape)
        rows, columns = (tbe.iota(op.shape, rank - i, "int64") for i in (2, 1))
        return tbe.cast(tbe.binary("eq", rows + op.k, columns), op.dtype)


@register
class Trilu(Movement):
    """The upper or lower triangle of matrices from diagonal k on, 0 elsewhere."""

    upper = Attr(bool, True)
    k = Attr(int, 0)
    moves = False  # the zeros are new

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        rank = len(x.shape)
        rows, columns = (tbe.iota(x.shape, rank - i, "int64") for i in (2, 1))
        k = min(max(op.k, -x.shape[-2]), x.shape[-1])  # diagonals farther out are as empty
        kept = tbe.binary("le" if op.upper else "ge", rows + k, columns)
        return tbe.select(kept, x, tbe.constant(False if x.dtype in BOOL else 0, x.dtype))


MAX_TABLE = 1 << 20  # longer ranges are computed at run time


@plugin(onnx="Trilu")
def _trilu(n: Node) -> Results:
    k = n.ints(1, "k")[0] if n.input(1) is not None else 0
    return n.op("Trilu", n.inputs[0], upper=bool(n.attr("upper", 1)), k=k)


@plugin(onnx="Shape")
def _shape(n: Node) -> Results:
    shape = n.desc().shape
    end = n.attr("end")
    return n.builder.constant(np.asarray(shape[slice(n.attr("start", 0), end)], np.int64), n.name)


@plugin(onnx="Size")
def _size(n: Node) -> Results:
    return n.builder.constant(np.asarray(n.desc().size, np.int64), n.name)


@plugin(onnx="Constant")
def _constant(n: Node) -> Results:
    if len(given := sorted(n.attrs)) > 1:
        raise Unsupported(f"a constant has several values: {', '.join(given)}", "keep one of them")
    for name, dtype in _CONSTANTS.items():
        if n.attr(name) is not None:
            return n.builder.constant(np.asarray(n.attr(name), dtype), n.name)
    for name in ("value", "sparse_value"):
        if n.attr(name) is not None:
            return n.parser.constant(n.attr(name), n.name)
    raise Unsupported("a constant without a number", "use numbers or bools")


@plugin(onnx="ConstantOfShape")
def _constant_of_shape(n: Node) -> Results:
    value = n.attr("value")
    value = np.zeros(1, np.float32) if value is None else np.asarray(value)
    shape = n.ints(0, "shape")
    if math.prod(shape) * value.dtype.itemsize <= 1 << 20:
        return n.builder.constant(np.full(shape, value.reshape(-1)[0]), n.name)
    scalar = n.builder.constant(value.reshape(()), n.name)
    return n.op("BroadcastTo", scalar, shape=shape)


@plugin(onnx="Range")
def _range(n: Node) -> Results:
    start, limit, delta = (n.const(i, w).reshape(()) for i, w in enumerate(("start", "limit", "delta")))
    if not delta:
        raise Unsupported("delta of Range is 0")
    size = max(0, math.ceil((float(limit) - float(start)) / float(delta)))
    if start.dtype.kind in "iu":
        size = max(0, -((int(start) - int(limit)) // int(delta)))
    if size > MAX_TABLE:
        return n.op("Range", start, delta, size=size)
    wide = start if start.dtype.kind in "iu" or start.dtype == np.float64 else start.astype(np.float64)
    array = (wide + np.arange(size, dtype=wide.dtype) * delta.astype(wide.dtype)).astype(start.dtype)
    return n.builder.constant(array, n.name)


@plugin(onnx="EyeLike")
def _eye_like(n: Node) -> Results:
    desc = n.desc()
    if desc.rank != 2:
        raise Unsupported(f"EyeLike takes a matrix, got {desc}")
    dtype = n.element_type("dtype", desc.dtype)
    return n.op("Eye", shape=list(desc.shape), k=int(n.attr("k", 0)), dtype=dtype)


def filled(n: Node, value: Any, shape: Sequence[int]) -> Any:
    """A tensor filled with one value; a small constant is created now, a large one at run time."""
    known = constant_of(value)
    if known is not None and math.prod(shape) * known.dtype.itemsize <= 1 << 20:
        return n.builder.constant(np.full(shape, known.reshape(()), known.dtype), n.name)
    return n.op("BroadcastTo", value, shape=list(shape))


@plugin(tensorflow="Fill")
def _fill(n: Node) -> Results:
    return filled(n, n.inputs[1], n.ints(0, "the dimensions"))


@plugin(tensorflow=["ZerosLike", "OnesLike"])
def _like(n: Node) -> Results:
    value = n.builder.constant(np.asarray(n.type == "OnesLike", numpy_dtype(n.desc().dtype)))
    return filled(n, value, n.desc().shape)


@plugin(tensorflow="Empty")
def _empty(n: Node) -> Results:
    value = n.builder.constant(np.zeros((), numpy_dtype(str(n.attr("dtype", "float32")))))
    return filled(n, value, n.ints(0, "the shape"))


@plugin(tensorflow="Range")
def _range_tf(n: Node) -> Results:
    start, limit, delta = (n.const(i, w).reshape(()) for i, w in enumerate(("start", "limit", "delta")))
    if not delta:
        raise Unsupported("delta of Range is 0")
    if start.dtype.kind in "iu":
        size = max(0, -((int(start) - int(limit)) // int(delta)))
    else:
        size = max(0, math.ceil((float(limit) - float(start)) / float(delta)))
    if size > _RANGE_LIMIT:
        raise Unsupported(f"a range of {size} elements is out of reach")
    wide: Any = np.int64 if start.dtype.kind in "iu" else np.float64
    array = start.astype(wide) + np.arange(size, dtype=wide) * delta.astype(wide)
    return n.builder.constant(array.astype(start.dtype), n.name)


@plugin(tensorflow="LinSpace")
def _lin_space(n: Node) -> Results:
    """From start to stop in equal steps, both ends exact."""
    count = n.ints(2, "num")[0]
    start, stop = n.inputs[0], n.inputs[1]
    if count == 1:
        return n.op("Reshape", start, shape=[1])
    dtype = numpy_dtype(n.desc().dtype)
    step = n.op("Div", n.op("Sub", stop, start), float(count - 1))
    inner = n.op("Add", n.op("Mul", n.builder.constant(np.arange(1, count - 1, dtype=dtype)), step), start)
    ends = [n.op("Reshape", end, shape=[1]) for end in (start, stop)]
    return n.op("Concat", ends[0], *([inner] if count > 2 else []), ends[1], axis=0)
