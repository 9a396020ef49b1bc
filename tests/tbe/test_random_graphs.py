"""Random graphs: whatever can be one kernel computes what the interpreter computes, on every target."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tbe
from tests.tbe.running import check

_EXTENTS = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 33])
_MOVES = ("reshape", "transpose", "slice", "pad", "concat", "broadcast", "take", "window")
_COMPUTES = ("unary", "binary", "binary", "select", "cast", "iota")
_REDUCES = ("reduce", "normalise", "scan")


def _axis(draw, x: tbe.Tensor) -> int:
    return draw(st.integers(0, len(x.shape) - 1))


def _reshape(draw, x: tbe.Tensor) -> tbe.Tensor:
    shape = list(x.shape)
    if len(shape) > 1 and draw(st.booleans()):
        at = draw(st.integers(0, len(shape) - 2))
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    else:
        at = draw(st.integers(0, len(shape) - 1))
        divisors = [d for d in range(1, shape[at] + 1) if shape[at] % d == 0]
        d = draw(st.sampled_from(divisors))
        shape[at : at + 1] = [shape[at] // d, d]
    return tbe.reshape(x, shape)


def _slice(draw, x: tbe.Tensor) -> tbe.Tensor:
    starts, steps, shape = [], [], []
    for d in x.shape:
        step = draw(st.sampled_from([1, 1, 1, 2, 3, -1, -2]))
        count = draw(st.integers(1, -(-d // abs(step))))
        start = draw(st.integers(0, d - 1 - (count - 1) * abs(step)))
        starts.append(start if step > 0 else start + (count - 1) * -step)
        steps.append(step)
        shape.append(count)
    return tbe.slice(x, starts, steps, shape)


def _pad(draw, x: tbe.Tensor) -> tbe.Tensor:
    width = st.integers(0, 2)
    low = [draw(width) for _ in x.shape]
    high = [draw(width) for _ in x.shape]
    return tbe.pad(x, low, high, 3)


def _concat(draw, x: tbe.Tensor) -> tbe.Tensor:
    axis = _axis(draw, x)
    parts = [x]
    for _ in range(draw(st.integers(1, 2))):
        shape = list(x.shape)
        shape[axis] = draw(st.integers(1, x.shape[axis]))
        parts.append(tbe.slice(x, [0] * len(shape), [1] * len(shape), shape) + x.dtype.startswith("i"))
    return tbe.concat(parts, axis)


def _broadcast(draw, x: tbe.Tensor) -> tbe.Tensor:
    return tbe.broadcast_to(x, (draw(st.integers(1, 4)), *x.shape))


def _take(draw, x: tbe.Tensor) -> tbe.Tensor:
    axis = _axis(draw, x)
    count = draw(st.integers(1, 9))
    indices = tbe.iota((count,), 0, "int32") * draw(st.integers(-3, 3)) + draw(st.integers(-4, 4))
    return tbe.take(x, indices, axis)


def _window(draw, x: tbe.Tensor) -> tbe.Tensor:
    axis = _axis(draw, x)
    shift, scale, divide = draw(st.integers(-3, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))

    def body(*i):
        moved = [*i[:axis], (i[axis] * scale + shift) // divide, *i[axis + 1 :]]
        return x[tuple(moved)] + x[i]

    return tbe.compute(x.shape, body)


def _move(draw, x: tbe.Tensor) -> tbe.Tensor:
    kind = draw(st.sampled_from(_MOVES))
    if kind == "transpose":
        return tbe.transpose(x, draw(st.permutations(range(len(x.shape)))))
    table = {
        "reshape": _reshape,
        "slice": _slice,
        "pad": _pad,
        "concat": _concat,
        "broadcast": _broadcast,
        "take": _take,
        "window": _window,
    }
    return table[kind](draw, x)


def _compute(draw, x: tbe.Tensor) -> tbe.Tensor:
    kind = draw(st.sampled_from(_COMPUTES))
    if kind == "unary":
        return tbe.unary(draw(st.sampled_from(["abs", "neg", "relu", "sign"])), x)
    if kind == "binary":
        axis = _axis(draw, x)
        row = [1] * len(x.shape)
        row[axis] = x.shape[axis]
        other = tbe.reshape(tbe.cast(tbe.iota((x.shape[axis],), 0, "int32"), x.dtype), row)
        return tbe.binary(draw(st.sampled_from(["add", "sub", "max", "min"])), x, other)
    if kind == "select":
        return tbe.select(x > 1, x, -x)
    if kind == "cast":
        return tbe.cast(tbe.cast(x, "int16"), x.dtype)
    return x + tbe.iota(x.shape, _axis(draw, x), x.dtype)


def _reduce(draw, x: tbe.Tensor) -> tbe.Tensor:
    kind = draw(st.sampled_from(_REDUCES))
    axes = draw(st.sets(st.integers(0, len(x.shape) - 1), min_size=1))
    if kind == "scan":
        axis = _axis(draw, x)
        op = draw(st.sampled_from(["sum", "max", "min"]))
        return tbe.scan(op, x, axis, draw(st.booleans()) and op == "sum", draw(st.booleans()))
    if kind == "normalise":
        return x - tbe.reduce(draw(st.sampled_from(["max", "min"])), x, axes, True)
    op = draw(st.sampled_from(["sum", "max", "min", "argmax"]))
    keep = draw(st.booleans()) or len(axes) == len(x.shape)
    y = tbe.reduce(op, x, axes, keep, last=draw(st.booleans()))
    return tbe.cast(y, x.dtype)


@st.composite
def graphs(draw):
    dtype = draw(st.sampled_from(["int32", "int32", "float32", "int8", "bfloat16"]))
    shape = draw(st.lists(_EXTENTS, min_size=1, max_size=4))
    while math.prod(shape) > 4000:
        shape.pop()
    source = tbe.placeholder(shape, dtype, "x")
    x: tbe.Tensor = source
    made = []
    for _ in range(draw(st.integers(1, 6))):
        y = draw(st.sampled_from([_move, _move, _compute, _compute, _reduce]))(draw, x)
        if y.size <= 8000 and len(y.shape) <= 6:
            x = y
            made.append(y)
    outputs = [x] if made else [source + source]
    if made and draw(st.integers(0, 3)) == 0:
        outputs.append(draw(st.sampled_from(made)))
    return source, outputs


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(graphs(), st.sampled_from(["host", "host", "portable", "avx2"]))
def test_kernel_agrees_with_interpreter(graph, target):
    source, outputs = graph
    try:
        tbe.schedule([source], outputs)
    except tbe.Unfusable as reason:
        assert str(reason)
        return
    if target == "avx2" and not tbe.runs_here("avx2"):
        pytest.skip("no AVX2 here")
    rng = np.random.default_rng(7)
    data = rng.integers(-4, 5, source.shape).astype(tbe.numpy_dtype(source.dtype))
    check([source], outputs, {source: data}, target, rtol=1e-5, atol=1e-3)
