"""Reductions and running reductions."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

import tbe
from ge.ir import types
from ge.ir.types import BOOL, FLOATS, NUMBERS, numpy_dtype
from ge.ops.base import Attr, Input, NodeView, Operator, Output, Pattern, fail, register
from ge.ops.dataflow import Dataflow, Order, OverAxes, Part, Reordered, Sliced, Stack, Stacked
from ge.ops.plugins import Node, Results, Unsupported, plugin
from ge.ops.traits import Sign


def normal_axes(axes: tuple[int, ...] | list[int] | None, rank: int) -> tuple[int, ...]:
    """Axes as sorted non-negative numbers; None means all of them.

    >>> normal_axes([-1, 0], 3)
    (0, 2)
    """
    if axes is None:
        return tuple(range(rank))
    for axis in axes:
        if not -rank <= axis < rank:
            raise ValueError(f"axis {axis} is out of range for rank {rank}")
    return tuple(sorted({axis % rank for axis in axes}))


def widened(x: tbe.Tensor) -> tbe.Tensor:
    """x as float32 if it is a 16-bit float, so that sums keep their precision."""
    return tbe.cast(x, "float32") if x.dtype in ("float16", "bfloat16") else x


def widened_array(x: np.ndarray | None) -> np.ndarray:
    """The same of the array of a required input."""
    assert x is not None
    return x.astype(np.float32) if x.dtype.itemsize == 2 else x


class Reduced(Dataflow):
    """The axes of a reduction are gone, or have one element; the others are independent."""

    def slice(self, op: NodeView, part: Part) -> Sliced | None:
        gone = _reduced_axes(op)
        kept = [a for a in range(op.inputs[0].rank) if op.keepdims or a not in gone]  # type: ignore[union-attr]
        axis = kept[part.axis]
        return None if axis in gone else Sliced({0: part.at(axis)})

    def reorder(self, op: NodeView, order: Order) -> Reordered | None:
        axes = order.axes(gone := _reduced_axes(op))
        perm = order.perm if op.keepdims else order.without(gone)
        return Reordered(perm, {"axis": axes[0]} if "axis" in op.attrs else {"axes": axes})

    def stack(self, op: NodeView, stack: Stack) -> Stacked | None:
        axes = [a + 1 for a in _reduced_axes(op)]
        return Stacked({"axis": axes[0]} if "axis" in op.attrs else {"axes": axes})


def _reduced_axes(op: NodeView) -> tuple[int, ...]:
    named = (op.axis,) if "axis" in op.attrs else op.axes
    return normal_axes(named, op.inputs[0].rank)  # type: ignore[union-attr]


class Reduction(Operator):
    """A reduction over some axes (all when none are given)."""

    x = Input("T", NUMBERS)
    y = Output("T")
    axes = Attr(list, None)
    keepdims = Attr(bool, False)
    pattern = Pattern.REDUCE
    dataflow = Reduced()
    sign = Sign.KEPT
    nests = True

    @staticmethod
    def verify(op: NodeView) -> None:
        try:
            normal_axes(op.axes, op.inputs[0].rank)  # type: ignore[union-attr]
        except ValueError as error:
            raise fail(op, str(error), f"the input is {op.inputs[0]}") from error

    @staticmethod
    def flops(op: NodeView) -> int:
        return op.inputs[0].size  # type: ignore[union-attr]


def _reduction(type_: str, function: str, dtypes: frozenset[str] = NUMBERS) -> None:
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        axes = normal_axes(op.axes, len(x.shape))
        return tbe.cast(tbe.reduce(function, widened(x), axes, op.keepdims), x.dtype)

    body = {
        "__doc__": f"{function} over axes.",
        "__module__": __name__,
        "x": Input("T", dtypes),
        "compute": staticmethod(compute),
    }
    register(type(type_, (Reduction,), body))


_reduction("ReduceSum", "sum")
_reduction("ReduceMax", "max")
_reduction("ReduceMin", "min")
_reduction("ReduceProd", "prod")
_reduction("ReduceAny", "any", BOOL)
_reduction("ReduceAll", "all", BOOL)


@register
class ReduceMean(Reduction):
    """The mean over axes; integers are summed in 64 bits, so that narrower ones do not overflow."""

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        axes = normal_axes(op.axes, len(x.shape))
        wide = widened(x) if x.dtype in FLOATS else tbe.cast(x, types.widest(x.dtype))
        return tbe.cast(mean(wide, axes, op.keepdims), x.dtype)


def mean(x: tbe.Tensor, axes: tuple[int, ...], keepdims: bool = True) -> tbe.Tensor:
    """The mean of an expression over axes."""
    count = math.prod(x.shape[a] for a in axes)
    total = tbe.reduce("sum", x, axes, keepdims)
    if x.dtype not in FLOATS:
        return total / count
    return total * (1 / count) if count else total / 0.0


class ArgReduction(Operator):
    """The position of an extreme value along an axis, as int64."""

    x = Input("T", NUMBERS)
    y = Output()
    axis = Attr(int, 0)
    keepdims = Attr(bool, True)
    select_last = Attr(bool, False)
    pattern = Pattern.REDUCE
    dataflow = Reduced()

    @staticmethod
    def verify(op: NodeView) -> None:
        try:
            normal_axes([op.axis], op.inputs[0].rank)  # type: ignore[union-attr]
        except ValueError as error:
            raise fail(op, str(error), f"the input is {op.inputs[0]}") from error


def _arg(type_: str, function: str) -> None:
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return tbe.reduce(function, x, (op.axis % len(x.shape),), op.keepdims, last=op.select_last)

    body = {"__doc__": f"{function} along axis.", "__module__": __name__, "compute": staticmethod(compute)}
    register(type(type_, (ArgReduction,), body))


_arg("ArgMax", "argmax")
_arg("ArgMin", "argmin")


class Running(Operator):
    """A running reduction along an axis."""

    x = Input("T", NUMBERS)
    y = Output("T")
    axis = Attr(int, 0)
    exclusive = Attr(bool, False)
    reverse = Attr(bool, False)
    pattern = Pattern.OPAQUE
    dataflow = OverAxes("axis")

    verify = ArgReduction.verify


def _running(type_: str, function: str) -> None:
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        axis = op.axis % len(x.shape)
        return tbe.cast(tbe.scan(function, widened(x), axis, op.exclusive, op.reverse), x.dtype)

    body = {
        "__doc__": f"Running {function} along axis.",
        "__module__": __name__,
        "compute": staticmethod(compute),
    }
    register(type(type_, (Running,), body))


_running("CumSum", "sum")
_running("CumProd", "prod")
_running("CumMax", "max")
_running("CumMin", "min")


# -- ONNX --------------------------------------------------------------------------------------------------


def _axes_of(n: Node) -> list[int] | None:
    """The axes from the attribute (older) or the second input; None for all, [] for none."""
    axes = n.attr("axes")
    if axes is None and n.input(1) is not None:
        axes = n.ints(1, "axes")
    if axes:
        return [int(a) for a in axes]
    return [] if n.attr("noop_with_empty_axes", 0) else None


def _reduced(n: Node, type_: str, x: Any) -> Any:
    axes = _axes_of(n)
    return n.op(type_, x, axes=axes, keepdims=bool(n.attr("keepdims", 1)))


def _onnx_reduction(onnx: str, type_: str, before: str = "") -> None:
    """Map an ONNX reduction, after an elementwise function if one is named."""

    @plugin(onnx=onnx)
    def mapped(n: Node) -> Results:
        return _reduced(n, type_, n.op(before, n.inputs[0]) if before else n.inputs[0])


_onnx_reduction("ReduceSum", "ReduceSum")
_onnx_reduction("ReduceMean", "ReduceMean")
_onnx_reduction("ReduceProd", "ReduceProd")
_onnx_reduction("ReduceL1", "ReduceSum", before="Abs")
_onnx_reduction("ReduceSumSquare", "ReduceSum", before="Square")


@plugin(onnx=["ReduceMax", "ReduceMin"])
def _reduce_extreme(n: Node) -> Results:
    """For bools, the maximum is "any" and the minimum is "all"."""
    types = {("ReduceMax", True): "ReduceAny", ("ReduceMin", True): "ReduceAll"}
    return _reduced(n, types.get((n.type, n.desc().dtype == "bool"), n.type), n.inputs[0])


def exact_float(dtype: str) -> str:
    """The floating-point type that represents the integers of a type; for 64 bits, as many of them as possible."""
    return "float32" if dtype in ("bool", "int8", "uint8", "int16", "uint16") else "float64"


@plugin(onnx=["ReduceL2", "ReduceLogSum"])
def _reduce_then(n: Node) -> Results:
    """Integers are reduced as floats, 16-bit floats as float32, where squares fit; the result has the input's type."""
    dtype = n.desc().dtype
    wide = types.widened(dtype) if dtype in FLOATS else exact_float(dtype)
    x = n.inputs[0] if dtype == wide else n.op("Cast", n.inputs[0], to=wide)
    x = n.op("Square", x) if n.type == "ReduceL2" else x
    y = n.op("Sqrt" if n.type == "ReduceL2" else "Log", _reduced(n, "ReduceSum", x))
    return y if dtype == wide else n.op("Cast", y, to=dtype)


