"""PaddlePaddle: reductions, sorting and scans, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ge.ir.types import FLOATS, TensorDesc
from ge.ir.values import desc_of
from ge.ops.plugins import Unsupported
from ge.parsers.paddle.node import PaddleNode, axis_of, paddle


def _axes(n: PaddleNode, rank: int, index: int | None = None) -> list[int]:
    """The axes of a reduction, from an input or the attribute; all where none is named."""
    if index is not None and len(n.inputs) > index:
        given: Any = n.ints(index, "axis")
    else:
        given = n.attr("axis")
        given = [] if given is None else given if isinstance(given, list) else [given]
    if n.attr("reduce_all") or not given:
        return list(range(rank))
    return sorted({axis_of(int(a), rank) for a in given})


def _reduced(n: PaddleNode, type_: str, x: Any, axes: Sequence[int], keep: bool) -> Any:
    if not axes:
        return n.op("Identity", x)
    return n.op(type_, x, axes=list(axes), keepdims=keep)


@paddle("sum")
def _sum(n: PaddleNode) -> Any:
    """Whole numbers and bools are summed in int64."""
    dtype = n.attr("dtype")
    if str(dtype).startswith("Undefined"):
        dtype = n.like().dtype if n.like().dtype in FLOATS else "int64"
    return _reduced(
        n, "ReduceSum", n.cast(n.inputs[0], dtype), _axes(n, n.like().rank, 1), bool(n.attr("keepdim"))
    )


@paddle("mean")
def _mean(n: PaddleNode) -> Any:
    return _reduced(n, "ReduceMean", n.inputs[0], _axes(n, n.like().rank, 1), bool(n.attr("keepdim")))


@paddle("mean_all")
def _mean_all(n: PaddleNode) -> Any:
    return _reduced(n, "ReduceMean", n.inputs[0], range(n.like().rank), False)


def _declare(name: str, type_: str) -> None:
    @paddle(name)
    def mapped_(n: PaddleNode) -> Any:
        index = 1 if len(n.inputs) > 1 else None
        return _reduced(n, type_, n.inputs[0], _axes(n, n.like().rank, index), bool(n.attr("keepdim")))


for _name, _type in {
    "max": "ReduceMax",
    "min": "ReduceMin",
    "amax": "ReduceMax",
    "amin": "ReduceMin",
    "prod": "ReduceProd",
    "any": "ReduceAny",
    "all": "ReduceAll",
}.items():
    _declare(_name, _type)


@paddle("logsumexp")
def _logsumexp(n: PaddleNode) -> Any:
    axes, keep = _axes(n, n.like().rank), bool(n.attr("keepdim"))
    desc = n.like()
    shape = [1 if i in axes else d for i, d in enumerate(desc.shape)]
    kept = shape if keep else [d for i, d in enumerate(desc.shape) if i not in axes]
    return n.aten(
        "logsumexp", [TensorDesc(tuple(kept), desc.dtype)], self=n.inputs[0], dim=axes, keepdim=keep
    )


@paddle("p_norm")
def _p_norm(n: PaddleNode) -> Any:
    desc, keep = n.like(), bool(n.attr("keepdim"))
    axes = list(range(desc.rank)) if n.attr("asvector") else [axis_of(n.attr("axis"), desc.rank)]
    shape = [d for i, d in enumerate(desc.shape) if keep or i not in axes]
    shape = [1 if keep and i in axes else d for i, d in enumerate(shape)]
    return n.aten(
        "linalg_vector_norm",
        [TensorDesc(tuple(shape), desc.dtype)],
        self=n.inputs[0],
        ord=n.attr("porder"),
        dim=axes,
        keepdim=keep,
    )


@paddle("squared_l2_norm")
def _squared_l2_norm(n: PaddleNode) -> Any:
    total = n.op("ReduceSum", n.op("Square", n.inputs[0]), axes=list(range(n.like().rank)), keepdims=False)
    return n.shaped(total, n.operation.results[0].shape)


def _declare_place(name: str, type_: str) -> None:
    @paddle(name)
    def mapped_(n: PaddleNode) -> Any:
        """The place of the first greatest or least element."""
        x, desc, keep = n.inputs[0], n.like(), bool(n.attr("keepdims"))
        axis = int(n.number(1))
        if n.attr("flatten"):
            found = n.op(type_, n.shaped(x, [desc.size]), axis=0, keepdims=False)
            found = n.shaped(found, [1] * desc.rank) if keep else found
        else:
            found = n.op(type_, x, axis=axis_of(axis, desc.rank), keepdims=keep)
        return n.cast(found, n.attr("dtype"))


_declare_place("argmax", "ArgMax")
_declare_place("argmin", "ArgMin")


@paddle("cumsum")
def _cumsum(n: PaddleNode) -> Any:
    x, desc = n.inputs[0], n.like()
    axis = int(n.number(1))
    if n.attr("flatten"):
        x, axis = n.shaped(x, [desc.size]), 0
    attrs = {"exclusive": bool(n.attr("exclusive")), "reverse": bool(n.attr("reverse"))}
    return n.op("CumSum", x, axis=axis_of(axis, desc_of(x).rank), **attrs)


@paddle("cumsum_grad")
def _cumsum_grad(n: PaddleNode) -> Any:
    if n.attr("flatten"):
        raise Unsupported("the gradient of a flat cumsum")
    axis = axis_of(int(n.number(2)), n.like().rank)
    attrs = {"exclusive": bool(n.attr("exclusive")), "reverse": not n.attr("reverse")}
    return n.op("CumSum", n.inputs[1], axis=axis, **attrs)


@paddle("cumprod")
def _cumprod(n: PaddleNode) -> Any:
    if n.attr("exclusive") or n.attr("reverse"):
        raise Unsupported("an exclusive or reversed cumprod")
    return n.aten("cumprod", [n.like()], self=n.inputs[0], dim=n.attr("dim"))


@paddle("topk")
def _topk(n: PaddleNode) -> Any:
    axis, k = axis_of(n.attr("axis"), n.like().rank), int(n.number(1))
    shape = tuple(k if i == axis else d for i, d in enumerate(n.like().shape))
    descs = [TensorDesc(shape, n.like().dtype), TensorDesc(shape, "int64")]
    return n.aten("topk", descs, self=n.inputs[0], k=k, dim=axis, largest=n.attr("largest"), sorted=True)


@paddle("argsort")
def _argsort(n: PaddleNode) -> Any:
    descs = [n.like(), TensorDesc(n.like().shape, "int64")]
    axis = axis_of(n.attr("axis"), n.like().rank)
    return n.aten(
        "sort.stable", descs, self=n.inputs[0], stable=True, dim=axis, descending=n.attr("descending")
    )


@paddle("topk_grad")
def _topk_grad(n: PaddleNode) -> Any:
    axis = axis_of(n.attr("axis"), n.like().rank)
    return n.op(
        "ScatterElements", n.filled(0, n.like()), n.inputs[1], n.inputs[2], axis=axis, reduction="add"
    )


# -- gradients ---------------------------------------------------------------------------------------------


def _spread(n: PaddleNode, g: Any, axes: Sequence[int]) -> Any:
    """A reduced gradient with its axes back, over the operand's shape."""
    desc = n.like()
    lifted = n.shaped(g, [1 if i in set(axes) else d for i, d in enumerate(desc.shape)])
    return n.spread(lifted, desc.shape)


