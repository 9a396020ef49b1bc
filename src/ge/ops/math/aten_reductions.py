"""ATen: reductions, running reductions, softmax, sorting."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ge.ir.types import FLOATS
from ge.ir.values import desc_of
from ge.ops.aten import AtenNode, aten
from ge.ops.plugins import Unsupported
from ge.ops.tensor.aten_movement import axis_of


def axes_of(n: AtenNode) -> list[int]:
    """The axes that are reduced: all when none are named."""
    rank = desc_of(n.arg("self")).rank
    given = n.arg("dim")
    if given is None or (isinstance(given, (list, tuple)) and not given):
        return list(range(rank))
    given = [given] if isinstance(given, int) else given
    return sorted({int(d) % rank for d in given}) if rank else []


def _reduced(n: AtenNode, type_: str, x: Any, axes: list[int], index: int = 0) -> Any:
    """A reduction in the shape that the framework gives it."""
    shape = n.out(index).shape
    y = n.op(type_, x, axes=axes, keepdims=False) if axes else x
    return n.shaped(y, shape)


@aten("sum", "mean", "prod")
def _sum(n: AtenNode) -> Any:
    name = n.type.partition(".")[0]
    type_ = {"sum": "ReduceSum", "mean": "ReduceMean", "prod": "ReduceProd"}[name]
    x = n.cast(n.arg("self"), n.out().dtype)
    if n.out().dtype == "bool":
        raise Unsupported(f"{name} as bools")
    axes = axes_of(n)
    if name == "mean" and not desc_of(x).size:
        return n.filled(math.nan, n.out())
    return _reduced(n, type_, x, axes)


@aten("amax", "amin", "max.default", "min.default")
def _extreme(n: AtenNode) -> Any:
    x = n.arg("self")
    if ".default" in n.type and not desc_of(x).size:
        raise Unsupported("PyTorch reports the extreme of no elements")
    biggest = "max" in n.type.partition(".")[0]
    if desc_of(x).dtype == "bool":
        return _reduced(n, "ReduceAny" if biggest else "ReduceAll", x, axes_of(n))
    return _reduced(n, "ReduceMax" if biggest else "ReduceMin", x, axes_of(n))


@aten("any", "all")
def _any(n: AtenNode) -> Any:
    type_ = "ReduceAny" if n.type.startswith("any") else "ReduceAll"
    return n.back(_reduced(n, type_, n.cast(n.arg("self"), "bool"), axes_of(n)))


@aten("argmax", "argmin")
def _arg(n: AtenNode) -> Any:
    x = n.arg("self")
    desc = desc_of(x)
    type_ = "ArgMax" if n.type.startswith("argmax") else "ArgMin"
    if desc.dtype == "bool":
        raise Unsupported("PyTorch refuses the place of an extreme of bools")
    if n.arg("dim") is None:
        x, axis = n.shaped(x, [desc.size]), 0
    else:
        axis = axis_of(n)
    if not desc.rank:
        return n.filled(0, n.out())
    return n.shaped(n.op(type_, x, axis=axis, keepdims=False), n.out().shape)


def _scalar(n: AtenNode, refused: str) -> list[Any]:
    """The value and the place of a number alone; nothing for other tensors, of which bools are refused."""
    desc = desc_of(n.arg("self"))
    if not desc.rank:
        return [n.op("Identity", n.arg("self")), n.filled(0, n.out(1))]
    if desc.dtype == "bool":
        raise Unsupported(refused)
    return []


@aten("max.dim", "min.dim")
def _extreme_and_place(n: AtenNode) -> Any:
    if alone := _scalar(n, "the place of a maximum of bools"):
        return alone
    x, axis = n.arg("self"), axis_of(n)
    biggest = n.type.startswith("max")
    place = n.op("ArgMax" if biggest else "ArgMin", x, axis=axis, keepdims=False)
    value = n.op("ReduceMax" if biggest else "ReduceMin", x, axes=[axis], keepdims=False)
    return [n.shaped(value, n.out(0).shape), n.shaped(place, n.out(1).shape)]


def _moments(n: AtenNode) -> tuple[Any, Any]:
    """Variance and mean over the axes, both with the axes kept."""
    if desc_of(n.arg("self")).dtype not in FLOATS:
        raise Unsupported("a variance of integers")  # PyTorch's error
    x = n.wide(n.arg("self"))
    axes = axes_of(n)
    count = math.prod(desc_of(x).shape[a] for a in axes)
    correction = n.arg("correction")
    if correction is None:
        correction = 1 if n.attrs.get("unbiased", True) else 0
    mean = n.op("ReduceMean", x, axes=axes, keepdims=True) if axes else x
    squares = n.op("Square", n.op("Sub", x, mean))
    total = n.op("ReduceSum", squares, axes=axes, keepdims=True) if axes else squares
    return n.op("Div", total, float(max(count - float(correction), 0))), mean


@aten("var", "std")
def _var(n: AtenNode) -> Any:
    variance, _ = _moments(n)
    y = n.op("Sqrt", variance) if n.type.startswith("std") else variance
    return n.shaped(n.back(y), n.out().shape)


@aten("var_mean", "std_mean")
def _var_mean(n: AtenNode) -> Any:
    variance, mean = _moments(n)
    first = n.op("Sqrt", variance) if n.type.startswith("std") else variance
    return [n.shaped(n.back(first), n.out(0).shape), n.shaped(n.back(mean, 1), n.out(1).shape)]


@aten("linalg_vector_norm", "norm.ScalarOpt_dim", "norm.Scalar")
def _vector_norm(n: AtenNode) -> Any:
    order = n.arg("ord", n.arg("p", 2))
    x = n.op("Abs", n.wide(n.cast(n.arg("self"), n.out().dtype)))
    axes = axes_of(n)
    if not desc_of(x).size:
        raise Unsupported("a norm of an empty tensor")
    forms: dict[float, tuple[str, str, str]] = {
        1: ("", "ReduceSum", ""),
        2: ("Square", "ReduceSum", "Sqrt"),
        math.inf: ("", "ReduceMax", ""),
        -math.inf: ("", "ReduceMin", ""),
    }
    if order == 0:
        nonzero = n.op("Cast", n.op("NotEqual", x, 0), to=desc_of(x).dtype)
        return n.back(_reduced(n, "ReduceSum", nonzero, axes))
    before, type_, after = forms.get(order, ("Pow", "ReduceSum", "Root"))
    y = n.op("Pow", x, float(order)) if before == "Pow" else n.op(before, x) if before else x
    y = _reduced(n, type_, y, axes)
    y = n.op("Pow", y, 1 / float(order)) if after == "Root" else n.op(after, y) if after else y
    return n.back(y)


# -- softmax -----------------------------------------------------------------------------------------------


def _declare_softmax(name: str, type_: str) -> None:
    @aten(f"{name}.default", f"{name.lstrip('_')}.int")
    def mapped_(n: AtenNode) -> Any:
        x = n.arg("self")
        if n.arg("half_to_float"):
            x = n.cast(x, "float32")
        x = n.cast(x, n.out().dtype)
        if desc_of(x).rank:
            return n.op(type_, x, axes=[axis_of(n)])
        return n.op("Reshape", n.op(type_, n.op("Reshape", x, shape=[1]), axes=[0]), shape=[])


_declare_softmax("_softmax", "Softmax")
_declare_softmax("_log_softmax", "LogSoftmax")


@aten("_safe_softmax")
def _safe_softmax(n: AtenNode) -> Any:
    """Rows that are all minus infinity give zeros."""
    x, axis = n.cast(n.arg("self"), n.out().dtype), axis_of(n)
    y = n.op("Softmax", x, axes=[axis])
    masked = n.op("ReduceAll", n.op("Equal", x, -math.inf), axes=[axis], keepdims=True)
    return n.op("Select", masked, 0, y)


@aten("_softmax_backward_data")
def _softmax_backward(n: AtenNode) -> Any:
    g, y = n.wide(n.arg("grad_output")), n.wide(n.arg("output"))
    rank = desc_of(y).rank
    product = n.op("Mul", g, y)
    if not rank:
        return n.back(n.op("Sub", product, n.op("Mul", y, product)))
    total = n.op("ReduceSum", product, axes=[int(n.arg("dim", 0)) % rank], keepdims=True)
    return n.back(n.op("Sub", product, n.op("Mul", y, total)))


@aten("_log_softmax_backward_data")
def _log_softmax_backward(n: AtenNode) -> Any:
    g, y = n.wide(n.arg("grad_output")), n.wide(n.arg("output"))
    rank = desc_of(y).rank
    total = n.op("ReduceSum", g, axes=[int(n.arg("dim", 0)) % rank], keepdims=True) if rank else g
    return n.back(n.op("Sub", g, n.op("Mul", n.op("Exp", y), total)))


@aten("logsumexp")
def _logsumexp(n: AtenNode) -> Any:
    """Shifted by the maximum; an infinite one is left out."""
    x = n.wide(n.cast(n.arg("self"), n.out().dtype))
    axes = axes_of(n)
    if not axes or not desc_of(x).size:
        raise Unsupported("the sum of an empty tensor")
    top = n.op("ReduceMax", x, axes=axes, keepdims=True)
    top = n.op("Select", n.op("IsFinite", top), top, 0)
    total = n.op("ReduceSum", n.op("Exp", n.op("Sub", x, top)), axes=axes, keepdims=True)
    return n.back(n.shaped(n.op("Add", n.op("Log", total), top), n.out().shape))


# -- running -----------------------------------------------------------------------------------------------


@aten("cumsum", "cumprod")
def _running(n: AtenNode) -> Any:
    """Totals of float32 are carried in float64, as eager mode's are."""
    dtype = n.out().dtype
    if dtype == "bool":
        raise Unsupported("running sums of bools")
    x = n.cast(n.arg("self"), dtype)
    if not desc_of(x).rank:
        return n.op("Identity", x)
    type_ = "CumSum" if n.type.startswith("cumsum") else "CumProd"
    wide = n.cast(x, "float64") if dtype == "float32" else x
    return n.cast(n.op(type_, wide, axis=axis_of(n)), dtype)