@plugin(onnx="ReduceLogSumExp")
def _log_sum_exp(n: Node) -> Results:
    """Shifted by the maximum, so that exp does not overflow; an infinite maximum is not subtracted."""
    dtype = n.desc().dtype
    x = n.inputs[0] if dtype in FLOATS else n.op("Cast", n.inputs[0], to=exact_float(dtype))
    axes, keepdims = _axes_of(n), bool(n.attr("keepdims", 1))
    if 0 in n.desc().shape:
        y = n.op("Log", n.op("ReduceSum", n.op("Exp", x), axes=axes, keepdims=keepdims))
        return y if dtype in FLOATS else n.op("Cast", y, to=dtype)
    top = n.op("ReduceMax", x, axes=axes, keepdims=True)
    top = n.op("Select", n.op("IsFinite", top), top, 0.0)
    total = n.op("ReduceSum", n.op("Exp", n.op("Sub", x, top)), axes=axes, keepdims=keepdims)
    y = n.op("Log", total)
    shape = [int(d) for d in y.shape]
    y = n.op("Add", y, n.op("Reshape", top, shape=shape))
    return y if dtype in FLOATS else n.op("Cast", y, to=dtype)


@plugin(onnx=["ArgMax", "ArgMin"])
def _arg_extreme(n: Node) -> Results:
    return n.op(
        n.type,
        n.inputs[0],
        axis=n.attr("axis", 0),
        keepdims=bool(n.attr("keepdims", 1)),
        select_last=bool(n.attr("select_last_index", 0)),
    )


