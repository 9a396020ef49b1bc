"""Large outputs written past the caches, and reductions whose accumulators lie on the stack."""

from __future__ import annotations

import numpy as np
import pytest

import tbe
from tbe.dsl.running import Runner, aligned_empty
from tests.tbe.running import check


def test_large_outputs_are_streamed_where_they_are_aligned() -> None:
    x = tbe.placeholder((4097, 2048), "float32")
    outputs = [tbe.unary("neg", x)]
    assert tbe.schedule([x], outputs).streams
    runner = Runner([x], outputs)
    assert "!nontemporal" in runner.kernels[0].ir
    values = np.arange(x.size, dtype=np.float32).reshape(x.shape)
    aligned = aligned_empty(x.shape, values.dtype)
    shifted = aligned_empty((x.size + 1,), values.dtype)[1:].reshape(x.shape)
    for result in (aligned, shifted):
        result.fill(0)
        runner.into([values], [result])
        np.testing.assert_array_equal(result, -values)


def test_small_outputs_and_reductions_are_not_streamed() -> None:
    x = tbe.placeholder((64, 64), "float32")
    assert not tbe.schedule([x], [tbe.unary("neg", x)]).streams
    y = tbe.placeholder((8192, 4096), "float32")
    assert not tbe.schedule([y], [tbe.reduce("sum", y, 1)]).streams


def test_rows_that_are_no_whole_vectors_are_not_streamed() -> None:
    x, b = tbe.placeholder((9000, 1001), "float32"), tbe.placeholder((1001,), "float32")
    runner = Runner([x, b], [x + b])
    rng = np.random.default_rng(0)
    values, bias = rng.normal(size=x.shape).astype(np.float32), rng.normal(size=b.shape).astype(np.float32)
    np.testing.assert_array_equal(runner(values, bias)[0], values + bias)


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int32", "uint8"])
@pytest.mark.parametrize("shape", [(17, 1024), (3, 20, 1280), (16, 16640)])
def test_long_rows_are_reduced_in_order(op: str, dtype: str, shape: tuple[int, ...]) -> None:
    x = tbe.placeholder(shape, dtype)
    axes = range(len(shape) - 1)
    outputs = [tbe.reduce(op, x, axes)]
    assert tbe.schedule([x], outputs).nests[0].in_order
    rng = np.random.default_rng(1)
    values = rng.uniform(0.9, 1.1, shape) if tbe.dtype_of(dtype).is_float else rng.integers(0, 5, shape)
    for target in ("host", "portable", "avx2"):
        if tbe.runs_here(target):
            check([x], outputs, {x: values.astype(tbe.numpy_dtype(dtype))}, target, rtol=2e-5)


def test_short_rows_are_reduced_in_order_where_there_are_many_to_share_out() -> None:
    many, few = tbe.placeholder((8, 20, 256), "float32"), tbe.placeholder((7, 20, 256), "float32")
    assert tbe.schedule([many], [tbe.reduce("sum", many, 1)]).nests[0].in_order
    assert not tbe.schedule([few], [tbe.reduce("sum", few, 1)]).nests[0].in_order


def test_costly_work_for_each_channel_is_not_done_again_for_each_row() -> None:
    x, variance = tbe.placeholder((8, 20, 1024), "float32"), tbe.placeholder((1024,), "float32")
    scaled = x * tbe.unary("rsqrt", variance + 1e-3)
    assert not tbe.schedule([x, variance], [scaled, tbe.reduce("sum", scaled, 1)]).nests[0].in_order
    shifted = x - variance
    assert tbe.schedule([x, variance], [shifted, tbe.reduce("sum", shifted, 1)]).nests[0].in_order


def test_two_sums_and_what_follows_them_in_order() -> None:
    x = tbe.placeholder((64, 2048), "float32")
    mean = tbe.reduce("sum", x, 0) * (1 / 64)
    square = tbe.reduce("sum", x * x, 0) * (1 / 64)
    outputs = [mean, square - mean * mean]
    assert tbe.schedule([x], outputs).nests[0].in_order
    values = np.random.default_rng(2).normal(size=x.shape).astype(np.float32)
    check([x], outputs, {x: values}, rtol=1e-4)


