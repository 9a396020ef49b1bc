"""ATen: gathers and scatters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ge.ir.types import TensorDesc
from ge.ir.values import desc_of
from ge.ops.aten import AtenNode, aten
from ge.ops.aten_checks import OUTSIDE, failing_where, places_of
from ge.ops.plugins import Unsupported
from ge.ops.tensor.aten_movement import axis_of


@aten("embedding")
def _embedding(n: AtenNode) -> Any:
    weight = n.arg("weight")
    places = places_of(n, n.arg("indices"), desc_of(weight).shape[0], what="indices")
    return n.op("Gather", weight, places, axis=0)


@aten("index_select", "index_select_copy")
def _index_select(n: AtenNode) -> Any:
    x, axis = n.arg("self"), axis_of(n)
    if not desc_of(x).rank:
        return n.spread(x, n.out().shape)
    # PyTorch has a kernel of its own for the second axis, with another error.
    text = "INDICES element is out of DATA bounds, id={value} axis_dim={size}" if axis == 1 else OUTSIDE
    rows = places_of(n, n.arg("index"), desc_of(x).shape[axis], text=text)
    return n.op("Gather", x, n.shaped(rows, [desc_of(rows).size]), axis=axis)


@aten("gather")
def _gather(n: AtenNode) -> Any:
    x, axis = n.arg("self"), axis_of(n)
    if not desc_of(x).rank:
        return n.shaped(x, n.out().shape)
    places = places_of(n, n.arg("index"), desc_of(x).shape[axis])
    return n.op("GatherElements", x, n.shaped(places, n.out().shape), axis=axis)


_MEAN, _SUM = 1, 2  # reductions of losses, by ATen's numbers


@aten("nll_loss_forward", "nll_loss2d_forward")
def _nll_loss(n: AtenNode) -> Any:
    """The loss and the sum of the weights of all targets that are not ignored."""
    x, target, weight = n.wide(n.arg("self")), n.cast(n.arg("target"), "int64"), n.arg("weight")
    desc, reduction = desc_of(x), int(n.arg("reduction"))
    axis = min(1, desc.rank - 1)
    counted = n.op("NotEqual", target, n.cast(n.arg("ignore_index"), "int64"))
    classes = n.op("Select", counted, target, n.cast(0, "int64"))
    classes = places_of(n, classes, desc.shape[axis], what="Target", text="Target {value} is out of bounds.")
    shape = [1 if a == axis else d for a, d in enumerate(desc.shape)]
    zero = n.cast(0, desc.dtype)

    def of_targets(values: Any) -> Any:
        found = n.op("GatherElements", values, n.shaped(classes, shape), axis=axis)
        return n.op("Select", counted, n.shaped(found, desc_of(target).shape), zero)

    def total(values: Any) -> Any:
        return n.op("ReduceSum", values, axes=list(range(desc_of(values).rank)), keepdims=False)

    weights = n.cast(counted, desc.dtype)
    if weight is not None:
        along = [d if a == axis else 1 for a, d in enumerate(desc.shape)]
        each = n.shaped(n.cast(weight, desc.dtype), along)
        x, weights = n.op("Mul", x, each), of_targets(n.spread(each, desc.shape))
    losses = of_targets(n.op("Neg", x))
    if reduction not in (_MEAN, _SUM):
        whole = n.cast(0, desc.dtype) if desc.rank > 1 else total(weights)
        return n.back(losses), n.back(whole, 1)
    whole, loss = total(weights), total(losses)
    return n.back(n.op("Div", loss, whole) if reduction == _MEAN else loss), n.back(whole, 1)


@aten("binary_cross_entropy")
def _binary_cross_entropy(n: AtenNode) -> Any:
    """The loss of probabilities, with logarithms of at least -100."""
    x, target, weight = n.arg("self"), n.arg("target"), n.arg("weight")
    desc, reduction = desc_of(x), int(n.arg("reduction", _MEAN))
    if desc.dtype not in ("float32", "float64") or desc_of(target) != desc or not desc.size:
        raise Unsupported(f"binary_cross_entropy of {desc} and {desc_of(target)}")
    least = n.cast(-100.0, desc.dtype)
    off = n.op("Mul", n.op("Sub", target, 1.0), n.op("Maximum", n.op("Log1p", n.op("Neg", x)), least))
    loss = n.op("Sub", off, n.op("Mul", target, n.op("Maximum", n.op("Log", x), least)))
    if weight is not None:
        loss = n.op("Mul", loss, n.spread(n.cast(weight, desc.dtype), desc.shape))
    if reduction in (_MEAN, _SUM):
        type_ = "ReduceMean" if reduction == _MEAN else "ReduceSum"
        loss = n.op(type_, loss, axes=list(range(desc.rank)), keepdims=False) if desc.rank else loss
    for value, name in ((x, "input"), (target, "target")):
        inside = n.op("And", n.op("GreaterEqual", value, 0.0), n.op("LessEqual", value, 1.0))
        text = f"all elements of {name} should be between 0 and 1"
        loss = failing_where(n, loss, n.op("Not", inside), text)
    return loss


@aten("take")
def _take(n: AtenNode) -> Any:
    flat = n.shaped(n.arg("self"), [desc_of(n.arg("self")).size])
    places = places_of(n, n.arg("index"), desc_of(flat).size, from_end=True)
    return n.op("Gather", flat, places, axis=0)


class _Indexed:
    """x[i, :, j] with tensors i, j: the axes that are indexed brought to the front."""

    def __init__(self, n: AtenNode, x: Any, indices: list[Any]) -> None:
        rank = desc_of(x).rank
        self.n = n
        self.axes = [a for a, i in enumerate(indices) if i is not None]
        if any(desc_of(indices[a]).dtype == "bool" for a in self.axes):
            raise Unsupported("a mask as an index: the size of the result depends on the data")
        rest = [a for a in range(rank) if a not in self.axes]
        self.perm = [*self.axes, *rest]
        self.shape = [desc_of(x).shape[p] for p in self.perm]
        given = [n.cast(indices[a], "int64") for a in self.axes]
        if not n.type.startswith("_unsafe"):
            given = [
                places_of(n, g, extent, from_end=True) for g, extent in zip(given, self.shape, strict=False)
            ]
        self.common = list(np.broadcast_shapes(*(desc_of(g).shape for g in given)))
        self.given = [n.spread(g, self.common) for g in given]
        # Where the result's index axes stand: in place when the indexed axes are neighbours, else in front.
        together = self.axes == list(range(self.axes[0], self.axes[-1] + 1))
        self.front = self.axes[0] if together else 0
        self.rest = rest

    def flat_places(self) -> Any:
        """Positions among the rows of the indexed axes laid out flat."""
        n, total = self.n, None
        for place, extent in zip(self.given, self.shape, strict=False):
            wrapped = n.op("Select", n.op("Less", place, 0), n.op("Add", place, extent), place)
            total = wrapped if total is None else n.op("Add", n.op("Mul", total, extent), wrapped)
        return total

    @property
    def rows(self) -> int:
        return math.prod(self.shape[: len(self.axes)])

    @property
    def tail(self) -> list[int]:
        return self.shape[len(self.axes) :]

    def result_perm(self) -> list[int]:
        """From (index axes, other axes) to the order of the result."""
        width, rank = len(self.common), len(self.common) + len(self.rest)
        before = list(range(width, width + self.front))
        return [*before, *range(width), *range(width + self.front, rank)]


def _index_list(n: AtenNode) -> list[Any]:
    given = list(n.arg("indices"))
    found = [g for g in given if g is not None]
    if not found:
        raise Unsupported("an index without positions")
    return given


@aten("index.Tensor", "_unsafe_index.Tensor")
def _index(n: AtenNode) -> Any:
    x = n.arg("self")
    at = _Indexed(n, x, _index_list(n))
    moved = n.turned(x, at.perm)
    if len(at.axes) == 1:
        return n.turned(n.op("Gather", moved, at.given[0], axis=0), at.result_perm())
    flat = n.shaped(moved, [at.rows, *at.tail])
    return n.turned(n.op("Gather", flat, at.flat_places(), axis=0), at.result_perm())


@aten("index_put", "_unsafe_index_put")
def _index_put(n: AtenNode) -> Any:
    """Rows written, or added, at positions of the flattened front axes."""
    x, values = n.arg("self"), n.arg("values")
    at = _Indexed(n, x, _index_list(n))
    desc = desc_of(x)
    if desc_of(values).dtype != desc.dtype:
        raise Unsupported("values of another type")  # PyTorch's error
    if desc.dtype == "bool" and n.arg("accumulate"):
        raise Unsupported("bools added up")
    perm = at.result_perm()
    target = [*at.common, *at.tail]
    shaped = n.spread(n.cast(values, desc.dtype), [target[p] for p in perm])
    updates = n.turned(shaped, list(np.argsort(perm)))
    flat = n.shaped(n.turned(x, at.perm), [at.rows, *at.tail])
    count = math.prod(at.common)
    places = n.shaped(at.flat_places(), [count, 1])
    reduction = "add" if n.arg("accumulate") else "none"
    made = n.op("ScatterNd", flat, places, n.shaped(updates, [count, *at.tail]), reduction=reduction)
    return n.turned(n.shaped(made, at.shape), list(np.argsort(at.perm)))


@aten("index_add", "index_copy")
def _index_add(n: AtenNode) -> Any:
    x, source, axis = n.arg("self"), n.arg("source"), axis_of(n)
    desc = desc_of(x)
    if desc.dtype == "bool" or not desc.rank:
        raise Unsupported(f"rows added to {desc}")
    perm = [axis, *(a for a in range(desc.rank) if a != axis)]
    alpha = n.arg("alpha", 1)
    source = source if alpha == 1 else n.op("Mul", source, n.cast(alpha, desc.dtype))
    if not desc.size and n.type.startswith("index_add"):  # PyTorch does not look at the places
        return n.op("Identity", x)
    places = places_of(n, n.cast(n.arg("index"), "int64"), desc.shape[axis])
    places = n.shaped(places, [desc_of(places).size, 1])
    reduction = "add" if n.type.startswith("index_add") else "none"
    made = n.op("ScatterNd", n.turned(x, perm), places, n.turned(source, perm), reduction=reduction)
    return n.turned(made, list(np.argsort(perm)))


@aten("index_fill")
def _index_fill(n: AtenNode) -> Any:
    """Rows of one number; unlike those of index_add and index_copy, their places may count from the end."""
    x, axis = n.arg("self"), axis_of(n)
    desc = desc_of(x)
    if desc.dtype == "bool" or not desc.size or not desc.rank:
        raise Unsupported(f"rows of {desc} filled")
    perm = [axis, *(a for a in range(desc.rank) if a != axis)]
    extent = desc.shape[axis]
    places = places_of(n, n.cast(n.arg("index"), "int64"), extent, from_end=True)
    wrapped = n.op("Select", n.op("Less", places, 0), n.op("Add", places, extent), places)
    count = desc_of(places).size
    rows = n.spread(n.cast(n.arg("value"), desc.dtype), [count, *(desc.shape[a] for a in perm[1:])])
    made = n.op("ScatterNd", n.turned(x, perm), n.shaped(wrapped, [count, 1]), rows, reduction="none")
    return n.turned(made, list(np.argsort(perm)))


_REDUCTIONS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


@aten("scatter", "scatter_add", "scatter_reduce")
def _scatter(n: AtenNode) -> Any:
    x, places = n.arg("self"), n.cast(n.arg("index"), "int64")
    desc, where = desc_of(x), desc_of(places)
    if not desc.rank:
        raise Unsupported("scatter into one number")
    if n.arg("include_self", True) is False:
        raise Unsupported("scatter_reduce without the old values")
    name = n.type.partition(".")[0]
    reduce = n.arg("reduce") if name != "scatter_add" else "add"
    if reduce is not None and reduce not in _REDUCTIONS:
        raise Unsupported(f"scatter by {reduce}")
    if desc.dtype == "bool" and reduce is not None:
        raise Unsupported("bools added up")
    src = n.arg("src", n.arg("value"))
    if isinstance(src, ir.Value) and desc_of(src).rank:
        ends = list(where.shape)
        src = (
            src if list(desc_of(src).shape) == ends else n.op("Slice", src, starts=[0] * len(ends), ends=ends)
        )
    else:
        src = (
            n.filled(src, TensorDesc(where.shape, desc.dtype))
            if not isinstance(src, ir.Value)
            else n.spread(src, where.shape)
        )
    reduction = "none" if reduce is None else _REDUCTIONS[reduce]
    if not where.size:
        return n.op("Identity", x)
    axis = axis_of(n)
    places = places_of(n, places, desc.shape[axis])
    return n.op("ScatterElements", x, places, src, axis=axis, reduction=reduction)


@aten("embedding_dense_backward")
def _embedding_backward(n: AtenNode) -> Any:
    """Gradients added up at their rows; the padding row stays zero."""
    gradient, places = n.arg("grad_output"), n.cast(n.arg("indices"), "int64")
    rows, padding = int(n.arg("num_weights")), int(n.arg("padding_idx", -1))
    if n.arg("scale_grad_by_freq"):
        raise Unsupported("gradients by frequency")
    width, count = n.out().shape[1], desc_of(places).size
    places = n.shaped(places, [count])
    if padding >= 0:
        places = n.op("Select", n.op("Equal", places, padding), -1, places)
    return n.op("ScatterSum", places, n.shaped(gradient, [count, width]), rows=rows)
