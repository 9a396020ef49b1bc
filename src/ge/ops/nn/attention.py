"""Attention and its gradient: one task each if the target has it, else products and a softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ge.implementations import DECOMPOSED, choose
from ge.ir.types import BOOL, FLOATS, TensorDesc, widened
from ge.ir.values import desc_of
from ge.ops.aten import AtenNode, aten
from ge.ops.base import Attr, Input, NodeView, Operator, Output, fail, register
from ge.ops.dataflow import Dataflow, Part, Sliced, aligned_part
from ge.ops.math.reduce import widened_array
from ge.ops.nn.tasks import decomposes, dense_operation
from ge.ops.plugins import Unsupported
from ge.ops.traits import Precision
from ge.ops.views import is_row_major
from ge.plan import Task, View
from ge.target import Target


def _check(op: NodeView, q: TensorDesc, k: TensorDesc, v: TensorDesc) -> None:
    if q.rank < 2 or k.rank != q.rank or v.rank != q.rank:
        raise fail(op, f"takes matrices, or stacks of them, of one rank, got {q}, {k} and {v}")
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2] or k.shape[:-2] != v.shape[:-2]:
        raise fail(op, f"queries {q}, keys {k} and values {v} do not go together")
    if q.shape[:-2] != k.shape[:-2]:
        raise fail(op, f"queries {q} and keys {k} have different leading axes")


def is_fused(
    q: TensorDesc, k: TensorDesc, v: TensorDesc, mask: TensorDesc | None, target: Target, gradient: bool
) -> bool:
    """True if a target runs attention on such operands as one task and, if requested, its gradient as another."""
    attrs = {"scale": 1.0, "causal": False}
    y, sums = _results(q, v)
    wanted = [dense_operation("attention", [q, k, v, mask], [y, sums], attrs)]
    if gradient:
        wanted.append(dense_operation("attention_grad", [y, q, k, v, y, sums, mask], [q, k, v], attrs))
    return all(choose(op, target).name != DECOMPOSED for op in wanted)


def _results(q: TensorDesc, v: TensorDesc) -> list[TensorDesc]:
    return [TensorDesc((*q.shape[:-1], v.shape[-1]), q.dtype), TensorDesc(q.shape[:-1], widened(q.dtype))]


def _task(kind: str, op: NodeView, inputs: Sequence[View | None], outputs: Sequence[View]) -> Task:
    given = [v for v in inputs if v is not None]
    attrs = {"scale": op.scale, "causal": op.causal}
    if op.fill is not None:
        attrs["fill"] = op.fill
    if op.zeros:
        attrs["zeros"] = True
    return Task(kind, op.name, given, list(outputs), attrs)


def _fill(op: NodeView) -> float:
    """The score of a key that a bool mask hides."""
    return -math.inf if op.fill is None else float(op.fill)


def _scores(b: Any, op: NodeView, q: Any, k: Any, mask: Any) -> Any:
    """q k' * scale + mask; for 16-bit operands in float32: rounding scores costs accuracy and time."""
    dtype = desc_of(q).dtype
    wide = widened(dtype)
    scores = b.op("MatMul", q, k, transpose_b=True, output_dtype=wide if wide != dtype else None)
    scores = b.op("Mul", scores, op.scale)
    if mask is not None:
        hides = desc_of(mask).dtype == "bool"
        scores = b.op("Select", mask, scores, _fill(op)) if hides else b.op("Add", scores, b.cast(mask, wide))
    if op.causal:
        kept = np.tril(np.ones(desc_of(scores).shape[-2:], bool))
        scores = b.op("Select", b.constant(kept), scores, -math.inf)
    return scores


