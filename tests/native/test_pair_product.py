"""Bfloat16 products by pairs: against float64, for all layouts, edges, types and epilogues."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from native_support import BF16, constant, needs_bf16_vectors, run_single
from product_support import EPILOGUES, exact_product, product, stored

import npu_runtime as rt

pytestmark = needs_bf16_vectors

LAYOUTS = st.tuples(st.booleans(), st.booleans())
TYPES = st.sampled_from([BF16, np.dtype(np.float32)])


def _numbers(seed: int, *shape: int, dtype: Any = BF16, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


def _is_ours(implementation: str) -> bool:
    return implementation.startswith("pairs")


def _assert_close(y: np.ndarray, expected: np.ndarray) -> None:
    """Summed in float32 and rounded at most once."""
    once_rounded = 2.0**-8 * np.abs(expected) if y.dtype == BF16 else 0.0
    assert (np.abs(y.astype(np.float64) - expected) <= 3e-5 + once_rounded).all()


def _check(
    shape: tuple[int, int, int],
    transposed: tuple[bool, bool],
    has_bias: bool,
    epilogue: str,
    types: tuple[Any, Any, Any],
    margin: int,
    seed: int,
) -> None:
    """`types` are those of the result, the bias, and what is added or multiplied."""
    rows, columns, depth = shape
    a = stored(_numbers(seed, rows, depth), transposed[0], margin)
    b = stored(_numbers(seed + 1, depth, columns, scale=depth**-0.5), transposed[1], margin)
    ops = EPILOGUES[epilogue]
    bias = _numbers(seed + 2, columns, dtype=types[1]) if has_bias or "row" in ops else None
    other = _numbers(seed + 3, rows, columns, dtype=types[0] if "sum" in ops else types[2])
    y, implementation = product(a, b, bias, ops, other, "pairs", margin, types[0])
    assert _is_ours(implementation)
    _assert_close(y, exact_product(a, b, bias, ops, other))


F32 = np.dtype(np.float32)


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(1, 260), st.integers(1, 230), st.integers(1, 400)),
    LAYOUTS,
    st.booleans(),
    st.sampled_from(sorted(EPILOGUES)),
    st.tuples(TYPES, TYPES, TYPES),
    st.sampled_from([0, 3]),
    st.integers(0, 100),
)
@example((788, 768, 768), (False, True), True, "none", (BF16, BF16, BF16), 0, 0)
@example((513, 769, 1025), (True, False), False, "none", (BF16, BF16, BF16), 0, 0)
@example((513, 769, 1025), (True, True), True, "row, sum, relu", (F32, BF16, BF16), 3, 0)
@example((801, 769, 1025), (False, False), True, "add, gelu", (BF16, F32, F32), 3, 0)
@example((512, 768, 600), (False, True), True, "row, mul, relu", (BF16, BF16, BF16), 0, 0)
@example((40, 100, 2051), (False, True), True, "sum, relu", (BF16, BF16, BF16), 0, 0)  # blocks of depths
@example((45, 100, 4201), (False, False), False, "none", (F32, BF16, BF16), 3, 0)
@example((800, 50, 4501), (True, False), False, "add", (BF16, BF16, BF16), 0, 0)  # of depths and rows
@example((4130, 50, 33), (False, False), True, "none", (BF16, BF16, BF16), 0, 0)  # of rows
def test_products_are_those_of_float64(
    shape: tuple[int, int, int],
    transposed: tuple[bool, bool],
    has_bias: bool,
    epilogue: str,
    types: tuple[Any, Any, Any],
    margin: int,
    seed: int,
) -> None:
    _check(shape, transposed, has_bias, epilogue, types, margin, seed)


@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("rows", range(1, 18))
def test_rows_that_fill_no_tile(rows: int, transposed: tuple[bool, bool]) -> None:
    _check((rows, 49, 65), transposed, True, "none", (BF16, BF16, BF16), 0, rows)


@pytest.mark.parametrize("shape", [(788, 768, 768), (512, 768, 3072)])
def test_errors_are_those_of_the_library(shape: tuple[int, int, int]) -> None:
    rows, columns, depth = shape
    a, b = _numbers(1, rows, depth), _numbers(2, depth, columns)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    ours, implementation = product(a, b, algorithm="pairs", dtype=np.float32)
    library, other = product(a, b, algorithm="library", dtype=np.float32)
    assert _is_ours(implementation) and not _is_ours(other)
    errors = [float(np.sqrt(np.square(y - exact).mean())) for y in (ours, library)]
    assert errors[0] <= 1.5 * errors[1]


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(st.integers(1, 150), st.integers(1, 150), st.integers(1, 300)),
    LAYOUTS,
    st.lists(st.tuples(st.booleans(), st.sampled_from([np.nan, np.inf, -np.inf])), min_size=1, max_size=4),
    st.integers(0, 1000),
)
@example((9, 49, 65), (False, False), [(False, np.inf)], 0)
@example((17, 50, 33), (False, True), [(True, np.inf), (True, -np.inf)], 0)
def test_what_is_not_finite_lands_where_the_textbook_puts_it(
    shape: tuple[int, int, int],
    transposed: tuple[bool, bool],
    specials: list[tuple[bool, float]],
    seed: int,
) -> None:
    rows, columns, depth = shape
    rng = np.random.default_rng(seed)
    a, b = _numbers(seed, rows, depth), _numbers(seed + 1, depth, columns)
    for in_b, value in specials:
        operand = b if in_b else a
        operand[rng.integers(operand.shape[0]), rng.integers(operand.shape[1])] = value
    y, implementation = product(
        stored(a, transposed[0], 0), stored(b, transposed[1], 0), algorithm="pairs", dtype=np.float32
    )
    assert _is_ours(implementation)
    with np.errstate(invalid="ignore"):
        expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("transposed", [(False, True), (True, False)])
def test_results_do_not_depend_on_the_number_of_threads(
    transposed: tuple[bool, bool], two_threads: None
) -> None:
    a = stored(_numbers(1, 333, 2100), transposed[0], 0)
    b = stored(_numbers(2, 2100, 290), transposed[1], 0)
    results = []
    for threads in (1, 2, 2):
        rt.set_num_threads(threads)
        results.append(product(a, b, algorithm="pairs")[0].tobytes())
    assert len(set(results)) == 1


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "transposed"),
    [
        (788, 768, 768, (False, True)),
        (512, 3072, 768, (False, False)),
        (1024, 768, 3072, (False, False)),
        (768, 3072, 788, (True, False)),
    ],
)
def test_large_products_are_taken_unasked(
    rows: int, columns: int, depth: int, transposed: tuple[bool, bool], two_threads: None
) -> None:
    """By two threads; what each of many would do is a smaller product."""
    a, b = (
        stored(_numbers(1, rows, depth), transposed[0], 0),
        stored(_numbers(2, depth, columns), transposed[1], 0),
    )
    assert _is_ours(product(a, b, algorithm="auto")[1])
    assert _is_ours(product(a, b, algorithm="precise")[1])  # nothing is saved at the cost of precision


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "post_ops"),
    [(24, 2048, 2048, []), (2048, 24, 2048, []), (2048, 2048, 24, []), (1024, 768, 768, ["tanh"])],
)
def test_other_products_stay_with_onednn(rows: int, columns: int, depth: int, post_ops: list[str]) -> None:
    a, b = _numbers(1, rows, depth), _numbers(2, depth, columns)
    y, implementation = product(a, b, post_ops=post_ops, algorithm="auto", dtype=np.float32)
    assert not _is_ours(implementation)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(y, np.tanh(exact) if post_ops else exact, rtol=0, atol=1e-2)


def test_constants_that_are_packed_once_stay_with_onednn(two_threads: None) -> None:
    a, b = _numbers(1, 512, 768), _numbers(2, 768, 768)
    y = np.empty((512, 768), BF16)
    assert not _is_ours(run_single("matmul", [a, constant(b)], [y]))
