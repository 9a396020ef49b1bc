"""Large float32 products by Strassen's algorithm: against float64, for all layouts, edges and epilogues."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import npu_runtime as rt

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
    algorithm: str = "auto",
    margin: int = 0,
) -> tuple[np.ndarray, str]:
    """The product and the implementation that made it.

    "row" stands for the addition of the bias as a post-operation; `other` is added, or what the result is added to.
    """
    ops = post_ops or []
    has_bias = bias is not None and "row" not in ops
    whole = np.full((a.shape[0], b.shape[1] + margin), 7.0, np.float32)
    y = whole[:, : b.shape[1]]
    program = rt.Program("product")
    feeds = [a, b]
    if bias is not None:
        feeds.append(bias if has_bias else bias[None])
    if "add" in ops:
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
    attrs = {"has_bias": has_bias, "post_ops": names, "algorithm": algorithm}
    program.task("matmul", "product", inputs, [out], attrs)
    program.finalize(0)
    program.run(memories, [whole])
    assert (whole[:, b.shape[1] :] == 7.0).all(), "written outside of the result"
    return y, program.task_info()[0]["impl"]


def _numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _is_ours(implementation: str) -> bool:
    return implementation.startswith("strassen")


def _has_strassen() -> bool:
    a, b, y = (_view(-1, np.empty(shape, np.float32)) for shape in ((4096, 1024), (1024, 4096), (4096, 4096)))
    return _is_ours(rt.query("matmul", [a, b], [y], {}) or "")


needs_strassen = pytest.mark.skipif(not _has_strassen(), reason="this processor has none of its own")


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
@example(512, 1824, 1024, (False, False), False, "none", 0, 0)  # the smaller part has the larger blocks
@example(1024, 768, 513, (True, True), True, "gelu_erf", 0, 0)
@example(801, 769, 1025, (True, False), True, "sum, relu", 3, 0)
@example(1537, 1153, 1027, (False, True), True, "add, gelu", 0, 0)
@example(512, 768, 600, (False, False), True, "row, add", 0, 0)
@example(512, 768, 600, (False, False), True, "row, sum, relu", 3, 0)
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
    plain, other = product(a, b, algorithm="precise")
    assert _is_ours(implementation) and not _is_ours(other)
    errors = [float(np.abs(y - exact).max() / np.abs(exact).max()) for y in (fast, plain)]
    assert errors[0] < 4e-6 and errors[0] < 8 * errors[1]


@needs_strassen
def test_badly_scaled_rows_are_right_by_norm_only() -> None:
    """A row beside one that is a billion times larger has errors of that one's size; precise products do not."""
    a, b = _numbers(1, 1024, 768), _numbers(2, 768, 1024)
    a[::2] *= np.float32(1e-9)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    fast, plain = product(a, b)[0], product(a, b, algorithm="precise")[0]
    assert np.abs(fast - exact).max() < 4e-6 * np.abs(exact).max()
    small = np.abs(exact[::2]).max()
    assert np.abs(plain[::2] - exact[::2]).max() < 4e-6 * small


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "post_ops"),
    [(64, 2048, 2048, []), (2048, 64, 2048, []), (2048, 2048, 64, []), (1024, 1024, 1024, ["tanh"])],
)
def test_other_products_stay_with_onednn(rows: int, columns: int, depth: int, post_ops: list[str]) -> None:
    a, b = _numbers(1, rows, depth), _numbers(2, depth, columns)
    y, implementation = product(a, b, post_ops=post_ops)
    assert not _is_ours(implementation)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(y, np.tanh(exact) if post_ops else exact, rtol=0, atol=1e-3)
