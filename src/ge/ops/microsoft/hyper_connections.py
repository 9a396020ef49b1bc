"""Residual streams in several branches (hyper-connections) and the gates between them."""

from __future__ import annotations

import math
from typing import Any

from ge.ops.microsoft.standard import DOMAIN, Writer
from ge.ops.plugins import Node, Results, Unsupported, plugin


def _branches(n: Node) -> tuple[int, int, list[int]]:
    """The number of branches, their width, and the leading sizes, of grouped (…, C, H) or flat (…, C * H) streams."""
    shape, count = list(n.desc().shape), int(n.attr("num_branches", 0))
    if not count:
        return shape[-2], shape[-1], shape[:-2]
    if shape[-1] % count:
        raise Unsupported(f"{shape[-1]} columns do not make {count} branches", "check num_branches")
    return count, shape[-1] // count, shape[:-1]


def _wide(w: Writer, x: Any, *shape: int) -> Any:
    return w.reshape(w.cast(x, "float32"), *shape)


def _gates(n: Node, w: Writer, index: int, rows: int, count: int, width: int) -> Any:
    """Gates of branches or of all their features as (rows, C, 1 or H)."""
    return _wide(w, n.inputs[index], rows, count, width if n.desc(index).size == rows * count * width else 1)


def _normalised(w: Writer, x: Any, epsilon: float) -> Any:
    """x over the root of the mean of its squares along the last axis."""
    mean = w.op("ReduceMean", w.op("Mul", x, x), keepdims=1, axes=[-1], version=13)
    return w.op("Div", x, w.builder.op("Sqrt", w.builder.op("Add", mean, epsilon)))


@plugin(onnx="BranchwiseRMSNorm", domain=DOMAIN)
def _branchwise_norm(n: Node) -> Results:
    w = Writer(n, n.builder)
    count, width, lead = _branches(n)
    y = _normalised(w, _wide(w, n.inputs[0], math.prod(lead), count, width), float(n.attr("epsilon", 1e-5)))
    if n.input(1) is not None:
        branches = n.desc(1).size // width
        y = w.op("Mul", y, _wide(w, n.inputs[1], 1, branches, width))
    return w.cast(w.reshape(y, *n.desc().shape), n.desc().dtype)


@plugin(onnx="HyperConnectionPreMix", domain=DOMAIN)
def _pre_mix(n: Node) -> Results:
    """The sum of the gated branches."""
    w = Writer(n, n.builder)
    count, width, lead = _branches(n)
    rows = math.prod(lead)
    gated = w.op("Mul", _wide(w, n.inputs[0], rows, count, width), _gates(n, w, 1, rows, count, width))
    total = n.op("Mul", n.op("ReduceSum", gated, axes=[1]), float(n.attr("reduction_scale", 1.0)))
    return w.cast(w.reshape(total, *lead, width), n.desc().dtype)


@plugin(onnx="HyperConnectionPostMix", domain=DOMAIN)
def _post_mix(n: Node) -> Results:
    """The branches mixed by a matrix, plus a block's output times each branch's gate."""
    w = Writer(n, n.builder)
    count, width, lead = _branches(n)
    rows = math.prod(lead)
    streams = _wide(w, n.inputs[0], rows, count, width)
    if n.input(3) is not None:
        mix = w.op("Transpose", _wide(w, n.inputs[3], rows, count, count), perm=[0, 2, 1])
        streams = w.op("MatMul", mix, streams)
    block = _wide(w, n.inputs[1], rows, 1, width)
    y = w.op("Add", streams, w.op("Mul", _gates(n, w, 2, rows, count, width), block))
    return w.cast(w.reshape(y, *n.desc().shape), n.desc().dtype)


@plugin(onnx="EngramGate", domain=DOMAIN)
def _engram_gate(n: Node) -> Results:
    """The value times sigmoid of the signed root of the normalised keys' and queries' product."""
    w = Writer(n, n.builder)
    batch, length, count, width = n.desc().shape
    rows, epsilon = batch * length, float(n.attr("epsilon", 1e-5))

    def scaled(value: Any, scale: Any) -> Any:
        return w.op("Mul", _normalised(w, value, epsilon), _wide(w, scale, 1, count, width))

    key, query = (scaled(_wide(w, n.inputs[i], rows, count, width), n.inputs[i + 3]) for i in range(2))
    dot = n.op("ReduceSum", n.op("Mul", key, query), axes=[2], keepdims=True)
    dot = n.op("Mul", dot, 1 / math.sqrt(width))
    root = n.op("Sqrt", n.op("Maximum", n.op("Abs", dot), 1e-6))
    gate = n.op("Sigmoid", n.op("Mul", n.op("Sign", dot), root))
    y = w.op("Mul", gate, _wide(w, n.inputs[2], rows, 1, width))
    found = [y] if n.outputs < 2 else [y, scaled(y, n.inputs[5])]
    return [w.cast(w.reshape(v, *n.desc().shape), n.desc().dtype) for v in found]
