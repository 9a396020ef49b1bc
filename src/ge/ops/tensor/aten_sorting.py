"""ATen: medians, searchsorted, counts, distances, masked and strided scatters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ge.ir.types import FLOATS
from ge.ir.values import desc_of
from ge.ops.aten import AtenNode, aten, promoted
from ge.ops.aten_checks import places_of
from ge.ops.plugins import Unsupported
from ge.ops.tensor.aten_movement import MAX_POSITIONS, axis_of

# -- order -------------------------------------------------------------------------------------------------


def _ordered(n: AtenNode, x: Any, axis: int) -> tuple[Any, Any]:
    """Elements from the smallest, NaN last, and their places."""
    if desc_of(x).dtype == "bool" or not desc_of(x).size:
        raise Unsupported(f"the order of {desc_of(x)}")
    if len(n.results) > 1 and desc_of(x).dtype not in FLOATS:
        raise Unsupported("which of equal numbers is named is ATen's choice")
    places = n.op("ArgSort", x, axis=axis, descending=False)
    return n.op("GatherElements", x, places, axis=axis), places


def _slot(n: AtenNode, value: Any, axis: int, index: int) -> Any:
    """The elements at one place of an axis."""
    shape = list(desc_of(value).shape)
    starts, ends = [0] * len(shape), list(shape)
    starts[axis], ends[axis] = index, index + 1
    return n.op("Slice", value, starts=starts, ends=ends, steps=[1] * len(shape))


def _line(n: AtenNode) -> tuple[Any, int]:
    """The argument and the axis along which it is searched; all of it where none is given."""
    x = n.arg("self")
    if not desc_of(x).rank or (n.type.endswith(".default") and n.arg("dim") is None and "kth" not in n.type):
        return n.shaped(x, [desc_of(x).size]), 0
    return x, axis_of(n, default=-1)


@aten("median", "nanmedian")
def _median(n: AtenNode) -> Any:
    """The lower of the two elements in the middle; NaN where there is one, or of those that are none."""
    x, axis = _line(n)
    ordered, places = _ordered(n, x, axis)
    extent = desc_of(x).shape[axis]
    middle = n.op("Reshape", n.cast((extent - 1) // 2, "int64"), shape=[1] * desc_of(x).rank)
    shape = [1 if a == axis else d for a, d in enumerate(desc_of(x).shape)]
    middle = n.spread(middle, shape)
    if desc_of(x).dtype in FLOATS:
        nans = n.op("ReduceSum", n.op("Cast", n.op("IsNan", x), to="int64"), axes=[axis], keepdims=True)
        last = n.filled(extent - 1, desc_of(middle))
        if n.type.startswith("nan"):
            known = n.op("Sub", extent - 1, nans)
            middle = n.op("Select", n.op("Less", known, 0), 0, n.op("FloorDiv", n.op("Maximum", known, 0), 2))
        else:
            middle = n.op("Select", n.op("Greater", nans, 0), last, middle)
    found = n.op("GatherElements", ordered, middle, axis=axis)
    if len(n.results) == 1:
        return n.shaped(found, n.out().shape)
    index = n.op("GatherElements", places, middle, axis=axis)
    return [n.shaped(found, n.out(0).shape), n.shaped(index, n.out(1).shape)]


@aten("kthvalue.default")
def _kthvalue(n: AtenNode) -> Any:
    x, axis = _line(n)
    ordered, places = _ordered(n, x, axis)
    index = int(n.arg("k")) - 1
    return [n.shaped(_slot(n, v, axis, index), n.out(i).shape) for i, v in enumerate((ordered, places))]


@aten("searchsorted.Tensor", "searchsorted.Scalar", "bucketize.Tensor", "bucketize.Scalar")
def _searchsorted(n: AtenNode) -> Any:
    """How many elements come before each value: all of them are compared."""
    edges = n.arg("boundaries", n.arg("sorted_sequence"))
    if n.arg("sorter") is not None:
        raise Unsupported("a sequence that is sorted by places")
    if n.arg("boundaries") is not None and desc_of(edges).rank != 1:
        raise Unsupported("boundaries of several axes")
    kind = promoted(edges, n.arg("self"))
    after = n.arg("side") == "right" or bool(n.arg("right"))
    shape = list(n.out().shape)
    values = n.shaped(n.cast(n.arg("self"), kind), [*shape, 1])
    edges = n.cast(edges, kind)
    extent = desc_of(edges).shape
    if n.out().size * extent[-1] > MAX_POSITIONS * 16:
        raise Unsupported(f"{n.out().size} values compared with {extent[-1]} each")
    if len(extent) > 1:
        edges = n.shaped(edges, [*extent[:-1], 1, extent[-1]])
    beyond = n.op("Greater" if after else "GreaterEqual", edges, values)
    before = n.op("Cast", n.op("Not", beyond), to="int64")
    return n.back(n.op("ReduceSum", before, axes=[len(shape)], keepdims=False))


@aten("histc.default")
def _histc(n: AtenNode) -> Any:
    """Elements in bins of one width; those beyond the ends are left out."""
    x = n.arg("self")
    desc, bins = desc_of(x), int(n.arg("bins", 100))
    low, high = float(n.arg("min", 0)), float(n.arg("max", 0))
    if desc.dtype not in ("float32", "float64") or not desc.size or desc.size * bins > MAX_POSITIONS * 16:
        raise Unsupported(f"a histogram of {desc}")
    if low >= high:
        raise Unsupported("a histogram between the elements' own ends")
    flat = n.shaped(x, [desc.size, 1])
    place = n.op("Floor", n.op("Mul", n.op("Div", n.op("Sub", flat, low), high - low), float(bins)))
    place = n.op("Select", n.op("Equal", flat, high), float(bins - 1), place)
    inside = n.op("And", n.op("GreaterEqual", flat, low), n.op("LessEqual", flat, high))
    numbers = n.builder.constant(np.arange(bins, dtype=desc.dtype)[None])
    hits = n.op("And", n.op("Equal", place, numbers), inside)
    return n.op("ReduceSum", n.op("Cast", hits, to=desc.dtype), axes=[0], keepdims=False)


# -- distances ---------------------------------------------------------------------------------------------


def _norm(n: AtenNode, x: Any, p: float, axes: list[int]) -> Any:
    """The p-norm over axes."""
    size = n.op("Abs", x)
    if p == 0:
        nonzero = n.op("Cast", n.op("NotEqual", x, 0), to=desc_of(x).dtype)
        return n.op("ReduceSum", nonzero, axes=axes, keepdims=False)
    if math.isinf(p):
        return n.op("ReduceMax" if p > 0 else "ReduceMin", size, axes=axes, keepdims=False)
    if p == 1:
        return n.op("ReduceSum", size, axes=axes, keepdims=False)
    if p == 2:
        return n.op("Sqrt", n.op("ReduceSum", n.op("Square", x), axes=axes, keepdims=False))
    return n.op("Pow", n.op("ReduceSum", n.op("Pow", size, p), axes=axes, keepdims=False), 1 / p)


@aten("dist.default")
def _dist(n: AtenNode) -> Any:
    dtype = n.out().dtype
    gap = n.wide(n.op("Sub", n.cast(n.arg("self"), dtype), n.cast(n.arg("other"), dtype)))
    if not desc_of(gap).size:
        raise Unsupported("the distance of empty tensors")
    return n.back(_norm(n, gap, float(n.arg("p", 2)), list(range(desc_of(gap).rank))))


@aten("_cdist_forward.default")
def _cdist(n: AtenNode) -> Any:
    """Every row of one matrix against every row of another."""
    a, b = n.arg("x1"), n.arg("x2")
    left, right = list(desc_of(a).shape), list(desc_of(b).shape)
    if not n.out().size or not left[-1] or n.out().size * left[-1] > MAX_POSITIONS * 16:
        raise Unsupported(f"distances between {desc_of(a)} and {desc_of(b)}")
    a = n.shaped(a, [*left[:-1], 1, left[-1]])
    b = n.shaped(b, [*right[:-2], 1, *right[-2:]])
    return _norm(n, n.op("Sub", a, b), float(n.arg("p")), [len(n.out().shape)])


@aten("_pdist_forward.default")
def _pdist(n: AtenNode) -> Any:
    """Every pair of rows once."""
    x = n.arg("self")
    first, second = np.triu_indices(desc_of(x).shape[0], 1)
    if not first.size or not desc_of(x).shape[1] or first.size > MAX_POSITIONS:
        raise Unsupported(f"distances between the rows of {desc_of(x)}")
    left, right = (n.op("Gather", x, n.builder.constant(i.astype(np.int64)), axis=0) for i in (first, second))
    return _norm(n, n.op("Sub", left, right), float(n.arg("p", 2)), [1])


@aten("addbmm.default")
def _addbmm(n: AtenNode) -> Any:
    """The products of all matrices of two lists, added up."""
    dtype = n.out().dtype
    if dtype not in ("float32", "float64"):
        raise Unsupported(f"sums of products that are rounded to {dtype} one by one")
    a, b = n.arg("batch1"), n.arg("batch2")
    count, rows, inner = desc_of(a).shape
    if not count * rows * inner * desc_of(b).shape[2]:
        raise Unsupported("a product over an axis of size 0")
    wide = n.shaped(n.turned(a, [1, 0, 2]), [rows, count * inner])
    y = n.op("MatMul", wide, n.shaped(b, [count * inner, desc_of(b).shape[2]]))
    alpha, beta = float(n.arg("alpha", 1)), float(n.arg("beta", 1))
    y = y if alpha == 1 else n.op("Mul", y, alpha)
    if beta == 0:
        return y
    given = n.arg("self")
    return n.op("Add", given if beta == 1 else n.op("Mul", given, beta), y)


# -- writing -----------------------------------------------------------------------------------------------


def _written(n: AtenNode, flat: Any, places: Any, values: Any, reduction: str = "none") -> Any:
    """Elements of a flat tensor at flat places replaced, or added to."""
    count = desc_of(values).size
    return n.op(
        "ScatterNd", flat, n.shaped(places, [count, 1]), n.shaped(values, [count]), reduction=reduction
    )


def _flat(n: AtenNode, value: Any) -> Any:
    return n.shaped(value, [desc_of(value).size])


@aten("diagonal_scatter.default")
def _diagonal_scatter(n: AtenNode) -> Any:
    x, source = n.arg("self"), n.arg("src")
    desc = desc_of(x)
    if not desc_of(source).size or desc.size > MAX_POSITIONS:
        raise Unsupported(f"a diagonal of {desc}")
    grid = np.arange(desc.size, dtype=np.int64).reshape(desc.shape)
    places = np.diagonal(grid, int(n.arg("offset", 0)), int(n.arg("dim1", 0)), int(n.arg("dim2", 1)))
    made = _written(n, _flat(n, x), n.builder.constant(np.ascontiguousarray(places)), source)
    return n.shaped(made, desc.shape)


@aten("put.default")
def _put(n: AtenNode) -> Any:
    x, index, source = n.arg("self"), n.arg("index"), n.arg("source")
    desc = desc_of(x)
    adds = bool(n.arg("accumulate", False))
    if not desc_of(index).size or not desc.size or (adds and desc.dtype == "bool"):
        raise Unsupported(f"{desc_of(index)} places of {desc}")
    index = places_of(n, index, desc.size, from_end=True)
    places = n.op("Select", n.op("Less", index, 0), n.op("Add", index, desc.size), index)
    made = _written(n, _flat(n, x), places, source, "add" if adds else "none")
    return n.shaped(made, desc.shape)


def _ranks(n: AtenNode, mask: Any) -> Any:
    """How many true elements a mask has before each of its elements, that one included."""
    return n.op("CumSum", n.op("Cast", mask, to="int64"), axis=0)


@aten("masked_scatter.default")
def _masked_scatter(n: AtenNode) -> Any:
    """True elements take the source's elements one after another."""
    shape, source = n.out().shape, n.arg("source")
    if not n.out().size or not desc_of(source).size:
        raise Unsupported("a mask over an empty tensor")
    mask = _flat(n, n.spread(n.arg("mask"), shape))
    place = n.op("Select", mask, n.op("Sub", _ranks(n, mask), 1), n.cast(0, "int64"))
    place = places_of(n, place, desc_of(source).size, text="the mask has more than {size} true elements")
    taken = n.op("Gather", _flat(n, source), place, axis=0)
    return n.shaped(n.op("Select", mask, taken, _flat(n, n.spread(n.arg("self"), shape))), shape)


@aten("masked_scatter_backward.default")
def _masked_scatter_backward(n: AtenNode) -> Any:
    """The gradients of true elements, one after another; what is left over is 0."""
    grad, count = n.arg("grad_output"), n.out().size
    desc = desc_of(grad)
    if not desc.size or not count:
        raise Unsupported("a mask over an empty tensor")
    mask = _flat(n, n.spread(n.arg("mask"), desc.shape))
    place = n.op("Select", mask, n.op("Sub", _ranks(n, mask), 1), count)
    blank = n.builder.constant(np.zeros(count + 1, np.float32))
    if desc.dtype != "float32":
        raise Unsupported(f"gradients in {desc.dtype}")
    made = _written(n, blank, n.op("Minimum", place, count), _flat(n, grad))
    return n.shaped(_slot_range(n, made, count), n.out().shape)


def _slot_range(n: AtenNode, value: Any, count: int) -> Any:
    return n.op("Slice", value, starts=[0], ends=[count], steps=[1])
