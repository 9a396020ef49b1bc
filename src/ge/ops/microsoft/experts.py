"""Mixtures of experts: feed-forward layers of which a router selects a few for every token."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ge.ir.values import desc_of
from ge.ops.builder import GraphBuilder
from ge.ops.flow.control import branch, repeat
from ge.ops.microsoft.quantised import unpacked
from ge.ops.microsoft.standard import DOMAIN, results_of, standard
from ge.ops.nn.packed import packed_product
from ge.ops.plugins import Node, Results, Unsupported, plugin

BLOCK = 32  # rows of one product where tokens are grouped by expert

Take = Callable[[GraphBuilder, Any], Any]  # one expert's slice of a value whose first axis is the expert


@dataclass(frozen=True)
class _Layer:
    """A linear layer of every expert: weights (experts, outputs, inputs), biases (experts, outputs).

    Quantised weights are (experts, outputs, bytes) with a scale, and optionally a zero point, for each group of a row.
    """

    weight: Any
    bias: Any = None
    scales: Any = None
    zeros: Any = None
    bits: int = 0
    group: int = 0

    def apply(self, n: Node, x: Any, take: Take) -> Any:
        """Apply the layer of the expert that `take` selects to x, one row per token."""
        weight, bias = take(n.builder, self.weight), take(n.builder, self.bias)
        if self.bits:
            scales, zeros = (take(n.builder, v) for v in (self.scales, self.zeros))
            return packed_product(n.builder, x, weight, scales, zeros, bias, bits=self.bits, group=self.group)
        y = standard(n, "MatMul", x, n.op("Transpose", weight, perm=[1, 0]))
        return y if bias is None else n.op("Add", y, bias)


@plugin(onnx="MoE", domain=DOMAIN)
def _mixture(n: Node) -> Results:
    """The sum of the k best experts' results for every token, weighted by the router."""
    layers = [_Layer(n.input(i), n.input(i + 1)) if n.input(i) is not None else None for i in (2, 4, 6)]
    return _mixed(n, layers)


@plugin(onnx="QMoE", domain=DOMAIN)
def _quantised_mixture(n: Node) -> Results:
    """The same with 2-, 4- or 8-bit weights; those of 2 bits are dequantised at compile time."""
    if str(n.attr("quant_type", "int")) != "int":
        raise Unsupported(f"QMoE with weights of type {n.attr('quant_type')}", "quantise to integers")
    if int(n.attr("weights_prepacked", -1)) == 1:
        raise Unsupported("weights that were packed for one device", "export the model without prepacking")
    return _mixed(n, [_quantised_layer(n, f"fc{i + 1}", 2 + 3 * i, 11 + i) for i in range(3)], n.input(14))