@pytest.mark.parametrize("shape", [(3, 7, 7, 1024), (2, 4, 6, 4352), (8, 5, 7, 256), (9, 4, 4, 512)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_summed_is_written_beside_the_sums(shape: tuple[int, ...], dtype: str) -> None:
    """The backward pass of a normalisation: a masked gradient, its sum, and those of two products of it."""
    dy, y, x = (tbe.placeholder(shape, dtype) for _ in range(3))
    zero = tbe.broadcast_to(tbe.constant(0.0, dtype), shape)
    masked = tbe.select(tbe.binary("gt", y, zero), dy, zero)
    wide = [tbe.cast(t, "float32") for t in (masked, x, y)]
    sums = [tbe.reduce("sum", t, (1, 2), True) for t in (wide[0], wide[0] * wide[1], wide[0] * wide[2])]
    outputs = [masked, *sums]
    assert tbe.schedule([dy, y, x], outputs).nests[0].in_order
    rng = np.random.default_rng(5)
    values = {t: rng.normal(size=shape).astype(tbe.numpy_dtype(dtype)) for t in (dy, y, x)}
    for target in ("host", "portable", "avx2"):
        if tbe.runs_here(target):
            check([dy, y, x], outputs, values, target, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("shape, axes", [((1 << 18,), (0,)), ((513, 515), (0, 1)), ((300000, 3), (0,))])
def test_large_reductions_to_few_results_take_two_steps(op: str, shape, axes) -> None:
    x = tbe.placeholder(shape, "float32")
    result = tbe.reduce(op, x, axes)
    parts = tbe.split_into_kernels([x], [result], cores=2)
    assert len(parts.steps) >= 2 and parts.steps[0].plan.total >= 4
    values = np.random.default_rng(3).uniform(0.9999, 1.0001, shape).astype(np.float32)
    (got,) = Runner([x], [result])(values)
    (expected,) = tbe.evaluate([result], {x: values})
    np.testing.assert_allclose(
        got, expected, rtol=4e-3 if op == "prod" else 2e-5
    )  # factors near 1 round one way


def test_half_precision_parts_are_kept_in_single() -> None:
    x = tbe.placeholder((1 << 18,), "float16")
    values = np.random.default_rng(4).uniform(0, 0.1, x.shape).astype(np.float16)
    (got,) = Runner([x], [tbe.reduce("sum", x, 0)])(values)
    assert got == np.float16(values.astype(np.float64).sum())


@pytest.mark.parametrize("channels", [2, 3, 4, 7, 15])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16", "float64"])
def test_a_short_last_dimension_becomes_long_rows(channels: int, dtype: str) -> None:
    x = tbe.placeholder((4, 16, 5, channels), dtype)
    mean, scale = (tbe.placeholder(shape, "float32") for shape in ((channels,), (1, 1, channels)))
    one = tbe.placeholder((1,), "float32")
    shifted = (tbe.cast(x, "float32") - mean) * scale + one
    outputs = [shifted, tbe.select(shifted > 0.5, shifted, tbe.broadcast_to(mean, x.shape))]
    assert tbe.schedule([x, mean, scale, one], outputs).nests[0].lane.extent == 16 * channels
    rng = np.random.default_rng(channels)
    values = {x: rng.integers(0, 9, x.shape).astype(dtype)}
    values |= {t: rng.normal(size=t.shape).astype(np.float32) for t in (mean, scale, one)}
    for target in ("host", "portable", "avx2"):
        if tbe.runs_here(target):
            check([x, mean, scale, one], outputs, values, target)


def test_what_has_no_value_by_channel_stays_as_it_is() -> None:
    x, y = tbe.placeholder((64, 3), "float32"), tbe.placeholder((64, 1), "float32")
    assert tbe.schedule([x, y], [x + y]).nests[0].lane.extent != 48
    odd = tbe.placeholder((65, 3), "float32")
    c = tbe.placeholder((3,), "float32")
    check([odd, c], [odd + c], {odd: np.ones((65, 3), np.float32), c: np.arange(3, dtype=np.float32)})


@pytest.mark.parametrize("shape", [(1027, 1101), (2048, 512), (2, 700, 900)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "uint8"])
def test_large_transposes(shape: tuple[int, ...], dtype: str) -> None:
    x = tbe.placeholder(shape, dtype)
    perm = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    values = np.random.default_rng(0).integers(0, 200, shape).astype(dtype)
    (got,) = Runner([x], [tbe.transpose(x, perm)])(values)
    np.testing.assert_array_equal(got, values.transpose(perm))


def test_large_reductions_of_the_same_data_share_their_first_step() -> None:
    x = tbe.placeholder((600, 1024), "float32")
    outputs = [tbe.reduce("sum", x, 0), tbe.reduce("sum", x * x, 0), tbe.reduce("max", x, (0, 1))]
    parts = tbe.split_into_kernels([x], outputs, cores=2)
    assert len(parts.steps[0].outputs) == 2
    values = np.random.default_rng(5).uniform(0, 1, x.shape).astype(np.float32)
    for got, expected in zip(Runner([x], outputs)(values), tbe.evaluate(outputs, {x: values}), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)
