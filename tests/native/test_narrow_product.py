"""Products with few rows or few terms by our own kernels are what float64 gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npu_runtime as rt
from tests.native.native_support import (
    BF16,
    FLOATS,
    VECTORS,
    Array,
    Operand,
    needs_own_kernels,
    randn,
    run_single,
)

pytestmark = needs_own_kernels


def _product(a: Array, b: Array, turned: tuple[bool, bool], **attrs: Any) -> tuple[Array, str]:
    """a b, both operands stored row by row or column by column; the weights are not constant."""
    operands = [
        Operand(np.ascontiguousarray(m.T), (1, 0)) if t else m for m, t in zip((a, b), turned, strict=True)
    ]
    y = np.full((a.shape[0], b.shape[1]), np.nan, a.dtype)
    bias = attrs.pop("bias", None)
    extra = [] if bias is None else [bias]
    return y, run_single(
        "matmul",
        [*operands, *extra],
        [y],
        {"implementation": "narrow", **attrs, "has_bias": bias is not None},
    )


@settings(max_examples=80, deadline=None)
@given(
    few=st.integers(1, 8),
    sizes=st.tuples(st.integers(100, 700), st.integers(180, 700)),
    kind=st.sampled_from(["dots", "rows", "outer"]),
    a_turned=st.booleans(),
    biased=st.booleans(),
    relu=st.booleans(),
    dtype=st.sampled_from(FLOATS),
)
def test_narrow_products(
    few: int, sizes: tuple[int, int], kind: str, a_turned: bool, biased: bool, relu: bool, dtype: Any
) -> None:
    rows, depth, columns = (few, *sizes) if kind != "outer" else (sizes[0], few, sizes[1])
    a, b = randn(rows, depth).astype(dtype), randn(depth, columns, seed=1).astype(dtype)
    bias = randn(columns, seed=2).astype(dtype) if biased else None
    y, impl = _product(
        a, b, (a_turned and kind != "dots", kind == "dots"), bias=bias, post_ops=["relu"] if relu else []
    )
    assert impl == f"narrow:{VECTORS}"
    expected = a.astype(np.float64) @ b.astype(np.float64) + (0 if bias is None else bias.astype(np.float64))
    expected = np.maximum(expected, 0) if relu else expected
    error = 2e-6 * np.sqrt(depth) * max(np.abs(expected).max(), 1)
    once_rounded = 2.0**-8 * np.abs(expected) if dtype == BF16 else 0.0
    assert (np.abs(y.astype(np.float64) - expected) <= error + once_rounded).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_not_a_number_stays_in_its_row(dtype: Any) -> None:
    a, b = randn(4, 300).astype(dtype), randn(300, 200, seed=1).astype(dtype)
    a[1, 7] = np.nan
    for turned in (False, True):
        y, impl = _product(a, b, (False, turned), post_ops=["relu"])
        assert impl == f"narrow:{VECTORS}"
        y = y.astype(np.float32)
        assert np.isnan(y[1]).all() and np.isfinite(np.delete(y, 1, 0)).all()


@pytest.mark.parametrize(("shape", "attrs"), [((9, 300, 300), {}), ((4, 300, 300), {"post_ops": ["tanh"]})])
def test_others_are_refused(shape: tuple[int, int, int], attrs: dict[str, Any]) -> None:
    rows, depth, columns = shape
    with pytest.raises(rt.UnsupportedTask, match="rows and terms"):
        _product(randn(rows, depth), randn(depth, columns, seed=1), (False, False), **attrs)
