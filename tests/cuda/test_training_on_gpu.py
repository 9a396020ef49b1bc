"""Gradients on a real GPU against float32 on the CPU; skipped where there is none (`make test-cuda`)."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import ge
from ge.compiler import compile_graph
from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions
from tests.cuda.test_on_gpu import _architecture
from tests.model.test_cuda_training import GEOMETRIES, on_host, random, sizes, window

pytestmark = pytest.mark.skipif(not _architecture(), reason="this machine has no GPU")
TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}


def graph_of(make, dtypes, feeds):
    b = GraphBuilder("step")
    results = make(
        b, *[b.input(f"x{i}", a.shape, d) for i, (a, d) in enumerate(zip(feeds, dtypes, strict=True))]
    )
    for value in results:
        b.output(value)
    return b.graph


def same(make, dtype: str, *feeds: np.ndarray) -> ge.Model:
    """Compare with float32 on the CPU from the same rounded numbers, before and after tuning."""
    narrow = [a.astype(getattr(ml_dtypes, dtype, dtype)) if a.dtype == np.float32 else a for a in feeds]
    wide = [a.astype(np.float32) if a.dtype.kind not in "iub" else a for a in narrow]
    wants = compile_graph(graph_of(make, [str(a.dtype) for a in wide], wide), None, "step").run(wide)
    model = compile_graph(
        graph_of(make, [str(a.dtype) for a in narrow], narrow), CompileOptions(target=_architecture()), "step"
    )
    for tuned in (False, True):
        if tuned:
            model.program.tune()
        for got, want in zip(model.run(narrow), wants, strict=True):
            error = np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want.astype(np.float64))
            assert error <= TOLERANCE[dtype], f"tuned: {tuned}"
    return model


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_gradients_of_convolutions(geometry, dtype) -> None:
    groups = geometry[-1]

    def make(b, x, w, dy):
        dx = b.op("ConvTranspose", dy, b.op("Add", w, w), output_shape=[8, 7], **window(geometry))
        return dx, b.op("ConvGradWeight", x, dy, kernel=list(geometry[0]), **window(geometry))

    channels = 64
    feeds = (
        random(4, channels, 8, 7),
        random(channels, channels // groups, *geometry[0]),
        random(4, channels, *sizes(geometry), seed=2),
    )
    assert not on_host(same(make, dtype, *feeds))


@pytest.mark.parametrize("size", [1, 3])
def test_gradients_of_weights_in_float32(size) -> None:
    """Of operands in bfloat16: the sums are not rounded."""

    def make(b, x, dy):
        return (b.op("ConvGradWeight", x, dy, kernel=[size, size], output_dtype="float32"),)

    same(make, "bfloat16", random(8, 64, 14, 14), random(8, 128, 15 - size, 15 - size, seed=1))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_of_three_channels(dtype) -> None:
    """Those of a network's first convolution."""

    def make(b, x, dy):
        return (
            b.op("ConvGradWeight", x, dy, kernel=[7, 7], strides=[2, 2], pads_begin=[3, 3], pads_end=[3, 3]),
        )

    same(make, dtype, random(4, 3, 32, 32), random(4, 64, 16, 16, seed=1))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_embeddings(dtype) -> None:
    """Rows added up by index, many of them by the same."""

    def make(b, places, rows):
        return (b.op("ScatterSum", places, rows, rows=300),)

    places = np.random.default_rng(0).integers(-1, 300, 1000)
    places[500:600] = 7
    assert not on_host(same(make, dtype, places, random(1000, 1000)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_pools(dtype) -> None:
    window = {"kernel": [3, 3], "strides": [2, 2], "pads_begin": [1, 1], "pads_end": [1, 1]}

    def make(b, x, dy):
        most = b.op("MaxPoolGrad", dy, b.op("Relu", x), **window)
        return most, b.op("AvgPoolGrad", dy, shape=[2, 64, 16, 16], **window)

    assert not on_host(same(make, dtype, random(2, 64, 16, 16), random(2, 64, 8, 8, seed=1)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys", "columns"), [(128, 128, 64), (77, 77, 64), (40, 120, 32)])
def test_gradients_of_attention(queries, keys, columns, causal, dtype) -> None:
    """By the kernel of our own, heads and rows that do not fill it included."""

    def make(b, dy, q, k, v):
        y, sums = b.op("Attention", q, k, v, scale=0.125, causal=causal)
        return tuple(b.ops("AttentionGrad", [dy, q, k, v, y, sums], scale=0.125, causal=causal))

    if causal and queries != keys:
        pytest.skip("keys are hidden only where there are as many as queries")
    rows = (queries, queries, keys, keys)
    model = same(make, dtype, *(random(2, 3, n, columns, seed=i) for i, n in enumerate(rows)))
    assert "attention_grad" in [t.kind for t in model.plan.tasks]


@pytest.mark.parametrize("columns", [2501, 2506])
def test_products_with_odd_columns(columns) -> None:
    """Rows of operands and results that are padded to multiples of 16 bytes."""

    def make(b, x, w, dy):
        y = b.op("MatMul", x, b.op("Transpose", w, perm=[1, 0]))
        slope = b.op("Mul", y, dy)
        return y, b.op("MatMul", slope, w), b.op("MatMul", b.op("Transpose", slope, perm=[1, 0]), x)

    feeds = random(2048, 768), random(columns, 768, seed=1) / 28, random(2048, columns, seed=2)
    model = same(make, "bfloat16", *feeds)
    pitches = {max(v.strides) for t in model.plan.tasks if t.kind == "matmul" for v in t.inputs[:2]}
    assert all(n % 8 == 0 for n in pitches)


def test_moments_of_columns_with_a_large_mean() -> None:
    def make(b, x):
        mean = b.op("ReduceMean", x, axes=[0, 1, 2], keepdims=True)
        squares = b.op("Square", b.op("Sub", x, mean))
        return mean, b.op("ReduceMean", squares, axes=[0, 1, 2], keepdims=True)

    x = random(64, 28, 28, 64) + np.linspace(-100, 100, 64, dtype=np.float32)
    same(make, "float32", x)
