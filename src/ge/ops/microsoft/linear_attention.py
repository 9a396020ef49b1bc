"""Linear attention and the convolutions and norms around it, as in Gated DeltaNet and Mamba."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from ge.ir.values import desc_of
from ge.ops.builder import GraphBuilder
from ge.ops.flow.control import repeat
from ge.ops.microsoft.standard import DOMAIN, standard
from ge.ops.plugins import Node, Results, Unsupported, plugin

_RULES = {
    "linear": (False, False),
    "gated": (True, False),
    "delta": (False, True),
    "gated_delta": (True, True),
}


def _window(n: Node) -> None:
    if n.attr("state_window", 0):
        raise Unsupported(f"{n.type} with a window of states", "export the model with state_window=0")


@plugin(onnx="LinearAttention", domain=DOMAIN)
def _linear_attention(n: Node) -> Results:
    """S = exp(decay) S + k (beta (v - exp(decay) k S)), y = scale q S, token by token; all in float32."""
    _window(n)
    rule = str(n.attr("update_rule", "gated_delta"))
    if rule not in _RULES:
        raise Unsupported(f"the update rule {rule!r}", f"use one of {', '.join(_RULES)}")
    gated, delta = _RULES[rule]
    batch, tokens = n.desc().shape[:2]
    heads, groups = int(n.attr("q_num_heads")), int(n.attr("kv_num_heads"))
    depth, width = n.desc().shape[-1] // heads, n.desc(2).shape[-1] // groups
    keys = n.desc(1).shape[-1] // depth  # heads of keys; fewer than those of values share theirs

    def split(index: int, parts: int) -> Any:
        """(tokens, batch, parts, size) from (batch, tokens, parts * size), so that a step takes one slice."""
        x = n.op("Cast", n.inputs[index], to="float32")
        x = n.op("Reshape", x, shape=[batch, tokens, parts, n.desc(index).shape[-1] // parts])
        return n.op("Transpose", x, perm=[1, 0, 2, 3])

    def shared(at: Node, x: Any, parts: int, wanted: int) -> Any:
        """Heads that several others share, once for each of these."""
        if parts == wanted:
            return x
        indices = at.builder.constant(np.repeat(np.arange(parts), wanted // parts))
        return standard(at, "Gather", x, indices, axis=1)

    q, k, v = split(0, heads), split(1, keys), split(2, groups)
    beta_heads = n.desc(5).shape[-1] if delta else 1
    decay, beta = split(4, groups) if gated else None, split(5, beta_heads) if delta else None
    scale = float(n.attr("scale", 0.0)) or 1 / math.sqrt(depth)
    outputs = max(heads, groups)
    past = n.input(3)
    state: Any = n.builder.constant(np.zeros((batch, groups, depth, width), np.float32))
    state = state if past is None else n.op("Cast", past, to="float32")

    def step(builder: GraphBuilder, counter: Any, states: list[Any]) -> tuple[list[Any], list[Any]]:
        at = dataclasses.replace(n, builder=builder)

        def row(x: Any, parts: int, axis: int) -> Any:
            """A token's vectors as columns (axis 3) or rows (axis 2) beside the state."""
            x = standard(at, "Gather", x, counter, axis=0)
            size = desc_of(x).shape[-1]
            return at.op("Reshape", x, shape=[batch, parts, *((size, 1) if axis == 3 else (1, size))])

        (memory,) = states
        if decay is not None:
            memory = at.op("Mul", memory, at.op("Exp", row(decay, groups, 3)))
        key = shared(at, row(k, keys, 3), keys, groups)
        value = row(v, groups, 2)
        if beta is not None:
            known = standard(at, "ReduceSum", at.op("Mul", memory, key), _ints(at, [2]), keepdims=1)
            value = at.op("Mul", at.op("Sub", value, known), row(beta, beta_heads, 2))
        memory = at.op("Add", memory, at.op("Mul", key, value))
        query = shared(at, row(q, heads, 3), heads, outputs)
        read = at.op("Mul", shared(at, memory, groups, outputs), query)
        read = standard(at, "ReduceSum", read, _ints(at, [2]), keepdims=0)
        return [memory], [at.op("Mul", read, scale)]

    (state,), (read,) = repeat(n.builder, tokens, [state], step)
    y = n.op("Reshape", n.op("Transpose", read, perm=[1, 0, 2, 3]), shape=[batch, tokens, outputs * width])
    held = n.desc(3).dtype if past is not None else n.desc().dtype
    return [n.op("Cast", y, to=n.desc().dtype), n.op("Cast", state, to=held)][: n.outputs]