@plugin(onnx=["CumSum", "CumProd"])
def _cumulative(n: Node) -> Results:
    axes = n.ints(1, "axis")
    if len(axes) != 1:
        raise Unsupported(f"axis of {n.type} must be one number, got {axes}")
    return n.op(
        n.type,
        n.inputs[0],
        axis=axes[0],
        exclusive=bool(n.attr("exclusive", 0)),
        reverse=bool(n.attr("reverse", 0)),
    )


# -- TensorFlow --------------------------------------------------------------------------------------------


def _tf_axes(n: Node) -> list[int]:
    """The axes of a reduction; an empty list reduces nothing."""
    return n.ints(1, "the axes")


def _reduction_tf(name: str, type_: str) -> None:
    @plugin(tensorflow=name)
    def mapped(n: Node) -> Results:
        axes = _tf_axes(n)
        if not axes:
            return n.inputs[0]  # type: ignore[return-value]
        return n.op(type_, n.inputs[0], axes=axes, keepdims=bool(n.attr("keep_dims", False)))


_reduction_tf("Sum", "ReduceSum")
_reduction_tf("Mean", "ReduceMean")
_reduction_tf("Max", "ReduceMax")
_reduction_tf("Min", "ReduceMin")
_reduction_tf("Prod", "ReduceProd")
_reduction_tf("Any", "ReduceAny")
_reduction_tf("All", "ReduceAll")