def _evaluated_scores(op: NodeView, q: np.ndarray, k: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    scores: np.ndarray = np.matmul(q, k.swapaxes(-1, -2)) * op.scale
    if mask is not None:
        hidden = np.asarray(_fill(op), scores.dtype)
        scores = np.where(mask, scores, hidden) if mask.dtype == bool else scores + mask.astype(scores.dtype)
    kept = np.tril(np.ones(scores.shape[-2:], bool))
    return np.where(kept, scores, -np.inf) if op.causal else scores


def _weights(b: Any, op: NodeView, scores: Any) -> Any:
    axis = desc_of(scores).rank - 1
    weights = b.op("Softmax", scores, axes=[axis])
    if not op.zeros:
        return weights
    top = b.op("ReduceMax", scores, axes=[axis], keepdims=True)
    return b.op("Select", b.op("Equal", top, -math.inf), 0.0, weights)


def _evaluated_powers(op: NodeView, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Exponentials of scores minus the maximum of each query, their sums, and the maxima."""
    top = scores.max(-1, keepdims=True)
    blind = np.isneginf(top) & bool(op.zeros)
    top = np.where(blind, np.zeros((), top.dtype), top)
    powers = np.exp(scores - top)
    total = powers.sum(-1, keepdims=True)
    return powers, np.where(blind, np.ones((), total.dtype), total), top


class Queries(Dataflow):
    """Rows of attention are those of its queries and of the mask; batches go together."""

    def slice(self, op: NodeView, part: Part) -> Sliced | None:
        q, k, v = op.inputs[:3]
        assert q is not None and k is not None and v is not None
        attrs: dict[str, Any] = {}
        if part.axis == q.rank - 2:
            operands: tuple[int, ...] = (0, 3)
            if op.causal:  # the last query sees all keys
                if (part.start, part.length, part.period) != (q.shape[-2] - 1, 1, k.shape[-2]):
                    return None
                attrs["causal"] = False
        elif part.axis == 0 and q.shape[0] == k.shape[0] == v.shape[0] and q.rank == k.rank == v.rank:
            operands = (0, 1, 2, 3)
        else:
            return None
        parts = {i: p for i in operands if (p := aligned_part(op, i, part)) is not None}
        return Sliced(parts, attrs)


@register
class Attention(Operator):
    """softmax(q k' * scale + mask) v over the last two axes, and the logarithm of each query's sum of exponentials.

    A mask of bools hides keys where it is false, one of floats is added; `causal` hides keys after the query. A key
    that the mask hides has the score `fill`, minus infinity unless given; `causal` leaves it out. A query whose scores
    are all minus infinity gives NaN, as a softmax does; with `zeros` it gives zeros and has no gradient.
    """

    q = Input("T", FLOATS)
    k = Input("T", FLOATS)
    v = Input("T", FLOATS)
    mask = Input("", BOOL | FLOATS, optional=True)
    y = Output("T")
    sums = Output()
    scale = Attr(float)
    causal = Attr(bool, False)
    fill = Attr(float, None)
    zeros = Attr(bool, False)
    dataflow = Queries()
    precision = Precision(narrows=True, product=True, keeps=(3,), masked=True)
    strided_inputs = (is_row_major,) * 3
    strided_output = is_row_major

    @staticmethod
    def verify(op: NodeView) -> None:
        q, k, v = op.inputs[:3]
        assert q is not None and k is not None and v is not None
        _check(op, q, k, v)
        mask = op.input(3)
        scores = (*q.shape[:-1], k.shape[-2])
        if mask is not None and np.broadcast_shapes(mask.shape, scores) != scores:
            raise fail(op, f"the mask is {mask} where scores have the shape {list(scores)}")

    @staticmethod
    def infer(op: NodeView) -> Sequence[TensorDesc]:
        q, _, v = op.inputs[:3]
        assert q is not None and v is not None
        return _results(q, v)

    @staticmethod
    def expand(builder: Any, op: NodeView, *values: Any) -> Any:
        if not decomposes(Attention, op, builder.target):
            return NotImplemented
        q, k, v, *rest = values
        dtype, axis = desc_of(q).dtype, desc_of(q).rank - 1
        scores = _scores(builder, op, q, k, rest[0] if rest else None)
        weights = builder.cast(_weights(builder, op, scores), dtype)
        top = builder.op("ReduceMax", scores, axes=[axis], keepdims=True)
        powers = builder.op("Exp", builder.op("Sub", scores, top))
        total = builder.op("Log", builder.op("ReduceSum", powers, axes=[axis], keepdims=True))
        logs = builder.op("Add", total, top)
        if op.zeros:
            logs = builder.op("Select", builder.op("Equal", top, -math.inf), 0.0, logs)
        sums = builder.op("Reshape", logs, shape=list(desc_of(q).shape[:-1]))
        return builder.op("MatMul", weights, v), sums

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray] | None:
        q, k, v = (widened_array(a) for a in arrays[:3])
        scores = _evaluated_scores(op, q, k, arrays[3] if len(arrays) > 3 else None)
        powers, total, top = _evaluated_powers(op, scores)
        y = np.matmul(powers / total, v).astype(np.asarray(arrays[0]).dtype)
        return [y, (np.log(total) + top)[..., 0].astype(q.dtype)]

    @staticmethod
    def task(op: NodeView, inputs: list[View | None], outputs: list[View]) -> Task:
        return _task("attention", op, inputs, outputs)

    @staticmethod
    def flops(op: NodeView) -> int:
        q, k, v = op.inputs[:3]
        assert q is not None and k is not None and v is not None
        return 2 * math.prod(q.shape[:-1]) * k.shape[-2] * (q.shape[-1] + v.shape[-1])


@register
class AttentionGrad(Operator):
    """The gradients of attention's queries, keys and values, from its result and the sums that it gave."""

    dy = Input("T", FLOATS)
    q = Input("T", FLOATS)
    k = Input("T", FLOATS)
    v = Input("T", FLOATS)
    y = Input("T", FLOATS)
    sums = Input("", FLOATS)
    mask = Input("", BOOL | FLOATS, optional=True)
    dq = Output("T")
    dk = Output("T")
    dv = Output("T")
    scale = Attr(float)
    causal = Attr(bool, False)
    fill = Attr(float, None)
    zeros = Attr(bool, False)
    precision = Precision(narrows=True, product=True, keeps=(5, 6), masked=True)
    strided_inputs = (is_row_major,) * 5
    strided_output = is_row_major

    @staticmethod
    def verify(op: NodeView) -> None:
        dy, q, k, v, y, sums = op.inputs[:6]
        assert dy is not None and q is not None and k is not None
        assert v is not None and y is not None and sums is not None
        _check(op, q, k, v)
        if dy.shape != y.shape or y.shape != (*q.shape[:-1], v.shape[-1]) or sums.shape != q.shape[:-1]:
            raise fail(op, f"the result {y}, its gradient {dy} and sums {sums} do not match queries {q}")

    @staticmethod
    def infer(op: NodeView) -> Sequence[TensorDesc]:
        return [d for d in op.inputs[1:4] if d is not None]

    @staticmethod
    def expand(builder: Any, op: NodeView, *values: Any) -> Any:
        if not decomposes(AttentionGrad, op, builder.target):
            return NotImplemented
        return _gradients(builder, op, values[:5], values[6] if len(values) > 6 else None)

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray] | None:
        dtype = np.asarray(arrays[0]).dtype
        dy, q, k, v, y = (widened_array(a) for a in arrays[:5])
        mask = arrays[6] if len(arrays) > 6 else None
        scores = _evaluated_scores(op, q, k, mask)
        powers, total, _ = _evaluated_powers(op, scores)
        weights = powers / total
        inner = (dy * y).sum(-1, keepdims=True)
        slopes = weights * (np.matmul(dy, v.swapaxes(-1, -2)) - inner) * op.scale
        if mask is not None and mask.dtype == bool:
            slopes = np.where(mask, slopes, np.zeros((), slopes.dtype))
        turned = slopes.swapaxes(-1, -2)
        found = np.matmul(slopes, k), np.matmul(turned, q), np.matmul(weights.swapaxes(-1, -2), dy)
        return [x.astype(dtype) for x in found]

    @staticmethod
    def task(op: NodeView, inputs: list[View | None], outputs: list[View]) -> Task:
        return _task("attention_grad", op, inputs, outputs)

    @staticmethod
    def flops(op: NodeView) -> int:
        q, k, v = op.inputs[1:4]
        assert q is not None and k is not None and v is not None
        return 2 * math.prod(q.shape[:-1]) * k.shape[-2] * (3 * q.shape[-1] + 2 * v.shape[-1])


def _gradients(b: Any, op: NodeView, values: Sequence[Any], mask: Any) -> list[Any]:
    """With weights p and slopes s = p (dy v' - sum of dy y) * scale: dq = s k, dk = s' q, dv = p' dy.

    Hidden keys have zero slope, even if all keys of a query are hidden and share its weight.
    """
    dtype = desc_of(values[0]).dtype
    axis, wide = desc_of(values[0]).rank - 1, widened(dtype)
    on_gpu = (
        b.target is not None and b.target.kind == "cuda"
    )  # whose products of 16-bit operands sum in float32
    products = dtype if on_gpu else wide
    dy, q, k, v = (b.cast(x, products) for x in values[:4])
    weights = _weights(b, op, _scores(b, op, q, k, mask))
    through = b.op("MatMul", dy, v, transpose_b=True, output_dtype=wide if wide != products else None)
    inner = b.op(
        "ReduceSum", b.op("Mul", *(b.cast(x, wide) for x in (dy, values[4]))), axes=[axis], keepdims=True
    )
    slopes = b.op("Mul", b.op("Mul", weights, b.op("Sub", through, inner)), op.scale)
    if mask is not None and desc_of(mask).dtype == "bool":
        slopes = b.op("Select", mask, slopes, 0.0)
    slopes, weights = (b.cast(x, products) for x in (slopes, weights))
    found = (
        b.op("MatMul", slopes, k),
        b.op("MatMul", slopes, q, transpose_a=True),
        b.op("MatMul", weights, dy, transpose_a=True),
    )
    return [b.cast(x, dtype) for x in found]


# -- ATen ------------------------------------------------------------------------------------------------


@aten("_scaled_dot_product_flash_attention_for_cpu")
def _attention(n: AtenNode) -> Any:
    """softmax(q k' * scale + mask) v, and the logarithm of each row's sum, which only gradients read.

    Where several heads of queries share one of keys and values, those of a single token are the rows of one head, so
    the cache is read once; for more tokens keys and values are repeated.
    """
    q, k, v = _attended(n)
    mask, scores, repeats = _mask(n), _score_attrs(n), _repeats(q, k)
    if repeats > 1 and desc_of(q).shape[-2] == 1 and not scores["causal"]:
        q = n.shaped(q, [*desc_of(k).shape[:-2], repeats, desc_of(q).shape[-1]])
        mask = _mask_of_groups(n, mask, repeats)
    elif repeats > 1:
        k, v = (_repeated(n, t, repeats) for t in (k, v))
    y, sums = n.op("Attention", q, k, v, mask, **scores)
    return [n.shaped(y, n.out(0).shape), n.cast(n.shaped(sums, n.out(1).shape), n.out(1).dtype)]


@aten("_scaled_dot_product_flash_attention_for_cpu_backward")
def _attention_backward(n: AtenNode) -> Any:
    q, k, v = _attended(n)
    repeats = _repeats(q, k)
    if repeats > 1:
        k, v = (_repeated(n, t, repeats) for t in (k, v))
    values = [n.arg("grad_out"), q, k, v, n.arg("out"), n.arg("logsumexp")]
    by_q, by_k, by_v = n.op("AttentionGrad", *values, _mask(n), **_score_attrs(n))
    if repeats == 1:
        return [by_q, by_k, by_v]
    return [by_q, *(n.back(_summed(n, g, repeats), i) for i, g in ((1, by_k), (2, by_v)))]


def _repeats(q: Any, k: Any) -> int:
    """How many heads of queries share a head of keys."""
    heads, groups = desc_of(q).shape, desc_of(k).shape
    if len(heads) != 4 or len(groups) != 4 or heads[1] == groups[1] or not groups[1] or heads[1] % groups[1]:
        return 1
    return heads[1] // groups[1]


def _repeated(n: AtenNode, value: Any, repeats: int) -> Any:
    """Each head several times: (batch, groups, length, size) to (batch, heads, length, size)."""
    batch, groups, length, size = desc_of(value).shape
    wide = n.spread(n.shaped(value, [batch, groups, 1, length, size]), [batch, groups, repeats, length, size])
    return n.shaped(wide, [batch, groups * repeats, length, size])


def _summed(n: AtenNode, gradient: Any, repeats: int) -> Any:
    """The gradient of heads that were repeated."""
    batch, heads, length, size = desc_of(gradient).shape
    apart = n.shaped(n.wide(gradient), [batch, heads // repeats, repeats, length, size])
    return n.op("ReduceSum", apart, axes=[2])


def _mask_of_groups(n: AtenNode, mask: Any, repeats: int) -> Any:
    """The mask of single tokens, with a row for each head of a group where heads differ."""
    if mask is None or desc_of(mask).rank < 3 or desc_of(mask).shape[-3] == 1:
        return mask
    *before, heads, _, keys = desc_of(mask).shape
    return n.shaped(mask, [*before, heads // repeats, repeats, keys])


# What SDPA becomes on CUDA tensors: the same, with sums in shapes of their own and, beside them, the state of random
# numbers that nothing draws without dropout.
@aten("_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention",
      "_scaled_dot_product_cudnn_attention")  # fmt: skip
def _attention_on_cuda(n: AtenNode) -> Any:
    if n.arg("return_debug_mask", False):
        raise Unsupported("attention that returns its weights")
    y, sums = n.op("Attention", *_attended(n), _mask(n), **_score_attrs(n))
    wanted = n.out(1)
    count = math.prod(desc_of(sums).shape)
    if math.prod(wanted.shape) < count:  # nobody reads them
        sums = n.filled(0, wanted)
    elif math.prod(wanted.shape) > count:  # rows to the next multiple of 32
        more = wanted.shape[-1] - desc_of(sums).shape[-1]
        sums = n.op("Pad", sums, low=[0, 0, 0], high=[0, 0, more])
    others = [None if desc is None else n.filled(0, desc) for desc in n.results[2:]]
    return [y, n.shaped(n.cast(sums, wanted.dtype), wanted.shape), *others]


@aten("_scaled_dot_product_efficient_attention_backward", "_scaled_dot_product_flash_attention_backward",
      "_scaled_dot_product_cudnn_attention_backward")  # fmt: skip
def _attention_on_cuda_backward(n: AtenNode) -> Any:
    rows = desc_of(n.arg("query")).shape[:-1]
    sums = n.arg("logsumexp")
    if desc_of(sums).shape[2] != rows[2]:
        sums = n.op("Slice", sums, starts=[0, 0, 0], ends=list(rows))
    dy = n.arg("grad_out_") if n.arg("grad_out_") is not None else n.arg("grad_out")
    mask = n.arg("attn_bias")
    if mask is not None and any(n.arg("grad_input_mask", [])[3:]):
        raise Unsupported("the gradient of the numbers that attention adds to its scores")
    values = [dy, *_attended(n), n.arg("out"), n.shaped(sums, rows)]
    return [*n.op("AttentionGrad", *values, _mask(n), **_score_attrs(n)), None][: len(n.results)]


def _attended(n: AtenNode) -> list[Any]:
    if n.arg("dropout_p", 0.0):
        raise Unsupported("attention that drops weights")
    return [n.arg("query"), n.arg("key"), n.arg("value")]


def _mask(n: AtenNode) -> Any:
    """Bools, or numbers that are added to scores without being rounded."""
    mask = n.arg("attn_mask", n.arg("attn_bias"))
    return mask if mask is None or desc_of(mask).dtype == "bool" else n.wide(mask)


def _score_attrs(n: AtenNode) -> dict[str, Any]:
    """How scores are formed; a query whose keys are all hidden gives zeros."""
    size = desc_of(n.arg("query")).shape[-1]
    return {
        "scale": float(n.arg("scale", 1 / math.sqrt(size))),
        "causal": bool(n.arg("is_causal", False)),
        "zeros": n.arg("attn_mask", n.arg("attn_bias")) is not None,
    }
