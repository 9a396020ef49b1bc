"""Gradients of poolings of constants, which are computed as a graph is compiled."""

from __future__ import annotations

import numpy as np
import pytest

from ge.ir.values import constant_of
from ge.ops.builder import GraphBuilder

INF = np.inf
SLOPE = np.float32([[INF, 1], [2, -INF]]).reshape(1, 2, 2, 1)
X = np.float32([[5, 1, 2], [0, 3, 9], [1, 4, 8]]).reshape(1, 3, 3, 1)
MAX = np.float32([[INF, 0, 0], [0, 0, -INF], [0, 2, 0]])
MAX[1, 2] = 1 - INF


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_infinite_slopes_reach_only_the_maxima(data_format: str) -> None:
    order = (0, 1, 2, 3) if data_format == "channels_last" else (0, 3, 1, 2)
    b = GraphBuilder()
    given = (b.constant(v.transpose(order).copy()) for v in (SLOPE, X))
    found = constant_of(b.op("MaxPoolGrad", *given, kernel=[2, 2], data_format=data_format))
    assert found is not None
    np.testing.assert_array_equal(found.reshape(3, 3), MAX)


def test_infinite_slopes_of_padded_means_stay_infinite() -> None:
    b = GraphBuilder()
    window = {"strides": [2, 2], "pads_begin": [1, 1], "pads_end": [0, 0], "data_format": "channels_last"}
    slope = b.constant(np.full((1, 2, 2, 1), INF, np.float32))
    found = constant_of(b.op("AvgPoolGrad", slope, kernel=[2, 2], shape=[1, 3, 3, 1], **window))
    assert found is not None and np.isposinf(found).all()
