"""Folding of large constants: what becomes no larger is folded, what would grow is left to run time."""

from __future__ import annotations

import numpy as np
import pytest

from ge.ir.values import constant_of
from ge.ops import builder as building
from ge.ops.builder import GraphBuilder


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "FOLD_LIMIT_BYTES", 64)


def test_a_large_weight_is_turned_at_compile_time() -> None:
    b = GraphBuilder("head")
    weight = np.arange(600, dtype=np.float32).reshape(20, 30)
    found = constant_of(b.op("Transpose", b.constant(weight), perm=(1, 0)))
    assert found is not None
    np.testing.assert_array_equal(found, weight.T)


def test_what_would_grow_beyond_the_limit_is_not_folded() -> None:
    b = GraphBuilder("table")
    assert constant_of(b.op("BroadcastTo", b.constant(np.zeros((1, 4), np.float32)), shape=(100, 4))) is None
