"""The gradient of a layer normalisation by one task is what float64 gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import npu_runtime as rt
from tests.native.native_support import (
    BF16,
    HAS_WIDE_VECTORS,
    VECTORS,
    Array,
    close,
    needs_own_kernels,
    needs_wide_vectors,
    randn,
    run_single,
)

pytestmark = needs_own_kernels

F32 = np.dtype(np.float32)
KIND, IMPLEMENTATION = "layer_norm_grad", f"rows:{VECTORS}"
CASES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([F32, *([BF16] if HAS_WIDE_VECTORS else [])]),
        "rows": st.one_of(st.integers(1, 9), st.sampled_from([33, 197, 788])),
        "columns": st.one_of(st.integers(1, 40), st.sampled_from([63, 64, 65, 257, 768])),
        "statistics": st.sampled_from([F32, BF16]),
        "scale": st.sampled_from([None, F32, BF16]),
        "wanted": st.sampled_from([(1, 1, 1), (1, 0, 0), (0, 1, 1), (1, 1, 0), (0, 0, 1), (1, 0, 1)]),
    }
)


def _wide(array: Array) -> Array:
    return array.astype(np.float64)


def _expected(dy: Array, x: Array, mean: Array, inverse: Array, scale: Array | None) -> list[Array]:
    """In float64, from the same mean and inverse deviation."""
    dy, normal = _wide(dy), (_wide(x) - _wide(mean)) * _wide(inverse)
    g = dy if scale is None else dy * _wide(scale)
    slope = (g * normal).mean(-1, keepdims=True)
    dx = (g - g.mean(-1, keepdims=True) - normal * slope) * _wide(inverse)
    return [dx, (dy * normal).sum(0), dy.sum(0)]


def _tolerance(array: Array) -> float:
    return 1e-5 if array.dtype == F32 else 1.5e-2


@settings(max_examples=120, deadline=None)
@given(case=CASES)
def test_gradients(case: dict[str, Any]) -> None:
    shape, dtype = (case["rows"], case["columns"]), case["dtype"]
    dy, x = randn(*shape, dtype=dtype), randn(*shape, seed=1, dtype=dtype)
    mean = _wide(x).mean(-1, keepdims=True).astype(case["statistics"])
    inverse = (1 / np.sqrt(_wide(x).var(-1, keepdims=True) + 0.1)).astype(case["statistics"])
    narrow = case["scale"] or F32
    scale = None if case["scale"] is None else randn(shape[1], seed=2, dtype=narrow)
    found = [np.full(s, np.nan, d) for s, d in ((shape, dtype), (shape[1:], narrow), (shape[1:], narrow))]
    inputs = [a for a in (dy, x, mean, inverse, scale) if a is not None]
    outputs = [a for a, kept in zip(found, case["wanted"], strict=True) if kept]
    attrs = {
        "columns": shape[1],
        "wanted": list(case["wanted"]),
        "has_scale": scale is not None,
    }
    assert run_single(KIND, inputs, outputs, attrs) == IMPLEMENTATION
    expected = _expected(dy, x, mean, inverse, scale)
    for ours, theirs, kept in zip(found, expected, case["wanted"], strict=True):
        if kept:
            close(ours, theirs, _tolerance(ours))


@needs_wide_vectors
def test_rounding_of_bfloat16() -> None:
    """To the nearest, ties to even; what is not finite stays so."""
    dy = np.array([[1 + 2**-8, 1 + 3 * 2**-8, -3e38, 1e-3]], np.float32).astype(BF16)
    big = np.array([[np.inf, -1.0, 2.0, 0.5]], BF16)
    attrs = {"columns": 4, "wanted": [1, 0, 0], "has_scale": True}
    zero, scale = np.zeros((1, 1), np.float32), randn(4)
    for gradient, inverse in ((dy, np.float32(1.1)), (big, np.float32(0.3))):
        wide, narrow = np.full((1, 4), np.nan, np.float32), np.zeros((1, 4), BF16)
        statistics = [zero, np.full((1, 1), inverse), scale]
        x = np.array([[1, -1, 3, -3]], BF16)
        run_single(KIND, [gradient, x, *statistics], [narrow], attrs)
        run_single(KIND, [gradient.astype(np.float32), x.astype(np.float32), *statistics], [wide], attrs)
        rounded = torch.from_numpy(wide).bfloat16().float().numpy()
        np.testing.assert_array_equal(narrow.astype(np.float32), rounded)


def test_a_run_gives_the_bits_of_another() -> None:
    x, dy = randn(788, 65), randn(788, 65, seed=1)
    mean, inverse = x.mean(-1), 1 / x.std(-1)
    runs = []
    for _ in range(4):
        outputs = [np.full(s, np.nan, np.float32) for s in ((788, 65), (65,), (65,))]
        run_single(KIND, [dy, x, mean, inverse], outputs, {"columns": 65})
        runs.append(b"".join(a.tobytes() for a in outputs))
    assert len(set(runs)) == 1


def test_what_does_not_fit_is_refused() -> None:
    x, one, y = randn(4, 6), randn(4), np.zeros((4, 6), np.float32)
    dx = {"wanted": [1, 0, 0]}
    refused = [
        ([x, x, one, one], [y], {"columns": 5, **dx}, "shapes do not fit"),
        ([x, x, one[:3], one], [y], {"columns": 6, **dx}, "shapes do not fit"),
        ([x, x, one, one, one], [y], {"columns": 6, **dx}, "no attribute names"),
        ([x, x, one, one], [y.astype(BF16)], {"columns": 6, **dx}, "different types"),
        ([x, x, one.astype(np.float64), one], [y], {"columns": 6, **dx}, "float32 or bfloat16"),
        ([x.astype(np.float64)] * 4, [y], {"columns": 6, **dx}, "no kernel"),
    ]
    for inputs, outputs, attrs, reason in refused:
        with pytest.raises(rt.UnsupportedTask, match=reason):
            run_single(KIND, inputs, outputs, attrs)
