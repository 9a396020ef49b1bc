"""Reductions and scans: every operation, axis, direction and dtype."""

from __future__ import annotations

import numpy as np
import pytest

import tbe
from tbe.dsl.running import Runner
from tests.tbe.running import check

TARGETS = ("host", "portable")
NUMBERS = ("float32", "float64", "float16", "bfloat16", "int8", "int32", "int64", "uint8", "uint32")


def data_for(x: tbe.Tensor) -> np.ndarray:
    rng = np.random.default_rng(2)
    if tbe.dtype_of(x.dtype).is_float:
        return rng.standard_normal(x.shape).astype(tbe.numpy_dtype(x.dtype))
    low = -4 if tbe.dtype_of(x.dtype).kind == "int" else 0
    return rng.integers(low, 5, x.shape).astype(tbe.numpy_dtype(x.dtype))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", NUMBERS)
def test_every_dtype(dtype, target) -> None:
    x = tbe.placeholder((5, 67), dtype)
    for axis in (0, 1):
        for op in ("sum", "max", "argmax"):
            check([x], [tbe.reduce(op, x, axis)], {x: data_for(x)}, target, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)])
def test_every_axis(axes) -> None:
    x = tbe.placeholder((5, 21, 37), "float32")
    for op in ("sum", "min", "prod"):
        check([x], [tbe.reduce(op, x * 0.5, axes, True) + 1.0], {x: data_for(x)}, rtol=1e-4, atol=1e-5)
    arg = [tbe.reduce("argmin", x, axes, last=True), tbe.reduce("argmax", x, axes)]
    check([x], arg, {x: data_for(x)})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_quotients_of_tails(dtype: str, target: str) -> None:
    """0 / 0 in the lanes behind the last element does not count, however many of a vector's lanes the tail has."""
    for n in (1, 2, 3, 5, 9, 15, 17, 18, 31, 33):
        x, y, z = (tbe.placeholder((k,), dtype) for k in (n, n, 2))
        outputs = [tbe.reduce(op, x / y, 0) for op in ("sum", "prod", "max", "min")]
        values = {t: np.arange(1, t.shape[0] + 1).astype(dtype) for t in (x, y, z)}
        for output in outputs:
            check([x, y], [output], values, target)
        check([x, y, z], [outputs[0] + tbe.reduce("sum", z, 0)], values, target)  # vectors of two lanes


def test_first_and_last_of_equal_elements() -> None:
    x = tbe.placeholder((3, 50), "int32")
    data = np.zeros((3, 50), np.int32)
    data[:, [7, 23, 41]] = 5
    outputs = [tbe.reduce("argmax", x, 1), tbe.reduce("argmax", x, 1, last=True)]
    check([x], outputs, {x: data})
    assert tbe.evaluate(outputs, {x: data})[1].tolist() == [41] * 3


def test_nan_wins_maximum_and_argmax() -> None:
    x = tbe.placeholder((4, 40), "float32")
    data = data_for(x)
    data[1, 39], data[2, 0], data[2, 17] = np.nan, np.nan, np.nan
    data[3] = -np.inf
    for axis in (0, 1):
        check([x], [tbe.reduce(op, x, axis) for op in ("max", "min", "argmax", "argmin")], {x: data})


def test_any_and_all() -> None:
    x = tbe.placeholder((6, 40), "bool")
    data = np.random.default_rng(0).random((6, 40)) < 0.04
    for target in TARGETS:
        for axis in (0, 1, (0, 1)):
            outputs = [tbe.reduce("any", x, axis), tbe.reduce("all", tbe.unary("not", x), axis)]
            check([x], outputs, {x: data}, target)


def test_empty_and_single_axes() -> None:
    x = tbe.placeholder((4, 0), "float32")
    check([x], [tbe.reduce("sum", x, 1), tbe.reduce("max", x, 1)], {x: np.zeros((4, 0), np.float32)})
    y = tbe.placeholder((4, 1, 3), "float32")
    check([y], [tbe.reduce("sum", y, 1), tbe.cast(tbe.reduce("argmax", y, 1), "float32")], {y: data_for(y)})


def test_small_integer_sums_wrap() -> None:
    x = tbe.placeholder((3, 300), "int8")
    data = np.full((3, 300), 100, np.int8)
    check([x], [tbe.reduce("sum", x, 1)], {x: data})


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_scans(op, exclusive, reverse) -> None:
    x = tbe.placeholder((5, 21, 37), "float32")
    body = x * 0.1 + 1.0 if op == "prod" else x * 0.3
    for axis in range(3):
        t = tbe.scan(op, body, axis, exclusive, reverse) * 2.0
        check([x], [t], {x: data_for(x)}, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bfloat16", "float64"])
def test_scans_of_other_types(dtype) -> None:
    x = tbe.placeholder((3, 50), dtype)
    for target in TARGETS:
        for axis in (0, 1):
            check([x], [tbe.scan("sum", x, axis)], {x: data_for(x)}, target, atol=0.05)


def test_products_are_scanned_in_order() -> None:
    """Products of later elements overflow by themselves."""
    data = np.full((3, 40), 1e30, np.float32)
    data[:, 0] = data[0] = 0
    x = tbe.placeholder(data.shape, "float32")
    for target in TARGETS:
        for axis in (0, 1):
            check(
                [x], [tbe.scan("prod", x, axis), tbe.scan("prod", x, axis, exclusive=True)], {x: data}, target
            )


def test_scan_fused_on_both_sides() -> None:
    x, y = tbe.placeholder((40, 9), "float32"), tbe.placeholder((40, 9), "float32")
    t = tbe.unary("exp", tbe.scan("sum", x * 0.1, 0) + y)
    check([x, y], [t, tbe.scan("max", x, 0)], {x: data_for(x), y: data_for(y)})


def test_what_cannot_be_one_kernel_says_why() -> None:
    x = tbe.placeholder((8, 9), "float32")
    rows, columns = tbe.reduce("sum", x, 1, True), tbe.reduce("sum", x, 0, True)
    cases = [
        ([x + rows + columns], "several rows"),
        ([tbe.reduce("sum", x - tbe.reduce("max", x, 0, True), 1)], "different axes|several rows"),
        ([x + 1.0, tbe.reshape(tbe.slice(x, (0, 0), (1, 1), (2, 9)), (18,))], "different sizes"),
        ([tbe.scan("sum", x, 0) + rows], "together"),
        ([tbe.scan("sum", x, 0) + tbe.scan("sum", x, 1)], "different axes"),
    ]
    for outputs, reason in cases:
        with pytest.raises(tbe.Unfusable, match=reason):
            tbe.schedule([x], outputs)


@pytest.mark.parametrize("rows", [16, 17, 18, 21])
@pytest.mark.parametrize("split", [False, True])
def test_long_rows_are_added_in_their_order(rows: int, split: bool) -> None:
    shape = (rows, 2, 1280) if split else (rows, 1280)
    values = np.random.default_rng(rows).normal(size=shape).astype(np.float32)
    x = tbe.placeholder(shape, "float32")
    axes = (0, 1) if split else (0,)
    outputs = [tbe.reduce("sum", x, axes), tbe.reduce("max", x, axes)]
    assert tbe.schedule([x], outputs[:1]).nests[0].in_order
    total = np.zeros(1280, np.float32)
    for row in values.reshape(-1, 1280):
        total += row
    for result, expected in zip(outputs, (total, values.max(axes)), strict=True):
        np.testing.assert_array_equal(Runner([x], [result])(values)[0], expected)