@paddle("sum_grad")
def _sum_grad(n: PaddleNode) -> Any:
    g = _spread(n, n.inputs[1], _axes(n, n.like().rank, 2))
    return n.cast(g, n.like().dtype)


@paddle("mean_grad")
def _mean_grad(n: PaddleNode) -> Any:
    axes = _axes(n, n.like().rank, 2)
    count = math.prod(n.like().shape[a] for a in axes)
    return _spread(n, n.op("Div", n.inputs[1], n.constant(count, n.like().dtype)), axes)


@paddle("mean_all_grad")
def _mean_all_grad(n: PaddleNode) -> Any:
    axes = range(n.like().rank)
    return _spread(n, n.op("Div", n.inputs[1], n.constant(n.like().size, n.like().dtype)), axes)


@paddle("max_grad", "min_grad", "amax_grad", "amin_grad")
def _extreme_grad(n: PaddleNode) -> Any:
    """Every place of the extreme has the gradient; `amax` and `amin` share it among them."""
    x, out, g = n.inputs[:3]
    axes = _axes(n, n.like().rank, 3 if len(n.inputs) > 3 else None)
    hit = n.op("Equal", x, _spread(n, out, axes))
    spread = _spread(n, g, axes)
    if n.type.startswith("a"):
        count = n.op("ReduceSum", n.cast(hit, n.like().dtype), axes=axes, keepdims=True)
        spread = n.op("Div", spread, count)
    return n.op("Select", hit, spread, n.constant(0, n.like().dtype))


@paddle("logsumexp_grad")
def _logsumexp_grad(n: PaddleNode) -> Any:
    x, out, g = n.inputs[:3]
    axes = _axes(n, n.like().rank)
    return n.op("Mul", _spread(n, g, axes), n.op("Exp", n.op("Sub", x, _spread(n, out, axes))))


@paddle("squared_l2_norm_grad")
def _squared_l2_norm_grad(n: PaddleNode) -> Any:
    doubled = n.op("Mul", n.shaped(n.inputs[1], []), n.constant(2, n.like().dtype))
    return n.op("Mul", n.inputs[0], doubled)


@paddle("p_norm_grad")
def _p_norm_grad(n: PaddleNode) -> Any:
    x, out, g = n.inputs[:3]
    if n.attr("porder") != 2:
        raise Unsupported(f"the gradient of a norm of order {n.attr('porder')}")
    rank = n.like().rank
    axes = list(range(rank)) if n.attr("asvector") else [axis_of(n.attr("axis"), rank)]
    length, spread = _spread(n, out, axes), _spread(n, g, axes)
    quotient = n.op("Div", n.op("Mul", x, spread), length)
    zero = n.constant(0, n.like().dtype)
    return n.op("Select", n.op("Equal", length, zero), zero, quotient)