@plugin(tensorflow="EuclideanNorm")
def _euclidean_norm(n: Node) -> Results:
    keep = bool(n.attr("keep_dims", False))
    return n.op("Sqrt", n.op("ReduceSum", n.op("Square", n.inputs[0]), axes=_tf_axes(n), keepdims=keep))


@plugin(tensorflow="L2Loss")
def _l2_loss(n: Node) -> Results:
    return n.op("Mul", n.op("ReduceSum", n.op("Square", n.inputs[0])), 0.5)


@plugin(tensorflow=["ArgMax", "ArgMin"])
def _arg_extreme_tf(n: Node) -> Results:
    """The position of the extreme element; TensorFlow skips NaN, and returns 0 if there is nothing else."""
    axis, x = n.ints(1, "the axis")[0] if n.input(1) is not None else 0, n.inputs[0]
    if n.desc().dtype in FLOATS:
        least = np.asarray(-np.inf if n.type == "ArgMax" else np.inf, numpy_dtype(n.desc().dtype))
        x = n.op("Select", n.op("IsNan", x), least, x)
    found = n.op(n.type, x, axis=axis, keepdims=False)
    to = str(n.attr("output_type", "int64"))
    return found if to == "int64" else n.op("Cast", found, to=to)


@plugin(tensorflow=["Cumsum", "Cumprod"])
def _cumulative_tf(n: Node) -> Results:
    type_ = {"Cumsum": "CumSum", "Cumprod": "CumProd"}[n.type]
    flags = {name: bool(n.attr(name, False)) for name in ("exclusive", "reverse")}
    return n.op(type_, n.inputs[0], axis=n.ints(1, "the axis")[0], **flags)


@plugin(tensorflow="CumulativeLogsumexp")
def _cumulative_log_sum_exp(n: Node) -> Results:
    """Sums of pairs, of fours, of eights, ...: no single shift fits elements that are far apart."""
    axis, rank = n.ints(1, "the axis")[0], n.desc().rank
    axis, size = axis % rank, n.desc().shape[axis]
    reverse = bool(n.attr("reverse", False))
    nothing = np.asarray(-np.inf, numpy_dtype(n.desc().dtype))

    def shifted(x: Any, by: int) -> Any:
        """Each element's value `by` places before it; minus infinity before the first."""
        first = by if reverse else 0
        starts, ends = [0] * rank, list(n.desc().shape)
        starts[axis], ends[axis] = first, first + size - by
        gap = [by if i == axis else s for i, s in enumerate(n.desc().shape)]
        parts = [n.op("BroadcastTo", nothing, shape=gap), n.op("Slice", x, starts=starts, ends=ends)]
        return n.op("Concat", *(parts[::-1] if reverse else parts), axis=axis)

    total: Any = n.inputs[0]
    if n.attr("exclusive", False) and size:
        total = shifted(total, 1)
    for by in itertools.takewhile(lambda k: k < size, (1 << k for k in itertools.count())):
        total = _log_of_sum(n, total, shifted(total, by))
    return total


def _log_of_sum(n: Node, a: Any, b: Any) -> Any:
    """log(exp(a) + exp(b))."""
    top = n.op("Maximum", a, b)
    rest = n.op("Log1p", n.op("Exp", n.op("Sub", n.op("Minimum", a, b), top)))
    return n.op("Select", n.op("Equal", top, -np.inf), top, n.op("Add", top, rest))
