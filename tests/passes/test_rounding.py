"""Weights in 16 bits: near the float32 ones, and with sums that are nearer still."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions, PrecisionMode
from ge.passes.precision.rounding import WeightLayout, round_weights
from tests.passes.pass_support import floats
from tests.support.small_graphs import compiled

_TYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def _errors(
    weights: np.ndarray, dtype: str, layout: WeightLayout, means: np.ndarray | None = None
) -> list[np.ndarray]:
    """What rounding with care and rounding to nearest get wrong."""
    rounded = round_weights(weights, dtype, layout, means)
    assert rounded.dtype == _TYPES[dtype] and rounded.shape == weights.shape
    return [r.astype(np.float32) - weights for r in (rounded, weights.astype(_TYPES[dtype]))]


@pytest.mark.parametrize("dtype", list(_TYPES))
@pytest.mark.parametrize("rows_last", [False, True])
@pytest.mark.parametrize("channels, taps", [(1000, 1), (24, 1), (16, 9), (1, 25), (3, 49)])
def test_errors_of_sums_cancel(dtype: str, rows_last: bool, channels: int, taps: int) -> None:
    weights = floats(*((taps, channels, 40) if rows_last else (40, channels, taps)))
    ours, plain = _errors(weights, dtype, WeightLayout(channels, taps, rows_last))
    over = (0, 1) if rows_last else (1, 2)
    sums = [np.abs(e.sum(axis=over)).mean() for e in (ours, plain)]
    assert sums[0] < 0.1 * sums[1]
    assert np.square(ours).mean() < 2 * np.square(plain).mean()
    if taps > 1:
        windows = [np.abs(e.sum(axis=over[0] if rows_last else over[1])).mean() for e in (ours, plain)]
        assert windows[0] < 0.3 * windows[1]


def test_channels_count_as_much_as_their_means() -> None:
    weights, means = floats(64, 2, 48), floats(2, 48, seed=3)
    weights = weights.reshape(128, 48)
    ours, plain = _errors(weights, "bfloat16", WeightLayout(48), means)
    products = [np.abs((e.reshape(2, 64, 48) * means[:, None]).sum(-1)).mean() for e in (ours, plain)]
    assert products[0] < 0.1 * products[1]


def test_matrices_of_a_batch_are_rounded_one_by_one() -> None:
    weights = floats(3, 20, 33)
    layout = WeightLayout(20, rows_last=True)
    together = round_weights(weights, "bfloat16", layout)
    for matrix, rounded in zip(weights, together, strict=True):
        np.testing.assert_array_equal(round_weights(matrix, "bfloat16", layout), rounded)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_weights_without_elements(shape: tuple[int, int]) -> None:
    assert round_weights(np.zeros(shape, np.float32), "bfloat16", WeightLayout(shape[1])).shape == shape


@given(
    hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=12),
        elements=st.floats(-(2.0**100), 2.0**100, width=32) | st.sampled_from([0.0, -0.0, 2.0**-148]),
    ),
    st.sampled_from(list(_TYPES)),
)
def test_every_weight_gets_one_of_its_two_neighbours(weights: np.ndarray, dtype: str) -> None:
    rounded = round_weights(weights, dtype, WeightLayout(weights.shape[1]))
    with np.errstate(over="ignore"):
        nearest = weights.astype(_TYPES[dtype])
    wide, near = (x.astype(np.float64) for x in (rounded, nearest))
    away = np.where(near < weights, np.inf, -np.inf).astype(_TYPES[dtype])
    other = np.nextafter(nearest, np.where(near == weights, nearest, away).astype(_TYPES[dtype]))
    fits = np.isfinite(near)
    assert ((wide == near) | (rounded == other))[fits].all()
    np.testing.assert_array_equal(wide[~fits], near[~fits])


def test_numbers_that_need_no_rounding_stay() -> None:
    weights = floats(8, 8).astype(ml_dtypes.bfloat16).astype(np.float32)
    rounded = round_weights(weights, "bfloat16", WeightLayout(8))
    np.testing.assert_array_equal(rounded.astype(np.float32), weights)


def test_numbers_that_are_not_finite_stay() -> None:
    weights = np.array([[np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1.001, 1.003, 0.7]], np.float32)
    rounded = round_weights(weights, "bfloat16", WeightLayout(8)).astype(np.float32)
    np.testing.assert_array_equal(
        rounded[:, :5], weights[:, :5].astype(ml_dtypes.bfloat16).astype(np.float32)
    )
    assert (np.abs(rounded[:, 5:] - weights[:, 5:]) < 2**-7).all()


@pytest.mark.parametrize("weight_format", ["OI", "IO"])
def test_a_product_after_a_depthwise_convolution_knows_the_sums_of_its_taps(weight_format: str) -> None:
    """On an image of one colour the result is nearly exact: neither window nor sum has an error of its own."""
    depthwise, pointwise = floats(96, 1, 3, 3), floats(64, 96, 1, 1, seed=5)
    window: dict[str, Any] = {"pads_begin": [0, 0], "pads_end": [0, 0], "weight_format": weight_format}
    order = (0, 1, 2, 3) if weight_format == "OI" else (2, 3, 1, 0)

    def build(b: GraphBuilder) -> ir.Value:
        x = b.op("Relu", b.input("x", (1, 96, 8, 8), "float32"))
        spread = b.op("Conv", x, depthwise.transpose(order).copy(), groups=96, **window)
        y = b.op("Conv", spread, pointwise.transpose(order).copy(), **window)
        return b.op("Add", y, 0.0)

    model = compiled(build, CompileOptions(precision_mode=PrecisionMode.MIX_BF16), tolerance=2e-2)
    exact = pointwise.reshape(64, 96) @ depthwise.sum(axis=(1, 2, 3))
    answer = model(np.ones((1, 96, 8, 8), np.float32))[0, :, 0, 0]
    stored = 2**-8 * np.abs(exact)  # the answer's own rounding
    beyond = np.abs(answer - exact) - stored
    assert beyond.max() < 2**-9 * np.abs(exact).max()


def test_a_product_of_a_constant_input_is_nearly_exact() -> None:
    """A sum of equal inputs is a sum of weights: what rounding to nearest gets wrong by its share of 2^-9."""

    def build(b: GraphBuilder) -> ir.Value:
        ones = b.op("Mul", b.input("x", (4, 1), "float32"), np.ones((1, 512), np.float32))
        return b.op("Add", b.op("MatMul", ones, floats(512, 64)), 0.0)

    model = compiled(build, CompileOptions(precision_mode=PrecisionMode.MIX_BF16), tolerance=2e-2)
    x = np.ones((4, 1), np.float32)
    exact = x @ floats(512, 64).sum(0, keepdims=True)
    assert np.abs(model(x) - exact).max() < 2**-8 * np.abs(exact).max()
