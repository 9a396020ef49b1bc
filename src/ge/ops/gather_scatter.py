"""Operators that read or write at computed positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tbe

from ge.ir.types import INTS, TENSORS, TensorDesc
from ge.ops.base import Attr, Input, NodeView, Operator, Output, Pattern, fail, register
from ge.parsers.plugin import Node, Results, plugin

INDICES = frozenset({"int32", "int64"})
_REDUCTIONS = ("none", "add", "mul", "max", "min")


class Gathering(Operator):
    """Elements of x chosen by indices; negative ones count from the end."""

    x = Input("T", TENSORS)
    indices = Input("I", INDICES)
    y = Output("T")
    pattern = Pattern.INJECTIVE

    @staticmethod
    def flops(op: NodeView) -> int:
        return 0


@register
class Gather(Gathering):
    """Slices of x along axis; the first batch_dims axes of x and indices go together."""

    axis = Attr(int, 0)
    batch_dims = Attr(int, 0)

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
    def compute(op: NodeView, x: tbe.Tensor, lengths: tbe.Tensor) -> tbe.Tensor:
        time, batch = op.time_axis % len(x.shape), op.batch_axis % len(x.shape)

        def element(*i: tbe.Scalar) -> tbe.Scalar:
            length = tbe.cast(lengths[i[batch]], "int64")
            source = tbe.select(i[time] < length, length - 1 - i[time], i[time])
            return x[(*i[:time], source, *i[time + 1 :])]

        return tbe.compute(x.shape, element)


@register
class OneHot(Operator):
    """`on` where the position along a new axis equals the index, `off` elsewhere (also for indices out of range)."""

    indices = Input("I", INTS)
    on = Input("T", TENSORS)
    off = Input("T", TENSORS)
    y = Output("T")
    depth = Attr(int)
    axis = Attr(int, -1)
    pattern = Pattern.BROADCAST

    @staticmethod
    def compute(op: NodeView, indices: tbe.Tensor, on: tbe.Tensor, off: tbe.Tensor) -> tbe.Tensor:
        rank = len(indices.shape) + 1
        axis = op.axis % rank
        spread = tbe.reshape(indices, (*indices.shape[:axis], 1, *indices.shape[axis:]))
        shape = (*indices.shape[:axis], op.depth, *indices.shape[axis:])
        hit = tbe.binary("eq", tbe.iota(shape, axis, "int64"), tbe.cast(spread, "int64"))
        return tbe.select(hit, tbe.reshape(on, ()), tbe.reshape(off, ()))


# -- scatter -----------------------------------------------------------------------------------------------------


class Scattering(Operator):
    """x with updates written or combined at computed positions."""

    x = Input("T", TENSORS)
    indices = Input("I", INDICES)
    updates = Input("T", TENSORS)
    y = Output("T")
    reduction = Attr(str, "none", choices=_REDUCTIONS)

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

    @staticmethod
    def verify(op: NodeView) -> None:
        x, indices, updates = op.inputs[:3]
        assert x is not None and indices is not None and updates is not None
        if indices.shape != updates.shape or indices.rank != x.rank:
            raise fail(op, f"indices {indices} and updates {updates} do not go with {x}")

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        x, indices, updates = (np.asarray(a) for a in arrays)
        axis = op.axis % x.ndim
        where = list(np.indices(indices.shape, sparse=True))
        where[axis] = np.where(indices < 0, indices + x.shape[axis], indices)
        return [_combined(x, tuple(where), updates, op.reduction)]


@register
class ScatterNd(Scattering):
    """y = x; y[indices[…]] = updates[…], indices holding leading positions along its last axis."""

    aicpu = "scatter_nd"

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
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        x, indices, updates = (np.asarray(a) for a in arrays)
        where = tuple(
            np.where(indices[..., d] < 0, indices[..., d] + x.shape[d], indices[..., d])
            for d in range(indices.shape[-1])
        )
        return [_combined(x, where, updates, op.reduction)]


_COMBINE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _combined(x: np.ndarray, where: tuple[np.ndarray, ...], updates: np.ndarray, reduction: str) -> np.ndarray:
    y = x.copy()
    if reduction == "none":
        y[where] = updates
    else:
        _COMBINE[reduction].at(y, where, updates)
    return y


# -- ONNX --------------------------------------------------------------------------------------------------------


def as_indices(n: Node, index: int) -> object:
    """An input as an index tensor of a type the operators take."""
    value = n.inputs[index]
    return value if n.desc(index).dtype in INDICES else n.op("Cast", value, to="int64")


@plugin(onnx="Gather")
def _gather(n: Node) -> Results:
    return n.op("Gather", n.inputs[0], as_indices(n, 1), axis=int(n.attr("axis", 0)))  # type: ignore[arg-type]


@plugin(onnx="GatherND")
def _gather_nd(n: Node) -> Results:
    return n.op("GatherNd", n.inputs[0], n.inputs[1], batch_dims=int(n.attr("batch_dims", 0)))


@plugin(onnx="GatherElements")
def _gather_elements(n: Node) -> Results:
    return n.op("GatherElements", n.inputs[0], n.inputs[1], axis=int(n.attr("axis", 0)))


@plugin(onnx=["ScatterElements", "Scatter"])
def _scatter_elements(n: Node) -> Results:
    reduction = n.attr("reduction", "none")
    return n.op("ScatterElements", *n.inputs[:3], axis=int(n.attr("axis", 0)), reduction=reduction)


@plugin(onnx="ScatterND")
def _scatter_nd(n: Node) -> Results:
    return n.op("ScatterNd", *n.inputs[:3], reduction=n.attr("reduction", "none"))


@plugin(onnx="ReverseSequence")
def _reverse_sequence(n: Node) -> Results:
    time, batch = int(n.attr("time_axis", 0)), int(n.attr("batch_axis", 1))
    return n.op("ReverseSequence", n.inputs[0], n.inputs[1], time_axis=time, batch_axis=batch)


@plugin(onnx="OneHot")
def _one_hot(n: Node) -> Results:
    """Indices from -depth on are in range."""
    depth = int(n.const(1, "depth").reshape(-1)[0])
    indices = n.inputs[0] if n.desc().dtype == "int64" else n.op("Cast", n.inputs[0], to="int64")
    values = n.inputs[2]
    off, on = (n.op("Reshape", v, shape=[]) for v in n.builder.ops("Split", [values], axis=0, sizes=[1, 1]))
    positive = n.op("Select", n.op("Less", indices, 0), n.op("Add", indices, depth), indices)
    return n.op("OneHot", positive, on, off, depth=depth, axis=int(n.attr("axis", -1)))


@plugin(onnx="TensorScatter")
def _tensor_scatter(n: Node) -> Results:
    """A cache with new entries written from a position on, along an axis; in circular mode they wrap around."""
    cache, update = n.inputs[:2]
    shape, new = n.desc(0).shape, n.desc(1).shape
    axis = int(n.attr("axis", -2)) % len(shape)
    circular = n.attr("mode", "linear") == "circular"
    positions = np.arange(new[axis], dtype=np.int64).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    index = n.builder.constant(positions)
    if n.input(2) is not None:
        start = n.op("Reshape", n.op("Cast", n.inputs[2], to="int64"), shape=[shape[0]] + [1] * (len(shape) - 1))
        index = n.op("Add", start, index)
    if circular:
        index = n.op("Mod", index, shape[axis])
    return n.op("ScatterElements", cache, n.op("BroadcastTo", index, shape=list(new)), update, axis=axis)


