"""An operator whose expression is more than one kernel runs as several."""

from __future__ import annotations

import numpy as np
import pytest

import tbe
from ge.ops.base import Input, Operator, Output, Pattern, register, unregister
from tests.support.small_graphs import compiled


class BothWays(Operator):
    """x less its maxima along columns, added up along rows and columns: two outputs of different sizes."""

    x = Input("T")
    rows = Output("T")
    columns = Output("T")
    pattern = Pattern.OPAQUE

    @staticmethod
    def compute(op, x):
        less = x - tbe.reduce("max", x, 0, keepdims=True)
        return tbe.reduce("sum", less, 1), tbe.reduce("sum", less, 0)


@pytest.fixture
def both_ways():
    register(BothWays)
    yield
    unregister(BothWays)


def test_an_operator_of_several_kernels(both_ways) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(70, 90)).astype(np.float32)
    got = compiled(lambda b: b.op("BothWays", b.input("x", (70, 90), "float32"))).run([x])
    less = x.astype(np.float64) - x.max(0, keepdims=True)
    np.testing.assert_allclose(got[0], less.sum(1), rtol=1e-5)
    np.testing.assert_allclose(got[1], less.sum(0), rtol=1e-5)
