"""Fused groups as models have them: softmax, normalisations, activations, attention, in every arrangement."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tbe
from tests.tbe.running import call, check

TARGETS = ("host", "portable")


def ph(shape, dtype="float32") -> tbe.Tensor:
    return tbe.placeholder(shape, dtype)


def values_for(tensors) -> dict:
    rng = np.random.default_rng(0)
    values = {}
    for t in tensors:
        if tbe.dtype_of(t.dtype).is_float:
            values[t] = rng.standard_normal(t.shape).astype(tbe.numpy_dtype(t.dtype))
        elif t.dtype == "bool":
            values[t] = rng.random(t.shape) < 0.5
        else:
            values[t] = rng.integers(-3, 8, t.shape).astype(tbe.numpy_dtype(t.dtype))
    return values


def softmax(x, axes=-1):
    top = tbe.reduce("max", x, axes, True)
    e = tbe.unary("exp", x - top)
    return e / tbe.reduce("sum", e, axes, True)


def log_softmax(x):
    shifted = x - tbe.reduce("max", x, -1, True)
    return shifted - tbe.unary("log", tbe.reduce("sum", tbe.unary("exp", shifted), -1, True))


def layer_norm(x, scale, bias, axes=(-1,)):
    count = math.prod(x.shape[a] for a in axes)
    centred = x - tbe.reduce("sum", x, axes, True) * (1 / count)
    variance = tbe.reduce("sum", centred * centred, axes, True) * (1 / count)
    return centred * tbe.unary("rsqrt", variance + 1e-5) * scale + bias


def rms_norm(x, scale):
    mean = tbe.reduce("sum", x * x, -1, True) * (1 / x.shape[-1])
    return x * tbe.unary("rsqrt", mean + 1e-6) * scale


def gelu(x):
    return x * 0.5 * (tbe.unary("erf", x * 0.7071067811865476) + 1.0)


def group_norm(x, groups):
    n, h, w, c = x.shape
    v = tbe.reshape(x, (n, h, w, groups, c // groups))
    return tbe.reshape(layer_norm(v, 1.0, 0.0, (1, 2, 4)), x.shape)


X = ph((4, 37, 50))
Y = ph((4, 37, 50))
G = ph((50,))
B = ph((50,))
IMAGE = ph((2, 5, 6, 12))
FIRST = ph((2, 12, 5, 6))
HEADS = ph((2, 3, 8, 16))
TOKENS = ph((2, 8, 48))
CHANNEL = ph((12,))
PLANE = ph((12, 1, 1))
SUM = X + Y
CAUSAL = tbe.binary("ge", tbe.iota((16, 16), 0, "int32"), tbe.iota((16, 16), 1, "int32"))
SCORES = ph((2, 16, 16))
TABLE, IDS, PLACE = ph((30, 64)), ph((2, 9), "int32"), ph((9, 64))

CASES = {
    "softmax of rows": ([X], [softmax(X)]),
    "softmax of columns": ([X], [softmax(X, 1)]),
    "softmax over the first axis": ([X], [softmax(X, 0)]),
    "softmax over two axes": ([X], [softmax(X, (1, 2))]),
    "softmax over separate axes": ([X], [softmax(X, (0, 2))]),
    "softmax over everything": ([X], [softmax(X, (0, 1, 2))]),
    "softmax then transpose": ([HEADS], [tbe.transpose(softmax(HEADS), (0, 2, 1, 3))]),
    "log softmax": ([X], [log_softmax(X)]),
    "layer norm": ([X, G, B], [layer_norm(X, G, B)]),
    "residual, sum kept, layer norm": ([X, Y, G, B], [SUM, layer_norm(SUM, G, B)]),
    "bias, gelu, residual, norm": ([X, Y, G, B], [layer_norm(gelu(X + B) + Y, G, B)]),
    "rms norm": ([X, G], [rms_norm(X, G)]),
    "norm, softmax": ([X, Y, G, B], [softmax(layer_norm(X + Y, G, B))]),
    "norm and its statistics": ([X, G, B], [layer_norm(X, G, B), tbe.reduce("sum", X, -1) * 0.02]),
    "group norm": ([IMAGE], [group_norm(IMAGE, 3)]),
    "instance norm, channels last": ([IMAGE], [layer_norm(IMAGE, 1.0, 0.0, (1, 2))]),
    "instance norm, channels first": ([FIRST], [layer_norm(FIRST, PLANE, 0.5, (2, 3)), ], ),
    "batch norm, channels last": ([IMAGE, CHANNEL], [tbe.unary("relu", IMAGE * CHANNEL + CHANNEL)]),
    "batch norm, channels first": ([FIRST, PLANE], [tbe.unary("relu", FIRST * PLANE + PLANE)]),
    "batch statistics": ([IMAGE], [tbe.reduce("sum", IMAGE, (0, 1, 2)), tbe.reduce("max", IMAGE, (0, 1, 2))]),
    "statistics, channels first": ([FIRST], [tbe.reduce("sum", FIRST, (0, 2, 3))]),
    "batch norm in training": ([IMAGE], [layer_norm(IMAGE, 1.0, 0.0, (0, 1, 2))]),
    "split heads": ([TOKENS], [tbe.transpose(tbe.reshape(TOKENS, (2, 8, 3, 16)), (0, 2, 1, 3))]),
    "merge heads": ([HEADS, TOKENS], [tbe.reshape(tbe.transpose(HEADS, (0, 2, 1, 3)), (2, 8, 48)) + TOKENS]),
    "causal softmax": ([SCORES], [softmax(tbe.select(CAUSAL, SCORES * 0.25, tbe.constant(-1e30, "float32")))]),
    "embedding and norm": ([TABLE, IDS, PLACE], [layer_norm(tbe.take(TABLE, IDS, 0) + PLACE, 1.0, 0.0)]),
    "two sums of different lengths": ([X, B], [tbe.reduce("sum", X, 2) + tbe.reduce("sum", Z := ph((4, 37, 9)), 2)]),
    "a sum spread wider": ([X], [tbe.broadcast_to(tbe.reduce("sum", X, 2, True), (4, 37, 20))]),
}  # fmt: skip
CASES["two sums of different lengths"] = ([X, Z], CASES["two sums of different lengths"][1])
CASES["instance norm, channels first"] = ([FIRST, PLANE], CASES["instance norm, channels first"][1])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_fused_group(name: str, target: str) -> None:
    inputs, outputs = CASES[name]
    check(inputs, outputs, values_for(inputs), target, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    "shape", [(3, 1), (1, 5), (7, 16), (5, 17), (3, 64), (2, 1000), (33, 3), (1, 20_000)]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_softmax_of_any_length(shape, dtype) -> None:
    x = ph(shape, dtype)
    wide = x if dtype != "bfloat16" else tbe.cast(x, "float32")
    check([x], [tbe.cast(softmax(wide), dtype)], values_for([x]), rtol=2e-5, atol=1e-7)


def test_softmax_keeps_nan_and_infinity() -> None:
    x = ph((4, 20))
    data = np.zeros((4, 20), np.float32)
    data[0, 3], data[1, 4], data[2, 5] = np.nan, -np.inf, np.inf
    check([x], [softmax(x)], {x: data})


def test_division_by_a_reduced_value_of_any_size() -> None:
    x = ph((6, 33))
    scale = np.array([1e-42, 1e-30, 1.0, 1e30, 3e36, 0.0], np.float32)[:, None]
    data = (np.abs(np.random.default_rng(1).standard_normal((6, 33))) * scale).astype(np.float32)
    check([x], [x / tbe.reduce("max", x, 1, True)], {x: data}, rtol=1e-6, atol=0)


def test_aliased_output_may_share_memory() -> None:
    inputs, outputs = CASES["residual, sum kept, layer norm"]
    kernel = tbe.build(inputs, outputs)
    assert kernel.aliases == ((0, 1), (1, 1))  # the inputs are read again after the sum is written
    for source, target in kernel.aliases:
        values = values_for(inputs)
        expected = tbe.evaluate(outputs, values)
        arrays = [values[t].copy() for t in inputs]
        results = [np.zeros(t.shape, tbe.numpy_dtype(t.dtype)) for t in outputs]
        results[target] = arrays[source]
        call(kernel, [*arrays, *results])
        for got, want in zip(results, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
