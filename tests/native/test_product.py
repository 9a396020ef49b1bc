"""Large float32 products by Strassen's algorithm: against float64, for all layouts, edges and epilogues."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import npu_runtime as rt
from tests.native.native_support import needs_wide_vectors

EPILOGUES = {
    "none": [],
    "relu": ["relu"],
    "clip": ["clip,-1.5,2.5"],
    "gelu_erf": ["gelu_erf"],
    "gelu_tanh": ["gelu_tanh"],
    "add": ["add"],
    "row": ["row"],
    "row, add": ["row", "add"],
    "row, sum, relu": ["row", "sum", "relu"],
    "add, gelu": ["add", "gelu_erf"],
    "sum": ["sum"],
    "sum, relu": ["sum", "relu"],
    "mul": ["mul"],
    "row, mul, relu": ["row", "mul", "relu"],
}


def _erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf)(x)


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "clip": lambda x: np.clip(x, -1.5, 2.5),
    "gelu_erf": lambda x: 0.5 * x * (1 + _erf(x / np.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "add": lambda x: x,
    "row": lambda x: x,
    "sum": lambda x: x,
    "mul": lambda x: x,
}


def _view(buffer: int, array: np.ndarray) -> tuple:
    return (buffer, "float32", array.shape, tuple(s // 4 for s in array.strides), 0)


def _stored(values: np.ndarray, transposed: bool, margin: int) -> np.ndarray:
    """The same matrix, by rows or by columns, with space between its lines."""
    shape = values.shape[::-1] if transposed else values.shape
    whole = np.full((shape[0], shape[1] + margin), np.nan, np.float32)
    whole[:, : shape[1]] = values.T if transposed else values
    part = whole[:, : shape[1]]
    return part.T if transposed else part


def product(
    a: np.ndarray,
    b: np.ndarray,
    bias: np.ndarray | None = None,
    post_ops: list[str] | None = None,
    other: np.ndarray | None = None,
    implementation: str = "strassen",
    margin: int = 0,
) -> tuple[np.ndarray, str]:
    """The product and the implementation that made it.

    "row" stands for the addition of the bias as a post-operation; `other` is added, multiplied, or what the
    result is added to.
    """
    ops = post_ops or []
    has_bias = bias is not None and "row" not in ops
    whole = np.full((a.shape[0], b.shape[1] + margin), 7.0, np.float32)
    y = whole[:, : b.shape[1]]
    program = rt.Program("product")
    feeds = [a, b]
    if bias is not None:
        feeds.append(bias if has_bias else bias[None])
    if {"add", "mul"} & set(ops):
        residual = _stored(other, False, margin)
        feeds.append(residual)
    if "sum" in ops:
        y[...] = other
    memories = [f if f.base is None or f.flags.c_contiguous else f.base for f in feeds]
    memories = [m if m.flags.c_contiguous else m.T for m in memories]
    inputs = [
        _view(program.input(i, m.nbytes), f) for i, (f, m) in enumerate(zip(feeds, memories, strict=True))
    ]
    out = _view(program.output(0, whole.nbytes), y)
    names = ["add" if op == "row" else op for op in ops]
    attrs = {"has_bias": has_bias, "post_ops": names, "implementation": implementation}
    program.task("matmul", "product", inputs, [out], attrs)
    program.finalize(0)
    program.run(memories, [whole])
    assert (whole[:, b.shape[1] :] == 7.0).all(), "written outside of the result"
    return y, program.task_info()[0]["impl"]


def _numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _is_ours(implementation: str) -> bool:
    return implementation.startswith("strassen")


needs_strassen = needs_wide_vectors


@needs_strassen
@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(512, 900),
    columns=st.integers(512, 1100),
    depth=st.integers(512, 1200),
    transposed=st.tuples(st.booleans(), st.booleans()),
    has_bias=st.booleans(),
    epilogue=st.sampled_from(sorted(EPILOGUES)),
    margin=st.sampled_from([0, 3]),
    seed=st.integers(0, 100),
)
@example(768, 768, 1024, (False, False), False, "none", 0, 0)
@example(1803, 515, 1100, (True, False), False, "none", 0, 0)  # several blocks of rows and depths
@example(1803, 515, 1100, (False, True), True, "sum, relu", 0, 0)
@example(512, 1824, 1024, (False, False), False, "none", 0, 0)  # the smaller part has the larger blocks
@example(1024, 768, 513, (True, True), True, "gelu_erf", 0, 0)
@example(801, 769, 1025, (True, False), True, "sum, relu", 3, 0)
@example(1537, 1153, 1027, (False, True), True, "add, gelu", 0, 0)
@example(512, 768, 600, (False, False), True, "row, add", 0, 0)
@example(512, 768, 600, (False, False), True, "row, sum, relu", 3, 0)
@example(513, 769, 600, (False, False), True, "row, mul, relu", 3, 0)
def test_products_are_those_of_float64(
    rows: int,
    columns: int,
    depth: int,
    transposed: tuple[bool, bool],
    has_bias: bool,
    epilogue: str,
    margin: int,
    seed: int,
) -> None:
    a = _stored(_numbers(seed, rows, depth), transposed[0], margin)
    b = _stored(_numbers(seed + 1, depth, columns) / np.float32(np.sqrt(depth)), transposed[1], margin)
    ops = EPILOGUES[epilogue]
    bias = _numbers(seed + 2, columns) if has_bias or "row" in ops else None
    other = _numbers(seed + 3, rows, columns)
    y, implementation = product(a, b, bias, ops, other, margin=margin)
    assert _is_ours(implementation)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    expected += 0 if bias is None else bias
    expected += other if {"add", "sum"} & set(ops) else 0
    expected *= other if "mul" in ops else 1
    for op in ops:
        expected = ACTIVATIONS[op.partition(",")[0]](expected)
    np.testing.assert_allclose(y, expected, rtol=0, atol=3e-5)


@needs_strassen
@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e15])
def test_errors_are_small_beside_the_norms_of_the_operands(scale: float) -> None:
    """The bound of the algorithm, and a few times what plain sums give."""
    a, b = _numbers(1, 1024, 768) * np.float32(scale), _numbers(2, 768, 1024)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    fast, implementation = product(a, b)
    plain, other = product(a, b, implementation="onednn")
    assert _is_ours(implementation) and not _is_ours(other)
    errors = [float(np.abs(y - exact).max() / np.abs(exact).max()) for y in (fast, plain)]
    assert errors[0] < 4e-6 and errors[0] < 8 * errors[1]


SHAPES = st.tuples(st.integers(512, 800), st.integers(512, 900), st.integers(512, 1100))
LAYOUTS = st.tuples(st.booleans(), st.booleans())


def _largest(x: np.ndarray, axis: int) -> np.ndarray:
    return np.abs(x).max(axis=axis, keepdims=True).astype(np.float64).clip(np.finfo(np.float32).tiny)


def _assert_right_by_element(y: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """Errors beside the sizes of an element's own row and column, whatever the others hold."""
    exact = a.astype(np.float64) @ b.astype(np.float64)
    bound = _largest(a, 1) * _largest(b, 0) * math.sqrt(a.shape[1])
    assert (np.abs(y - exact) <= 4e-6 * bound + 8 * np.finfo(np.float32).smallest_subnormal).all()


