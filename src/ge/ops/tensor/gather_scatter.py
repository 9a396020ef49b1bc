"""Operators that read or write at computed positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import tbe
from ge.ir.types import FLOATS, INTS, TENSORS, TensorDesc, numpy_dtype
from ge.ir.values import desc_of
from ge.ops.base import Attr, Input, NodeView, Operator, Output, Pattern, fail, register
from ge.ops.dataflow import Dataflow, Order, Part, Reordered, Sliced, Stack, Stacked
from ge.ops.math.checks import failing_where, in_range, indices_of
from ge.ops.plugins import Node, Results, Unsupported, plugin

INDICES = frozenset({"int32", "int64"})
_REDUCTIONS = ("none", "add", "mul", "max", "min")


def _shape(op: NodeView, index: int) -> tuple[int, ...]:
    desc = op.inputs[index]
    assert desc is not None
    return desc.shape


def _along_axis(op: NodeView) -> dict[int, dict[str, Any]]:
    """Indices are positions along the axis of the first input; an invalid axis is reported later."""
    shape = _shape(op, 0)
    fits = -len(shape) <= op.axis < len(shape)
    return {1: {"limits": [shape[op.axis]], "from_end": True}} if fits else {}


def _leading(op: NodeView, batch_dims: int = 0) -> dict[int, dict[str, Any]]:
    """The last axis of the indices holds positions along leading axes of the first input."""
    limits = list(_shape(op, 0)[batch_dims : batch_dims + _shape(op, 1)[-1]])
    return {1: {"limits": limits, "from_end": True}} if limits else {}


class Gathering(Operator):
    """Elements of x chosen by indices; negative ones count from the end."""

    x = Input("T", TENSORS)
    indices = Input("I", INDICES)
    y = Output("T")
    pattern = Pattern.INJECTIVE

    @staticmethod
    def flops(op: NodeView) -> int:
        return 0


class Picked(Dataflow):
    """Slices of the first input along an axis, in whose place the output has the axes of the indices."""

    def slice(self, op: NodeView, part: Part) -> Sliced | None:
        x, indices = op.inputs[:2]
        assert x is not None and indices is not None
        axis = op.axis % x.rank
        if op.batch_dims:
            return None
        if axis <= part.axis < axis + indices.rank:
            return Sliced({1: part.at(part.axis - axis)})
        return Sliced({0: part if part.axis < axis else part.at(part.axis - indices.rank + 1)})

    def reorder(self, op: NodeView, order: Order) -> Reordered | None:
        """With a vector of indices the axis stays in place."""
        if op.batch_dims or op.inputs[1].rank != 1:  # type: ignore[union-attr]
            return None
        return Reordered(order.perm, {"axis": order.axis(op.axis)}, first_only=True)

    def stack(self, op: NodeView, stack: Stack) -> Stacked | None:
        """The same indices in all runs, or indices of all runs into the first axis of one tensor."""
        axis = op.axis % op.inputs[0].rank  # type: ignore[union-attr]
        if op.batch_dims or (stack.inputs != {0} and (stack.inputs != {1} or axis)):
            return None
        return Stacked({"axis": axis + 1} if 0 in stack.inputs else {})


@register
class Gather(Gathering):
    """Slices of x along axis; the first batch_dims axes of x and indices go together."""

    axis = Attr(int, 0)
    batch_dims = Attr(int, 0)
    dataflow = Picked()

    @staticmethod
    def rules(op: NodeView) -> dict[int, dict[str, Any]]:
        return _along_axis(op)

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor, indices: tbe.Tensor) -> tbe.Tensor:
        return tbe.take(x, indices, op.axis % len(x.shape), op.batch_dims)


@register
class GatherNd(Gathering):
    """Elements or slices of x whose leading positions are the last axis of indices."""

    batch_dims = Attr(int, 0)

    @staticmethod
    def verify(op: NodeView) -> None:
        x, indices = op.inputs[:2]
        assert x is not None and indices is not None
        if not indices.rank or op.batch_dims + indices.shape[-1] > x.rank:
            raise fail(op, f"indices {indices} reach deeper than {x} after {op.batch_dims} batch axes")

    @staticmethod
    def rules(op: NodeView) -> dict[int, dict[str, Any]]:
        return _leading(op, op.batch_dims)

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor, indices: tbe.Tensor) -> tbe.Tensor:
        batch, outer, depth = op.batch_dims, len(indices.shape) - 1, indices.shape[-1]
        shape = indices.shape[:-1] + x.shape[batch + depth :]

        def element(*i: tbe.Scalar) -> tbe.Scalar:
            found = [wrapped(indices[(*i[:outer], d)], x.shape[batch + d]) for d in range(depth)]
            return x[(*i[:batch], *found, *i[outer:])]

        return tbe.compute(shape, element)


@register
class GatherElements(Gathering):
    """y[i][j] = x[indices[i][j]][j] for axis 0, and so on."""

    axis = Attr(int, 0)

    @staticmethod
    def rules(op: NodeView) -> dict[int, dict[str, Any]]:
        return _along_axis(op)

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor, indices: tbe.Tensor) -> tbe.Tensor:
        axis = op.axis % len(x.shape)

        def element(*i: tbe.Scalar) -> tbe.Scalar:
            return x[(*i[:axis], wrapped(indices[i], x.shape[axis]), *i[axis + 1 :])]

        return tbe.compute(indices.shape, element)


def wrapped(index: tbe.Scalar, extent: int) -> tbe.Scalar:
    """An index with negative values counted from the end."""
    index = tbe.cast(index, "int64")
    return tbe.select(index < 0, index + extent, index)


@register
class ReverseSequence(Operator):
    """The first lengths[b] elements along time_axis of each batch entry back to front."""

    x = Input("T", TENSORS)
    lengths = Input("I", INDICES)
    y = Output("T")
    time_axis = Attr(int, 0)
    batch_axis = Attr(int, 1)
    pattern = Pattern.INJECTIVE

    @staticmethod
    def rules(op: NodeView) -> dict[int, dict[str, Any]]:
        shape = _shape(op, 0)
        fits = -len(shape) <= op.time_axis < len(shape)
        return {1: {"limits": [shape[op.time_axis] + 1]}} if fits else {}

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor, lengths: tbe.Tensor) -> tbe.Tensor:
        time, batch = op.time_axis % len(x.shape), op.batch_axis % len(x.shape)

        def element(*i: tbe.Scalar) -> tbe.Scalar:
            length = tbe.cast(lengths[i[batch]], "int64")
            source = tbe.select(i[time] < length, length - 1 - i[time], i[time])
            return x[(*i[:time], source, *i[time + 1 :])]

        return tbe.compute(x.shape, element)


@register
class OneHot(Operator):
    """`on` where the position along a new axis equals the index, `off` elsewhere (also out of range)."""

    indices = Input("I", INTS)
    on = Input("T", TENSORS)
    off = Input("T", TENSORS)
    y = Output("T")
    depth = Attr(int)
    axis = Attr(int, -1)
    pattern = Pattern.BROADCAST
    dataflow = Dataflow()  # an axis of the output is missing in the indices
    piecewise_constant = True

    @staticmethod
    def compute(op: NodeView, indices: tbe.Tensor, on: tbe.Tensor, off: tbe.Tensor) -> tbe.Tensor:
        rank = len(indices.shape) + 1
        axis = op.axis % rank
        spread = tbe.reshape(indices, (*indices.shape[:axis], 1, *indices.shape[axis:]))
        shape = (*indices.shape[:axis], op.depth, *indices.shape[axis:])
        hit = tbe.binary("eq", tbe.iota(shape, axis, "int64"), tbe.cast(spread, "int64"))
        return tbe.select(hit, tbe.reshape(on, ()), tbe.reshape(off, ()))


# -- scatter -----------------------------------------------------------------------------------------------


class Scattering(Operator):
    """x with updates written or combined at computed positions."""

    x = Input("T", TENSORS)
    indices = Input("I", INDICES)
    updates = Input("T", TENSORS)
    y = Output("T")
    reduction = Attr(str, "none", choices=_REDUCTIONS)
    overwrites = True

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        return op.inputs[0]  # type: ignore[return-value]

    @staticmethod
    def flops(op: NodeView) -> int:
        return op.inputs[2].size  # type: ignore[union-attr]


@register
class ScatterElements(Scattering):
    """y = x; y[indices[i][j]][j] = updates[i][j] for axis 0, and so on."""

    axis = Attr(int, 0)
    aicpu = "scatter_elements"
    light = True

    @staticmethod
    def expand(builder: Any, op: NodeView, x: Any, indices: Any, updates: Any) -> Any:
        """One update along the axis, on a GPU: every element tests whether it is the target."""
        shape, axis = op.inputs[0].shape, op.axis % op.inputs[0].rank  # type: ignore[union-attr]
        once = tuple(1 if i == axis else n for i, n in enumerate(shape))
        on_gpu = builder.target is not None and builder.target.kind == "cuda"
        if not on_gpu or op.inputs[1].shape != once or op.reduction not in ("none", "add"):  # type: ignore[union-attr]
            return NotImplemented
        size = shape[axis]
        places = np.arange(size).reshape([size if i == axis else 1 for i in range(len(shape))])
        wide = builder.op("Cast", indices, to="int64")
        spots = builder.op("Select", builder.op("Less", wide, 0), builder.op("Add", wide, size), wide)
        hit = builder.op("Equal", builder.constant(places), spots)
        return builder.op(
            "Select", hit, builder.op("Add", x, updates) if op.reduction == "add" else updates, x
        )

    @staticmethod
    def verify(op: NodeView) -> None:
        x, indices, updates = op.inputs[:3]
        assert x is not None and indices is not None and updates is not None
        if indices.shape != updates.shape or indices.rank != x.rank:
            raise fail(op, f"indices {indices} and updates {updates} do not match {x}")

    @staticmethod
    def rules(op: NodeView) -> dict[int, dict[str, Any]]:
        return _along_axis(op)

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        x, indices, updates = (np.asarray(a) for a in arrays)
        axis = op.axis % x.ndim
        where: list[Any] = list(np.indices(indices.shape, sparse=True))
        where[axis] = np.where(indices < 0, indices + x.shape[axis], indices)
        return [_combined(x, tuple(where), updates, op.reduction)]


@register
class ScatterNd(Scattering):
    """y = x; y[indices[…]] = updates[…], indices holding leading positions along its last axis."""

    aicpu = "scatter_nd"
    light = True

    @staticmethod
    def verify(op: NodeView) -> None:
        x, indices, updates = op.inputs[:3]
        assert x is not None and indices is not None and updates is not None
        if not indices.rank or indices.shape[-1] > x.rank:
            raise fail(op, f"indices {indices} reach deeper than {x}")
        expected = indices.shape[:-1] + x.shape[indices.shape[-1] :]
        if updates.shape != expected:
            raise fail(op, f"updates are {updates} where the shape {list(expected)} is expected")

    @staticmethod
    def rules(op: NodeView) -> dict[int, dict[str, Any]]:
        return _leading(op)

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        x, indices, updates = (np.asarray(a) for a in arrays)
        where = tuple(
            np.where(indices[..., d] < 0, indices[..., d] + x.shape[d], indices[..., d])
            for d in range(indices.shape[-1])
        )
        return [_combined(x, where, updates, op.reduction)]


@register
class ScatterSum(Operator):
    """y of zeros with `rows` rows; y[indices[i]] += updates[i]. Negative indices are left out; sums round once."""

    indices = Input("I", INDICES)
    updates = Input("T", TENSORS)
    y = Output("T")
    rows = Attr(int)
    aicpu = "scatter_sum"
    light = True

    @staticmethod
    def verify(op: NodeView) -> None:
        indices, updates = op.inputs[:2]
        assert indices is not None and updates is not None
        if indices.rank != 1 or not updates.rank or updates.shape[0] != indices.shape[0]:
            raise fail(op, f"indices {indices} do not match updates {updates}")

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        updates = op.inputs[1]
        assert updates is not None
        return TensorDesc((op.rows, *updates.shape[1:]), updates.dtype)

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        indices, updates = (np.asarray(a) for a in arrays)
        wide = np.float32 if updates.dtype.itemsize == 2 and updates.dtype.kind in "fV" else updates.dtype
        sums = np.zeros((op.rows, *updates.shape[1:]), wide)
        np.add.at(sums, indices[indices >= 0], updates[indices >= 0].astype(wide))
        return [sums.astype(updates.dtype)]

    @staticmethod
    def flops(op: NodeView) -> int:
        return op.inputs[1].size  # type: ignore[union-attr]


_COMBINE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _combined(
    x: np.ndarray, where: tuple[np.ndarray, ...], updates: np.ndarray, reduction: str
) -> np.ndarray:
    y = x.copy()
    if reduction == "none":
        y[where] = updates
    else:
        _COMBINE[reduction].at(y, where, updates)
    return y


# -- ONNX --------------------------------------------------------------------------------------------------


def as_indices(n: Node, index: int) -> Any:
    """An input as an index tensor of a supported type."""
    value = n.inputs[index]
    return value if n.desc(index).dtype in INDICES else n.op("Cast", value, to="int64")


def axis_of(n: Node, default: int) -> int:
    """The attribute `axis`, counted from the front."""
    axis, rank = int(n.attr("axis", default)), n.desc().rank
    if not -rank <= axis < rank:
        raise Unsupported(f"axis {axis} is out of range for {n.desc()}")
    return axis % rank


def _nd_indices(n: Node, shape: Sequence[int]) -> Any:
    """The second input, whose last axis holds positions in a tensor of that shape."""
    depth = n.desc(1).shape[-1] if n.desc(1).rank else 0
    return indices_of(n, n.inputs[1], shape[:depth])


@plugin(onnx="Gather")
def _gather(n: Node) -> Results:
    axis = axis_of(n, 0)
    return n.op("Gather", n.inputs[0], indices_of(n, as_indices(n, 1), [n.desc().shape[axis]]), axis=axis)


@plugin(onnx="GatherND")
def _gather_nd(n: Node) -> Results:
    batch = int(n.attr("batch_dims", 0))
    indices = _nd_indices(n, n.desc().shape[batch:])
    return n.op("GatherNd", n.inputs[0], indices, batch_dims=batch)


@plugin(onnx="GatherElements")
def _gather_elements(n: Node) -> Results:
    axis = axis_of(n, 0)
    return n.op("GatherElements", n.inputs[0], indices_of(n, n.inputs[1], [n.desc().shape[axis]]), axis=axis)


@plugin(onnx=["ScatterElements", "Scatter"])
def _scatter_elements(n: Node) -> Results:
    axis, reduction = axis_of(n, 0), n.attr("reduction", "none")
    indices = indices_of(n, n.inputs[1], [n.desc().shape[axis]])
    return n.op("ScatterElements", n.inputs[0], indices, n.inputs[2], axis=axis, reduction=reduction)


@plugin(onnx="ScatterND")
def _scatter_nd(n: Node) -> Results:
    indices = _nd_indices(n, n.desc().shape)
    return n.op("ScatterNd", n.inputs[0], indices, n.inputs[2], reduction=n.attr("reduction", "none"))


@plugin(onnx="ReverseSequence")
def _reverse_sequence(n: Node) -> Results:
    time, batch = int(n.attr("time_axis", 0)), int(n.attr("batch_axis", 1))
    lengths = indices_of(n, n.inputs[1], [n.desc().shape[time] + 1], "sequence_lens", from_end=False)
    return n.op("ReverseSequence", n.inputs[0], lengths, time_axis=time, batch_axis=batch)


@plugin(onnx="OneHot")
def _one_hot(n: Node) -> Results:
    """Indices from -depth on are valid."""
    depth = int(n.const(1, "depth").reshape(-1)[0])
    indices = n.inputs[0] if n.desc().dtype == "int64" else n.op("Cast", n.inputs[0], to="int64")
    values = n.inputs[2]
    off, on = (n.op("Reshape", v, shape=[]) for v in n.builder.ops("Split", [values], axis=0, sizes=[1, 1]))
    positive = n.op("Select", n.op("Less", indices, 0), n.op("Add", indices, depth), indices)
    return n.op("OneHot", positive, on, off, depth=depth, axis=int(n.attr("axis", -1)))


@plugin(onnx="TensorScatter")
def _tensor_scatter(n: Node) -> Results:
    """A cache with new entries written from a position on, along an axis; circular ones wrap around."""
    cache, update = n.inputs[:2]
    shape, new = n.desc(0).shape, n.desc(1).shape
    axis = int(n.attr("axis", -2)) % len(shape)
    circular = n.attr("mode", "linear") == "circular"
    positions = np.arange(new[axis], dtype=np.int64).reshape(
        [-1 if i == axis else 1 for i in range(len(shape))]
    )
    index = n.builder.constant(positions)
    if n.input(2) is not None:
        start = n.op(
            "Reshape", n.op("Cast", n.inputs[2], to="int64"), shape=[shape[0]] + [1] * (len(shape) - 1)
        )
        index = n.op("Add", start, index)
    if circular:
        index = n.op("Mod", index, shape[axis])
    index = indices_of(n, index, [shape[axis]], "write_indices", from_end=False)
    return n.op("ScatterElements", cache, n.op("BroadcastTo", index, shape=list(new)), update, axis=axis)


# -- TensorFlow --------------------------------------------------------------------------------------------


def indices_tf(n: Node, index: int) -> Any:
    """An input as indices; TensorFlow has 16-bit ones too."""
    return n.inputs[index] if n.desc(index).dtype in INDICES else n.op("Cast", n.inputs[index], to="int64")


def nd_indices(n: Node, index: int, shape: Sequence[int]) -> Any:
    """An input whose last axis holds positions in a tensor of that shape."""
    indices = indices_tf(n, index)
    return in_range(n.builder, indices, shape[: desc_of(indices).shape[-1]])


@plugin(tensorflow=["Gather", "GatherV2"])
def _gather_tf(n: Node) -> Results:
    """With batch axes, a negative batch_dims counts in the indices."""
    batch = int(n.attr("batch_dims", 0))
    batch = batch + n.desc(1).rank if batch < 0 else batch
    axis = n.ints(2, "the axis")[0] if n.input(2) is not None else 0
    axis = axis + n.desc().rank if axis < 0 else axis
    if batch and axis == 0:
        axis = batch
    indices = in_range(n.builder, indices_tf(n, 1), [n.desc().shape[axis]])
    return n.op("Gather", n.inputs[0], indices, axis=axis, batch_dims=batch)


@plugin(tensorflow="GatherNd")
def _gather_nd_tf(n: Node) -> Results:
    return n.op("GatherNd", n.inputs[0], nd_indices(n, 1, n.desc().shape))


@plugin(tensorflow="ScatterNd")
def _scatter_nd_tf(n: Node) -> Results:
    """Updates summed into a tensor of zeros."""
    zero = n.builder.constant(np.zeros((), numpy_dtype(n.desc(1).dtype)))
    shape = n.ints(2, "the shape")
    zeros = n.op("BroadcastTo", zero, shape=shape)
    return n.op("ScatterNd", zeros, nd_indices(n, 0, shape), n.inputs[1], reduction="add")


_SCATTERS = {
    "TensorScatterUpdate": "none",
    "TensorScatterAdd": "add",
    "TensorScatterSub": "add",
    "TensorScatterMax": "max",
    "TensorScatterMin": "min",
    "ScatterNdNonAliasingAdd": "add",
}


@plugin(tensorflow=list(_SCATTERS))
def _tensor_scatter_tf(n: Node) -> Results:
    """A NaN among updates is neither the largest nor the smallest; an existing NaN stays."""
    updates: Any = n.op("Neg", n.inputs[2]) if n.type == "TensorScatterSub" else n.inputs[2]
    if _SCATTERS[n.type] in ("max", "min") and n.desc().dtype in FLOATS:
        least = float("-inf" if _SCATTERS[n.type] == "max" else "inf")
        updates = n.op("Select", n.op("IsNan", updates), least, updates)
    indices = nd_indices(n, 1, n.desc().shape)
    return n.op("ScatterNd", n.inputs[0], indices, updates, reduction=_SCATTERS[n.type])


@plugin(tensorflow="OneHot")
def _one_hot_tf(n: Node) -> Results:
    depth = n.ints(1, "the depth")[0]
    return n.op("OneHot", n.inputs[0], n.inputs[2], n.inputs[3], depth=depth, axis=int(n.attr("axis", -1)))


@plugin(tensorflow="ReverseSequence")
def _reverse_sequence_tf(n: Node) -> Results:
    time, batch = int(n.attr("seq_dim")), int(n.attr("batch_dim", 0))
    lengths = in_range(n.builder, indices_tf(n, 1), [n.desc().shape[time] + 1], "seq_lengths")
    return n.op("ReverseSequence", n.inputs[0], lengths, time_axis=time, batch_axis=batch)


@plugin(tensorflow=["DynamicStitch", "ParallelDynamicStitch"])
def _dynamic_stitch(n: Node) -> Results:
    """Rows of several tensors at given positions of a new one; later rows win."""
    count = len(n.inputs) // 2
    places = [n.const(i, "the places").reshape(-1) for i in range(count)]
    row = list(n.desc(count).shape[n.desc(0).rank :])
    rows = [n.op("Reshape", n.inputs[count + i], shape=[len(p), *row]) for i, p in enumerate(places)]
    size = max((int(p.max(initial=-1)) for p in places), default=-1) + 1
    source = np.zeros(size, np.int64)
    source[np.concatenate(places)] = np.arange(sum(len(p) for p in places))
    joined = rows[0] if len(rows) == 1 else n.op("Concat", *rows, axis=0)
    return n.op("Gather", joined, n.builder.constant(source), axis=0)


@plugin(tensorflow="Bucketize")
def _bucketize(n: Node) -> Results:
    """The number of boundaries not above each element; NaN is behind all of them."""
    bounds = np.asarray(n.attr("boundaries", []), np.float32)
    x = n.inputs[0] if n.desc().dtype in FLOATS else n.op("Cast", n.inputs[0], to="float32")
    shape = [*n.desc().shape, 1]
    below = n.op("Less", n.op("Reshape", x, shape=shape), n.builder.constant(bounds, dtype=_type_of(x)))
    return n.op("ReduceSum", n.op("Cast", n.op("Not", below), to="int32"), axes=[-1])


def _type_of(value: Any) -> str:
    return desc_of(value).dtype


@plugin(tensorflow=["InTopK", "InTopKV2"])
def _in_top_k(n: Node) -> Results:
    """True if fewer than k classes are predicted above the target.

    False if the target is out of range or a prediction of the row is not finite.
    """
    k = n.ints(2, "k")[0] if n.type == "InTopKV2" else int(n.attr("k"))
    predictions, (batch, classes) = n.inputs[0], n.desc().shape
    targets = n.op("Cast", n.inputs[1], to="int64")
    inside = n.op("And", n.op("GreaterEqual", targets, 0), n.op("Less", targets, classes))
    safe = n.op("Select", inside, targets, 0)
    column = n.op("Reshape", safe, shape=[batch, 1])
    own = n.op("GatherElements", predictions, column, axis=1)
    above = n.op("ReduceSum", n.op("Cast", n.op("Greater", predictions, own), to="int32"), axes=[1])
    finite = n.op("ReduceMin", n.op("Cast", n.op("IsFinite", predictions), to="int32"), axes=[1])
    finite = n.op("Cast", finite, to="bool")
    return n.op("And", n.op("And", n.op("Less", above, k), inside), finite)


@plugin(tensorflow=["Bincount", "DenseBincount"])
def _bincount(n: Node) -> Results:
    """The count, or total weight, of each number; larger numbers are ignored, negative ones are errors."""
    size = n.ints(1, "the size")[0]
    text = "Input must be non-negative: {what}{place} = {value}"
    numbers = in_range(n.builder, n.inputs[0], [np.iinfo(np.int64).max], "in", message=text)
    shape = n.desc().shape
    weights = n.inputs[2] if n.desc(2).size else None
    dtype = n.desc(2).dtype
    hits = n.op(
        "OneHot",
        numbers,
        np.asarray(1, numpy_dtype(dtype)),
        np.asarray(0, numpy_dtype(dtype)),
        depth=size,
    )
    if weights is not None and not n.attr("binary_output", False):
        zero = np.zeros((), numpy_dtype(dtype))
        hits = n.op(
            "Select", n.op("Cast", hits, to="bool"), n.op("Reshape", weights, shape=[*shape, 1]), zero
        )
    if bool(n.attr("binary_output", False)):
        return n.op("ReduceMax", hits, axes=[len(shape) - 1])
    return n.op(
        "ReduceSum",
        hits,
        axes=list(range(len(shape)))[-1:] if n.type == "DenseBincount" else list(range(len(shape))),
    )


@plugin(tensorflow="SparseToDense")
def _sparse_to_dense(n: Node) -> Results:
    shape = n.ints(1, "the shape")
    indices = n.op("Cast", n.inputs[0], to="int64")
    count = n.desc(0).shape[0] if n.desc(0).rank else 1
    indices = in_range(n.builder, n.op("Reshape", indices, shape=[count, len(shape)]), shape)
    values = n.op("BroadcastTo", n.inputs[2], shape=[count])
    return n.op("ScatterNd", n.op("BroadcastTo", n.inputs[3], shape=shape), indices, values)


@plugin(tensorflow=["LowerBound", "UpperBound"])
def _bound_search(n: Node) -> Results:
    """The insertion point of each value in its sorted row: the number of elements below it (or not above it)."""
    rows, width = n.desc(0).shape
    columns = n.desc(1).shape[1]
    sorted_ = n.op("Reshape", n.inputs[0], shape=[rows, 1, width])
    values = n.op("Reshape", n.inputs[1], shape=[rows, columns, 1])
    below = n.op("Less" if n.type == "LowerBound" else "LessEqual", sorted_, values)
    return n.op("ReduceSum", n.op("Cast", below, to=str(n.attr("out_type", "int32"))), axes=[2])


@plugin(tensorflow="HistogramFixedWidth")
def _histogram(n: Node) -> Results:
    """The number of values in each of the equal bins of a range; values outside count in the end bins."""
    low, high = (float(v) for v in n.const(1, "the range").reshape(-1))
    bins = n.ints(2, "the number of bins")[0]
    x = n.op("Cast", n.op("Reshape", n.inputs[0], shape=[n.desc().size]), to="float64")
    part = n.op("Floor", n.op("Div", n.op("Sub", x, low), (high - low) / bins))
    place = n.op("Cast", n.op("Clip", part, min=0.0, max=float(bins - 1)), to="int64")
    if n.desc().dtype in FLOATS:
        place = failing_where(n, place, n.op("IsNan", x), "Histogram values must not contain NaN")
    kind = numpy_dtype(str(n.attr("dtype", "int32")))
    hits = n.op("OneHot", place, np.asarray(1, kind), np.asarray(0, kind), depth=bins)
    return n.op("ReduceSum", hits, axes=[0])
