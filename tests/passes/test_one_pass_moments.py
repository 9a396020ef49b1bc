"""Mean and variance of long columns on GPUs: one pass, and no digits lost to a large mean."""

from __future__ import annotations

import numpy as np
import pytest

from ge.compiler import compile_graph
from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions
from tests.model.test_cuda_training import random
from tests.support.costs import set_costs


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_CUDA_DRIVER", "simulated")
    set_costs(monkeypatch, moments_elements=64)


def moments(shape, axes, dtype="float32", keepdims=True, target="sm_90"):
    b = GraphBuilder("moments")
    x = b.input("x", shape, dtype)
    wide = b.op("Cast", x, to="float32") if dtype != "float32" else x
    mean = b.op("ReduceMean", wide, axes=axes, keepdims=True)
    squares = b.op("Square", b.op("Sub", wide, mean))
    b.output(b.op("ReduceMean", squares, axes=axes, keepdims=keepdims))
    b.output(mean)
    return compile_graph(b.graph, CompileOptions(target=target), "moments")


def reads(model, count: int) -> int:
    """How many tasks read the whole input."""
    views = [v for t in model.plan.tasks for v in t.inputs if model.plan.buffers[v.buffer].kind == "input"]
    return sum(np.prod(v.shape) == count for v in views)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(("level", "spread"), [(0.0, 1.0), (1000.0, 1.0), (-3e4, 2.0), (5.0, 0.0)])
def test_the_input_is_read_once_and_a_large_mean_costs_no_digits(level, spread, keepdims) -> None:
    x = (level + spread * random(32, 6, 6, 8)).astype(np.float32)
    model = moments(x.shape, [0, 1, 2], keepdims=keepdims)
    variance, mean = model.run([x])
    wide = x.astype(np.float64)
    assert reads(model, x.size) == 1
    assert variance.shape == ((1, 1, 1, 8) if keepdims else (8,))
    np.testing.assert_allclose(mean.reshape(-1), wide.mean((0, 1, 2)), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(variance.reshape(-1), wide.var((0, 1, 2)), rtol=2e-5, atol=1e-9 * level**2)
    assert (variance >= 0).all()


def test_first_rows_that_are_far_from_the_others() -> None:
    """The worst case of the rule: they alone are 1000, the rest is near 0."""
    x = random(32, 64, 8) / 100
    x[0] += 1000
    variance, _ = moments(x.shape, [0, 1]).run([x])
    np.testing.assert_allclose(variance.reshape(-1), x.astype(np.float64).var((0, 1)), rtol=1e-5)


def test_rows_stay_as_they_are() -> None:
    rows = moments((32, 64), [1])
    assert not any("Relu" in task.name for task in rows.plan.tasks)
    assert any("Relu" in task.name for task in moments((32, 64), [0]).plan.tasks)
