"""Weights in 16 bits: near the float32 ones, and with sums that are nearer still."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pass_support import floats

from ge.options import CompileOptions, PrecisionMode
from ge.passes.rounding import round_weights
from tests.support.small_graphs import compiled

_TYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


@pytest.mark.parametrize("dtype", list(_TYPES))
@pytest.mark.parametrize("axes", [(0,), (1, 2, 3), (0, 1, 2)])
def test_errors_of_sums_cancel(dtype: str, axes: tuple[int, ...]) -> None:
    weights = floats(256, 24, 3, 16)
    rounded = round_weights(weights, dtype, axes)
    plain = weights.astype(_TYPES[dtype])
    assert rounded.dtype == plain.dtype
    ours, theirs = (np.abs((r.astype(np.float32) - weights).sum(axis=axes)).mean() for r in (rounded, plain))
    assert ours < 0.6 * theirs
    spacing = 2.0 ** (np.floor(np.log2(np.abs(weights))) - {"bfloat16": 7, "float16": 10}[dtype])
    spacing = np.maximum(spacing, float(np.finfo(_TYPES["float16"]).smallest_subnormal))
    assert (np.abs(rounded.astype(np.float32) - weights) <= spacing * 1.0001).all()


@given(
    hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=12),
        elements=st.floats(-(2.0**100), 2.0**100, width=32) | st.sampled_from([0.0, -0.0, 2.0**-148]),
    )
)
def test_any_weights_stay_within_a_step(weights: np.ndarray) -> None:
    rounded = round_weights(weights, "bfloat16", (1,)).astype(np.float64)
    assert np.isfinite(rounded).all()
    assert (np.abs(rounded - weights) <= np.abs(weights) * 2.0**-7 + 1e-37).all()


def test_numbers_that_need_no_rounding_stay() -> None:
    weights = floats(8, 8).astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(round_weights(weights, "bfloat16", (1,)).astype(np.float32), weights)


def test_a_product_of_a_constant_input_is_nearly_exact() -> None:
    """A sum of equal inputs is a sum of weights: what rounding to nearest gets wrong by its share of 2^-9."""

    def build(b):
        ones = b.op("Mul", b.input("x", (4, 1), "float32"), np.ones((1, 512), np.float32))
        return b.op("Add", b.op("MatMul", ones, floats(512, 64)), 0.0)

    model = compiled(build, CompileOptions(precision_mode=PrecisionMode.MIX_BF16), tolerance=2e-2)
    x = np.ones((4, 1), np.float32)
    exact = x @ floats(512, 64).sum(0, keepdims=True)
    assert np.abs(model(x) - exact).max() < 2**-8 * np.abs(exact).max()
