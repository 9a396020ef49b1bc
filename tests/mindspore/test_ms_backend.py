"""The back end: what it compiles, what it leaves to MindSpore, and how a user can tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore", reason="MindSpore has an environment of its own: make test-mindspore")

from mindspore import Parameter, Tensor, nn, ops  # noqa: E402

import mindspore_npu  # noqa: E402
from mindspore_npu.backend import FallbackWarning  # noqa: E402


@pytest.fixture(autouse=True)
def counted() -> None:
    mindspore_npu.reset_counts()


def ones(*shape: int) -> Any:
    return Tensor(np.ones(shape, np.float32))


def test_parameters_are_updated_in_place() -> None:
    class Counter(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.total = Parameter(ones(3), name="total")

        def construct(self, x: Any) -> Any:
            ops.assign_add(self.total, x)
            return self.total * 2

    net = Counter()
    step = ms.jit(net.construct, backend="npu")
    np.testing.assert_array_equal(step(ones(3)).asnumpy(), np.full(3, 4.0))
    np.testing.assert_array_equal(step(ones(3)).asnumpy(), np.full(3, 6.0))
    np.testing.assert_array_equal(net.total.asnumpy(), np.full(3, 3.0))
    assert mindspore_npu.counts() == mindspore_npu.Counts(compiled=1, runs=2)


def test_branches_and_loops_run_on_the_engine() -> None:
    @ms.jit(backend="npu")
    def conditional(x: Any) -> Any:
        if x.sum() > 0:
            return x * 2
        return x - 1

    @ms.jit(backend="npu")
    def doubled(x: Any) -> Any:
        while x.sum() < 100:
            x = x * 2
        return x

    for sign in (1, -1):
        wanted = np.full(3, 2.0) if sign > 0 else np.full(3, -2.0)
        np.testing.assert_array_equal(conditional(ones(3) * sign).asnumpy(), wanted)
    np.testing.assert_array_equal(doubled(ones(3)).asnumpy(), np.full(3, 64.0))
    assert mindspore_npu.counts() == mindspore_npu.Counts(compiled=2, runs=3)


def test_views_and_tuples_and_numbers_pass() -> None:
    @ms.jit(backend="npu")
    def both(x: Any, y: Any) -> Any:
        return x + y, (x, 3), x.shape[0]

    x = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)).T
    total, (same, three), rows = both(x, ones(3, 2))
    np.testing.assert_array_equal(total.asnumpy(), np.arange(6).reshape(2, 3).T + 1)
    np.testing.assert_array_equal(same.asnumpy(), np.arange(6).reshape(2, 3).T)
    assert (int(three), int(rows)) == (3, 3)
    assert mindspore_npu.counts().fallbacks == 0


def test_what_has_no_mapping_runs_on_mindspore_and_is_named() -> None:
    @ms.jit(backend="npu")
    def dropped(x: Any) -> Any:
        return ops.Dropout(keep_prob=0.5)(x)[0] * 0 + x

    with pytest.warns(FallbackWarning, match="Dropout"):
        found = dropped(ones(4))
    np.testing.assert_array_equal(found.asnumpy(), np.ones(4))
    assert mindspore_npu.counts() == mindspore_npu.Counts(fallbacks=1)
    assert "Dropout" in mindspore_npu.fallbacks()[0].reason
    assert "runs on MindSpore" in mindspore_npu.explain()


def test_a_fallback_is_an_error_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_MINDSPORE_FALLBACK", "raise")

    @ms.jit(backend="npu")
    def dropped(x: Any) -> Any:
        return ops.Dropout(keep_prob=0.5)(x)[0]

    with pytest.raises(Exception, match="Dropout"):
        dropped(ones(5))


def test_explain_names_the_nodes_of_mindspore() -> None:
    @ms.jit(backend="npu")
    def scaled(x: Any) -> Any:
        return ops.relu(x) * 3

    scaled(ones(6))
    assert "ReLU" in mindspore_npu.explain()