@needs_strassen
@settings(max_examples=25, deadline=None)
@given(SHAPES, LAYOUTS, st.sampled_from([0.5, 4, 8]), st.sampled_from([0.0, 0.1]), st.integers(0, 1000))
@example((1024, 768, 768), (False, False), 8, 0.1, 0)
@example((513, 769, 1025), (True, True), 8, 0.1, 1)
def test_no_row_or_column_suffers_from_the_size_of_others(
    shape: tuple[int, int, int], transposed: tuple[bool, bool], power: float, empty: float, seed: int
) -> None:
    rows, columns, depth = shape
    rng = np.random.default_rng(seed)
    sizes = [np.float32(10) ** rng.uniform(-power, power, n).astype(np.float32) for n in (rows, columns)]
    for size in sizes:
        size[rng.random(len(size)) < empty] = 0
    a = _stored(_numbers(seed, rows, depth) * sizes[0][:, None], transposed[0], 0)
    b = _stored(_numbers(seed + 1, depth, columns) * sizes[1], transposed[1], 0)
    y, implementation = product(a, b)
    assert _is_ours(implementation)
    _assert_right_by_element(y, a, b)
    assert not y[sizes[0] == 0].any() and not y[:, sizes[1] == 0].any()


@needs_strassen
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("large", "small", "columns"),
    [(1.0, 1e-40, 1.0), (1e37, 1e-44, 1e-3), (3e38, 1e-38, 1e-30), (3e38, 1.0, 1e-45), (1e-30, 1e-38, 1e30)],
)
def test_sizes_at_the_ends_of_the_range(large: float, small: float, columns: float, transposed: bool) -> None:
    """The largest and the least numbers, denormal ones too, where every result is finite."""
    rng = np.random.default_rng(0)
    a = rng.uniform(-1, 1, (640, 600)) * np.where(rng.random((640, 1)) < 0.5, large, small)
    b = rng.uniform(-1, 1, (600, 640)) * columns
    a, b = (_stored(x.astype(np.float32), transposed, 0) for x in (a, b))
    y, implementation = product(a, b)
    assert _is_ours(implementation)
    _assert_right_by_element(y, a, b)