def _quantised_layer(n: Node, name: str, first: int, zero_points: int) -> _Layer | None:
    if n.input(first) is None:
        return None
    bits = int(n.attr(f"{name}_expert_weight_bits", 0) or n.attr("expert_weight_bits", 4))
    packed, bias = n.const(first, "the weight"), n.input(first + 2)
    depth = packed.shape[-1] * 8 // bits
    group = int(n.attr("block_size", 0) or 0)
    group = depth if group <= 0 else group
    rows = (*packed.shape[:2], depth // group)
    scales = n.const(first + 1, "the scales").astype(np.float32).reshape(rows)
    zeros = None
    if n.input(zero_points) is not None:
        stored = unpacked(n.const(zero_points, "the zero points"), bits)
        stored = stored[..., : rows[-1]] if stored.ndim == 3 else stored[..., : rows[1]]
        zeros = stored.reshape(rows).astype(np.float32) - np.float32(1 << (bits - 1))
    if bits in (4, 8):
        middles = None if zeros is None else n.builder.constant(zeros)
        return _Layer(n.builder.constant(packed), bias, n.builder.constant(scales), middles, bits, group)
    levels = unpacked(packed, bits).reshape(*rows, group).astype(np.float32) - np.float32(1 << (bits - 1))
    weight = (levels - (0 if zeros is None else zeros[..., None])) * scales[..., None]
    return _Layer(n.builder.constant(weight.reshape(*rows[:2], depth)), bias)


def _mixed(n: Node, layers: list[_Layer | None], weights: Any = None) -> Any:
    """Route tokens to experts; `weights` of experts, if given, replace the router's own."""
    if n.attr("use_sparse_mixer", 0):
        raise Unsupported("use_sparse_mixer", "export the model with plain routing")
    shape, dtype = n.desc().shape, n.desc().dtype
    tokens, experts, count = math.prod(shape[:-1]), n.desc(1).shape[-1], int(n.attr("k", 1))
    x = n.op("Reshape", n.inputs[0], shape=[tokens, shape[-1]])
    shares, chosen = _routed(n, count, weights)

    def expert(at: Node, rows: Any, take: Take) -> Any:
        return at.op("Cast", _network(at, rows, layers, take), to="float32")

    if tokens * experts <= tokens * count + experts * BLOCK:
        y = _expert_by_expert(n, x, shares, chosen, experts, expert)
    else:
        y = _block_by_block(n, x, shares, chosen, experts, expert)
    return n.op("Reshape", n.op("Cast", y, to=dtype), shape=list(shape))


def _routed(n: Node, count: int, weights: Any) -> tuple[Any, Any]:
    """Weights and indices of the k best experts of every token, (tokens, k)."""
    logits = n.op("Cast", n.inputs[1], to="float32")
    number = n.builder.constant(np.array([count], np.int64))
    best, chosen = _top(n, logits, number)
    if weights is not None:
        shares = standard(n, "GatherElements", n.op("Cast", weights, to="float32"), chosen, axis=1)
        if n.attr("normalize_routing_weights", 0):
            shares = n.op("Div", shares, standard(n, "ReduceSum", shares, _ints(n, [1]), keepdims=1))
        return shares, chosen
    if n.attr("normalize_routing_weights", 0):
        return standard(n, "Softmax", best, axis=-1), chosen
    return standard(n, "GatherElements", standard(n, "Softmax", logits, axis=-1), chosen, axis=1), chosen


def _top(n: Node, values: Any, number: Any) -> tuple[Any, Any]:
    best, chosen = results_of(n, "TopK", [values, number], 2, axis=-1, largest=1, sorted=1)
    return best, chosen


def _ints(n: Node, values: Any) -> Any:
    return n.builder.constant(np.asarray(values, np.int64))


def _network(n: Node, x: Any, layers: list[_Layer | None], take: Take) -> Any:
    """One expert: fc2(activation(fc1(x))), gated by fc3(x) if the expert has it."""
    first, second, third = layers
    if first is None or second is None:
        raise Unsupported(f"{n.type} without weights", "give fc1 and fc2")
    kind = str(n.attr("activation_type", "relu"))
    hidden = first.apply(n, x, take)
    if kind == "swiglu":
        hidden = _swiglu(n, hidden, None if third is None else third.apply(n, x, take))
    else:
        hidden = _activation(n, kind, hidden)
        hidden = hidden if third is None else n.op("Mul", hidden, third.apply(n, x, take))
    return second.apply(n, hidden, take)


def _activation(n: Node, kind: str, x: Any) -> Any:
    if kind == "identity":
        return x
    if kind == "silu":
        return n.op("Mul", x, n.op("Sigmoid", x))
    if kind == "relu":
        return n.op("Relu", x)
    if kind == "gelu":
        return n.op("Gelu", x, approximate="tanh")  # as in ONNX Runtime
    raise Unsupported(f"the activation {kind!r}", "use relu, gelu, silu, swiglu or identity")


def _swiglu(n: Node, hidden: Any, linear: Any) -> Any:
    """gate * sigmoid(alpha * gate) * (linear + beta), both clamped."""
    fusion, width = int(n.attr("swiglu_fusion", 0)), desc_of(hidden).shape[-1]
    if fusion == 0 and linear is None:
        raise Unsupported("swiglu without fc3", "give fc3, or fuse it into fc1 (swiglu_fusion)")
    rows = desc_of(hidden).shape[0]
    if fusion == 1:
        pairs = n.op("Reshape", hidden, shape=[rows, width // 2, 2])
        gate, linear = (
            n.op("Reshape", _slice(n, pairs, 2, i, i + 1), shape=[rows, width // 2]) for i in range(2)
        )
    elif fusion == 2:
        gate, linear = (_slice(n, hidden, 1, i * width // 2, (i + 1) * width // 2) for i in range(2))
    else:
        gate = hidden
    limit = n.attr("swiglu_limit")
    if limit is not None and math.isfinite(limit):
        gate = n.op("Clip", gate, min=None, max=float(limit))
        linear = n.op("Clip", linear, min=-float(limit), max=float(limit))
    alpha, beta = float(n.attr("activation_alpha", 1.0)), float(n.attr("activation_beta", 0.0))
    swish = n.op("Mul", gate, n.op("Sigmoid", n.op("Mul", gate, alpha)))
    return n.op("Mul", swish, n.op("Add", linear, beta))


def _slice(n: Node, value: Any, axis: int, start: int, end: int) -> Any:
    shape = desc_of(value).shape
    starts, ends = [0] * len(shape), list(shape)
    starts[axis], ends[axis] = start, end
    return n.op("Slice", value, starts=starts, ends=ends)


def _expert_by_expert(n: Node, x: Any, shares: Any, chosen: Any, experts: int, expert: Any) -> Any:
    """Few tokens: each selected expert runs on all of them, the others are skipped."""
    total: Any = n.builder.constant(np.zeros(desc_of(x).shape, np.float32))
    for number in range(experts):
        hits = standard(n, "Equal", chosen, _ints(n, number))
        share = standard(n, "Where", hits, shares, n.builder.constant(np.float32(0)))
        share = standard(n, "ReduceSum", share, _ints(n, [1]), keepdims=1)
        hit = standard(n, "ReduceMax", n.op("Cast", hits, to="int32"), _ints(n, [1]), keepdims=1)
        hit = n.op("Cast", hit, to="bool")
        wanted = standard(n, "ReduceMax", n.op("Cast", hit, to="int32"), _ints(n, [0, 1]), keepdims=0)

        def take(builder: GraphBuilder, value: Any, number: int = number) -> Any:
            if value is None:
                return None
            shape = desc_of(value).shape
            part = builder.op(
                "Slice", value, starts=[number, *[0] * (len(shape) - 1)], ends=[number + 1, *shape[1:]]
            )
            return builder.op("Reshape", part, shape=list(shape[1:]))

        def then(
            builder: GraphBuilder, take: Take = take, total: Any = total, hit: Any = hit, share: Any = share
        ) -> list[Any]:
            at = dataclasses.replace(n, builder=builder)
            y = at.op("Mul", expert(at, x, take), share)
            y = standard(at, "Where", hit, y, builder.constant(np.float32(0)))
            return [at.op("Add", total, y)]

        def otherwise(builder: GraphBuilder, total: Any = total) -> list[Any]:
            return [builder.op("Identity", total)]

        (total,) = branch(n.builder, n.op("Cast", wanted, to="bool"), then, otherwise)
    return total


def _block_by_block(n: Node, x: Any, shares: Any, chosen: Any, experts: int, expert: Any) -> Any:
    """Many tokens: grouped by expert, each group padded to whole blocks of rows, one block per step."""
    tokens, count = desc_of(chosen).shape
    pairs, width = tokens * count, desc_of(x).shape[-1]
    blocks = pairs // BLOCK + experts
    numbers = n.op("Reshape", chosen, shape=[pairs, 1])
    hits = n.op("Cast", standard(n, "Equal", numbers, _ints(n, np.arange(experts))), to="int64")
    ranks = standard(n, "CumSum", hits, _ints(n, 0), exclusive=1)
    filled = standard(n, "ReduceSum", hits, _ints(n, [0]), keepdims=0)
    filled = n.op(
        "Mul", standard(n, "Div", n.op("Add", filled, _ints(n, BLOCK - 1)), _ints(n, BLOCK)), _ints(n, BLOCK)
    )
    ends = standard(n, "CumSum", filled, _ints(n, 0))
    starts = n.op("Sub", ends, filled)
    slots = n.op("Mul", hits, n.op("Add", ranks, starts))
    slots = standard(n, "ReduceSum", slots, _ints(n, [1]), keepdims=0)
    sources = n.op(
        "ScatterElements",
        _ints(n, np.zeros(blocks * BLOCK)),
        slots,
        _ints(n, np.arange(pairs) // count),
        axis=0,
    )
    firsts = _ints(n, np.arange(blocks).reshape(-1, 1) * BLOCK)
    owners = n.op("Cast", standard(n, "LessOrEqual", ends, firsts), to="int64")
    owners = standard(n, "ReduceSum", owners, _ints(n, [1]), keepdims=0)
    owners = standard(n, "Min", owners, _ints(n, experts - 1))

    def step(builder: GraphBuilder, counter: Any, states: list[Any]) -> tuple[list[Any], list[Any]]:
        at = dataclasses.replace(n, builder=builder)
        rows = standard(at, "Gather", at.op("Reshape", sources, shape=[blocks, BLOCK]), counter, axis=0)
        owner = standard(at, "Gather", owners, counter, axis=0)

        def take(inner: GraphBuilder, value: Any) -> Any:
            return (
                None
                if value is None
                else standard(dataclasses.replace(n, builder=inner), "Gather", value, owner, axis=0)
            )

        return [], [expert(at, standard(at, "Gather", x, rows, axis=0), take)]

    _, (stacked,) = repeat(n.builder, blocks, [], step)
    made = n.op("Reshape", stacked, shape=[blocks * BLOCK, width])
    made = n.op("Reshape", standard(n, "Gather", made, slots, axis=0), shape=[tokens, count, width])
    made = n.op("Mul", made, n.op("Reshape", shares, shape=[tokens, count, 1]))
    return standard(n, "ReduceSum", made, _ints(n, [1]), keepdims=0)