# -- order -------------------------------------------------------------------------------------------------


@aten("topk")
def _topk(n: AtenNode) -> Any:
    if alone := _scalar(n, "the largest of bools"):
        return alone
    largest = bool(n.attrs.get("largest", True))
    return list(n.op("TopK", n.arg("self"), k=int(n.arg("k")), axis=axis_of(n, default=-1), largest=largest))


@aten("sort")
def _sort(n: AtenNode) -> Any:
    """Sorted stably, whether asked for or not."""
    if alone := _scalar(n, "bools in order"):
        return alone
    x = n.arg("self")
    attrs: dict[str, Any] = {"axis": axis_of(n, default=-1), "descending": bool(n.arg("descending", False))}
    if desc_of(x).dtype in FLOATS and attrs["descending"]:
        raise Unsupported("NaN in descending order")
    places = n.op("ArgSort", x, **attrs)
    return [n.op("GatherElements", x, places, axis=attrs["axis"]), places]


@aten("bincount")
def _bincount(n: AtenNode) -> Any:
    raise Unsupported("the number of bins depends on the data")


@aten("nan_to_num")
def _nan_to_num(n: AtenNode) -> Any:
    x = n.arg("self")
    dtype = desc_of(x).dtype
    if dtype not in FLOATS:
        return n.op("Identity", x)
    ends = _limits(dtype)
    high, low = n.arg("posinf", ends), n.arg("neginf", -ends)
    y = n.op("Select", n.op("IsNan", x), float(n.arg("nan", 0.0)), x)
    y = n.op("Select", n.op("IsInf", x, detect_negative=False), float(high), y)
    return n.op("Select", n.op("IsInf", x, detect_positive=False), float(low), y)


def _limits(dtype: str) -> float:
    import ml_dtypes

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return float(ml_dtypes.finfo(kind).max)