def _ints(n: Node, values: Any) -> Any:
    return n.builder.constant(np.asarray(values, np.int64))


@plugin(onnx="LinearAttentionGate", domain=DOMAIN)
def _gate(n: Node) -> Results:
    """scale * softplus(a + bias), and sigmoid(b)."""
    a, bias, scale = (n.op("Cast", v, to="float32") for v in n.inputs[:3])
    decay = n.op("Mul", scale, standard(n, "Softplus", n.op("Add", a, bias)))
    results = [n.op("Cast", decay, to=n.desc().dtype)]
    if n.outputs > 1:
        results.append(n.op("Sigmoid", n.inputs[3]))
    return results


@plugin(onnx="GatedRMSNorm", domain=DOMAIN)
def _gated_norm(n: Node) -> Results:
    """x / rms(x) * scale * activation(gate), over groups as long as scale."""
    x, scale, gate = (n.op("Cast", v, to="float32") for v in n.inputs[:3])
    shape, size = n.desc().shape, n.desc(1).shape[0]
    rows = n.op("Reshape", x, shape=[math.prod(shape) // size, size])
    mean = standard(n, "ReduceMean", n.op("Mul", rows, rows), _ints(n, [1]), keepdims=1)
    root = n.op("Sqrt", n.op("Add", mean, float(n.attr("epsilon", 1e-5))))
    normal = n.op("Reshape", n.op("Mul", n.op("Div", rows, root), scale), shape=list(shape))
    slope = n.op("Sigmoid", gate)
    if str(n.attr("activation", "silu")) in ("silu", "swish"):
        slope = n.op("Mul", gate, slope)
    return n.op("Cast", n.op("Mul", normal, slope), to=n.desc().dtype)


@plugin(onnx="GatedAdd", domain=DOMAIN)
def _gated_add(n: Node) -> Results:
    return n.op("Add", n.inputs[0], n.op("Mul", n.inputs[1], n.inputs[2]))


@plugin(onnx="CausalConvWithState", domain=DOMAIN)
def _causal_convolution(n: Node) -> Results:
    """A depthwise convolution of each position with those before it; the state holds the last of these."""
    _window(n)
    if int(n.attr("ndim", 1)) != 1:
        raise Unsupported(f"{n.type} over {n.attr('ndim')} axes", "use ndim=1")
    last = bool(n.attr("channels_last", 0))
    kernel, dilation = n.desc(1).shape[-1], int(n.attr("dilation", 1))
    channels, held = n.desc(1).shape[0], (kernel - 1) * dilation
    shape = n.desc().shape

    def plain(value: Any) -> Any:
        """(batch, channels, positions)."""
        if not last:
            return value
        size = desc_of(value).shape
        return n.op("Transpose", n.op("Reshape", value, shape=[size[0], size[1], channels]), perm=[0, 2, 1])

    def given(value: Any) -> Any:
        if not last:
            return value
        rows = n.op("Transpose", value, perm=[0, 2, 1])
        return n.op("Reshape", rows, shape=[shape[0], desc_of(rows).shape[1], *shape[2:]])

    x, past = plain(n.inputs[0]), n.input(3)
    batch, length = desc_of(x).shape[0], desc_of(x).shape[2]
    if held:
        before = np.zeros((batch, channels, held), np.float32)
        front = (
            plain(past) if past is not None else n.op("Cast", n.builder.constant(before), to=n.desc().dtype)
        )
        x = n.op("Concat", front, x, axis=2)
    y = standard(n, "Conv", x, n.inputs[1], n.input(2), group=channels, dilations=[dilation], pads=[0, 0])
    if str(n.attr("activation", "none")) in ("silu", "swish"):
        y = n.op("Mul", y, n.op("Sigmoid", y))
    state = n.op("Slice", x, starts=[0, 0, length], ends=[batch, channels, length + held])
    return [given(y), given(state)][: n.outputs]
