"""Sums of products whose rows have a factor in common: several rows at a time, sums in registers."""

from __future__ import annotations

import platform

import numpy as np
import pytest

import tbe
from tbe.schedule import schedule
from tests.tbe.running import check


def _matmul(a: tbe.Tensor, b: tbe.Tensor) -> tbe.Tensor:
    rows = tbe.reshape(a, (*a.shape, 1)) * tbe.reshape(b, (*b.shape[:-2], 1, *b.shape[-2:]))
    return tbe.reduce("sum", rows, (len(a.shape) - 1,))


def _values(*tensors: tbe.Tensor) -> dict[tbe.Tensor, np.ndarray]:
    rng = np.random.default_rng(0)
    return {t: rng.standard_normal(t.shape).astype(tbe.numpy_dtype(t.dtype)) for t in tensors}


_TARGETS = ["host", "portable", *(["avx2"] if platform.machine() == "x86_64" else [])]


@pytest.mark.parametrize("target", _TARGETS)
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [(2, 3, 16), (6, 8, 64), (7, 5, 70), (13, 33, 129), (3, 1, 8), (40, 17, 5), (5, 64, 256)],
)
def test_products_of_all_sizes(rows: int, depth: int, columns: int, target: str) -> None:
    a, b = tbe.placeholder((2, rows, depth), "float32"), tbe.placeholder((2, depth, columns), "float32")
    bias, added = tbe.placeholder((columns,), "float32"), tbe.placeholder((2, rows, columns), "float32")
    y = tbe.unary("relu", _matmul(a, b) + bias + added)
    inputs = [a, b, bias, added]
    if depth > 1:
        assert schedule(inputs, [y]).nests[0].shared is not None
    check(inputs, [y], _values(*inputs), target)


def test_factors_of_16_bits_are_summed_in_32() -> None:
    a, b = tbe.placeholder((9, 20), "bfloat16"), tbe.placeholder((20, 48), "bfloat16")
    y = tbe.cast(_matmul(tbe.cast(a, "float32"), tbe.cast(b, "float32")), "bfloat16")
    assert schedule([a, b], [y]).nests[0].shared is not None
    check([a, b], [y], _values(a, b), rtol=1e-2)


def test_rows_that_are_done_twice_share_no_memory_with_an_operand() -> None:
    """Seven rows are done four at a time: a sum in place would add to the fourth row twice."""
    a, b = tbe.placeholder((7, 8), "float32"), tbe.placeholder((8, 32), "float32")
    added = tbe.placeholder((7, 32), "float32")
    kernel = tbe.build([a, b, added], [_matmul(a, b) + added])
    assert kernel.aliases == ()