@needs_strassen
def test_results_that_overflow_leave_the_others_alone() -> None:
    a, b = _numbers(1, 640, 600), _numbers(2, 600, 640)
    a[3], b[:, 5] = 1e30, 1e30
    y = product(a, b)[0]
    assert y[3, 5] == np.inf and np.isinf(y).sum() == 1
    others = np.ix_(np.arange(640) != 3, np.arange(640) != 5)
    np.testing.assert_allclose(y[others], (a.astype(np.float64) @ b.astype(np.float64))[others], atol=1e-2)


@needs_strassen
@settings(max_examples=25, deadline=None)
@given(
    SHAPES,
    LAYOUTS,
    st.lists(st.tuples(st.booleans(), st.sampled_from([np.nan, np.inf, -np.inf])), min_size=1, max_size=6),
    st.sampled_from(["none", "sum", "add"]),
    st.integers(0, 1000),
)
@example((513, 769, 1025), (False, False), [(False, np.nan)], "none", 0)
@example((513, 769, 1025), (True, True), [(True, np.inf), (True, -np.inf)], "sum", 0)
@example((1803, 515, 1100), (True, False), [(False, np.nan), (False, np.inf)], "add", 0)
@example((1803, 515, 1100), (False, True), [(True, np.nan)], "none", 3)
def test_what_is_not_finite_lands_where_the_textbook_puts_it(
    shape: tuple[int, int, int],
    transposed: tuple[bool, bool],
    specials: list[tuple[bool, float]],
    epilogue: str,
    seed: int,
) -> None:
    rows, columns, depth = shape
    rng = np.random.default_rng(seed)
    a, b, other = (
        _numbers(seed, rows, depth),
        _numbers(seed + 1, depth, columns),
        _numbers(seed, rows, columns),
    )
    a[rng.random(rows) < 0.1] = 0  # that times an infinity is NaN
    for in_b, value in specials:
        operand = b if in_b else a
        operand[rng.integers(operand.shape[0]), rng.integers(operand.shape[1])] = value
    ops = EPILOGUES[epilogue]
    y, implementation = product(
        _stored(a, transposed[0], 0), _stored(b, transposed[1], 0), post_ops=ops, other=other
    )
    assert _is_ours(implementation)
    with np.errstate(invalid="ignore"):
        expected = a @ b + (other if ops else 0)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-3)


@needs_strassen
def test_other_post_operations_are_refused() -> None:
    with pytest.raises(rt.UnsupportedTask, match="post-operations"):
        product(_numbers(1, 64, 64), _numbers(2, 64, 64), post_ops=["tanh"])


def test_an_unknown_implementation_is_refused() -> None:
    with pytest.raises(rt.UnsupportedTask, match="there are strassen, narrow, onednn"):
        product(_numbers(1, 64, 64), _numbers(2, 64, 64), implementation="fastest")


@needs_strassen
@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 120), st.integers(1, 220), st.integers(1, 70), LAYOUTS, st.booleans(), st.integers(0, 100)
)
def test_products_smaller_than_a_few_tiles(
    rows: int, columns: int, depth: int, transposed: tuple[bool, bool], has_nan: bool, seed: int
) -> None:
    a, b = _numbers(seed, rows, depth), _numbers(seed + 1, depth, columns)
    a[seed % rows, seed % depth] = np.nan if has_nan else 1
    y, implementation = product(_stored(a, transposed[0], 0), _stored(b, transposed[1], 0))
    assert _is_ours(implementation)
    np.testing.assert_allclose(y, a.astype(np.float64) @ b.astype(np.float64), rtol=0, atol=1e-4)


@needs_strassen
@pytest.mark.parametrize("transposed", [(False, False), (True, True)])
@pytest.mark.parametrize("in_b", [False, True])
@pytest.mark.parametrize("place", [0.0, 0.3, 0.6, 1.0])
def test_what_comes_after_a_number_that_is_not_finite(
    transposed: tuple[bool, bool], in_b: bool, place: float
) -> None:
    """Sums that are packed before it is met are packed anew; its own row or column is all that it reaches."""
    a, b = _numbers(1, 640, 600), _numbers(2, 600, 672)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    if in_b:
        column = round(place * 671)
        b[round(place * 599), column] = np.inf
        others = expected[:, np.arange(672) != column]
        y = product(_stored(a, transposed[0], 0), _stored(b, transposed[1], 0))[0]
        assert not np.isfinite(y[:, column]).any()
        found = y[:, np.arange(672) != column]
    else:
        row = round(place * 639)
        a[row, round(place * 599)] = np.nan
        others = expected[np.arange(640) != row]
        y = product(_stored(a, transposed[0], 0), _stored(b, transposed[1], 0))[0]
        assert np.isnan(y[row]).all()
        found = y[np.arange(640) != row]
    np.testing.assert_allclose(found, others, rtol=0, atol=1e-3)
