"""The back end: what it compiles, what it leaves to MindSpore, and how a user can tell."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore", reason="MindSpore has an environment of its own: make test-mindspore")

from mindspore import Parameter, Tensor, nn, ops  # noqa: E402

import mindspore_npu  # noqa: E402
from mindspore_npu.backend import FallbackWarning  # noqa: E402
from tests.mindspore import ms_networks  # noqa: E402


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
    def factored(x: Any) -> Any:
        return ops.cholesky(x) * 2  # the line that is named

    line = inspect.getsourcelines(test_what_has_no_mapping_runs_on_mindspore_and_is_named)[1] + 3
    with pytest.warns(FallbackWarning, match=rf"Cholesky: .*test_ms_backend\.py:{line} \(.*Cholesky"):
        found = factored(Tensor(np.eye(4, dtype=np.float32)))
    np.testing.assert_array_equal(found.asnumpy(), np.eye(4) * 2)
    assert mindspore_npu.counts() == mindspore_npu.Counts(fallbacks=1)
    assert "Cholesky" in mindspore_npu.fallbacks()[0].reason
    assert "runs on MindSpore" in mindspore_npu.explain()


def test_a_fallback_is_an_error_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_MINDSPORE_FALLBACK", "raise")

    @ms.jit(backend="npu")
    def factored(x: Any) -> Any:
        return ops.cholesky(x)

    with pytest.raises(Exception, match="Cholesky"):
        factored(Tensor(np.eye(5, dtype=np.float32)))


def test_explain_names_the_nodes_of_mindspore() -> None:
    @ms.jit(backend="npu")
    def scaled(x: Any) -> Any:
        return ops.relu(x) * 3

    scaled(ones(6))
    assert "ReLU" in mindspore_npu.explain()


def test_dropout_draws_new_numbers_in_every_run() -> None:
    @ms.jit(backend="npu")
    def dropped(x: Any) -> Any:
        return ops.dropout(x, p=0.25)

    first, second = (dropped(ones(100, 100)).asnumpy() for _ in range(2))
    for found in (first, second):
        assert set(np.unique(found)) == {np.float32(0.0), np.float32(1.0) / np.float32(0.75)}
        assert 0.97 < found.mean() < 1.03
    assert (first != second).any()
    assert mindspore_npu.counts() == mindspore_npu.Counts(compiled=1, runs=2)


def test_dropout_is_the_same_in_a_step_and_its_gradient() -> None:
    def total(x: Any) -> Any:
        return (ops.dropout(x, p=0.5) * 3).sum()

    gradient = ms.value_and_grad(total)

    @ms.jit(backend="npu")
    def both(x: Any) -> Any:
        return gradient(x)

    value, slope = both(ones(20, 20))
    assert set(np.unique(slope.asnumpy())) == {0.0, 6.0}
    np.testing.assert_allclose(slope.asnumpy().sum(), value.asnumpy(), rtol=1e-6)
    assert mindspore_npu.counts().fallbacks == 0


def test_a_seed_repeats_the_numbers() -> None:
    def drawn() -> np.ndarray:
        mindspore_npu.reset_counts()
        ms.set_seed(7)

        @ms.jit(backend="npu")
        def dropped(x: Any) -> Any:
            return ops.dropout(x, p=0.5)

        return np.stack([dropped(ones(9)).asnumpy() for _ in range(2)])

    np.testing.assert_array_equal(drawn(), drawn())


def test_an_eager_gradient_goes_through_a_compiled_cell() -> None:
    found = []
    for backend in ("npu", "ms_backend"):
        ms.set_seed(0)
        np.random.seed(0)
        net = nn.Dense(4, 3)
        net.construct = ms.jit(net.construct, backend=backend)

        def total(x: Any, net: Any = net) -> Any:
            return (net(x) ** 2).sum()

        value, slopes = ms.value_and_grad(total, None, net.trainable_params())(ones(2, 4))
        found.append([value.asnumpy(), *(s.asnumpy() for s in slopes)])
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)
    counted = mindspore_npu.counts()
    assert counted.runs >= 2 and counted.fallbacks == 0


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_levels_of_mixed_precision_train_as_on_mindspore(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MindSpore writes the network that it makes of the user's there
    found = []
    for backend in ("ms_backend", "npu"):
        ms.set_seed(0)
        np.random.seed(0)
        net = ms.amp.auto_mixed_precision(ms_networks.LeNet(), level)
        step = ms_networks.training(
            net, nn.CrossEntropyLoss(), lambda parameters: nn.Momentum(parameters, 0.01, 0.9)
        )
        x, target = np.random.RandomState(0).randn(4, 1, 32, 32), np.arange(4)
        arguments = Tensor(x.astype(np.float32)), Tensor(target.astype(np.int32))
        jitted = ms.jit(step, backend=backend)
        found.append([float(jitted(*arguments).asnumpy()) for _ in range(4)])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5 if level == "O0" else 1e-3)
    assert mindspore_npu.counts() == mindspore_npu.Counts(compiled=1, runs=4)


def test_results_of_eager_operators_are_waited_for() -> None:
    """MindSpore runs eager operators in threads of its own: their results may have no memory when they are passed."""

    @ms.jit(backend="npu")
    def total(x: Any) -> Any:
        return x.sum()

    start = Tensor(np.full((600, 600), 1 / 600, np.float32))
    total(start)
    for _ in range(5):
        late = start
        for _ in range(6):
            late = ops.matmul(late, start)
        np.testing.assert_allclose(total(late).asnumpy(), 600, rtol=1e-4)
    assert mindspore_npu.counts() == mindspore_npu.Counts(compiled=1, runs=6)
