"""Reductions over leading axes whose lanes are cut into chunks with a remainder."""

from __future__ import annotations

import numpy as np
import pytest

import tbe
from tests.tbe.running import run


@pytest.mark.parametrize("shape", [(2, 2, 2, 80), (2, 4, 4, 96), (3, 5, 5, 531)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_remainder_after_whole_chunks_is_summed(shape: tuple[int, ...], dtype: str) -> None:
    x = tbe.placeholder(shape, dtype, name="x")
    outputs = [tbe.reduce("max", x, (1, 2), keepdims=True)]
    data = np.random.default_rng(0).standard_normal(shape).astype(tbe.numpy_dtype(dtype))
    got = run([x], outputs, {x: data})
    np.testing.assert_array_equal(got[0], tbe.evaluate(outputs, {x: data})[0])
