"""MindSpore's random primitives: the engine's own numbers follow the distributions and differ between runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore", reason="MindSpore has an environment of its own: make test-mindspore")

from mindspore import Tensor, mint, ops  # noqa: E402

import mindspore_npu  # noqa: E402

SIZE = 4000
LAPLACE, CATEGORICAL = ops.StandardLaplace(), ops.RandomCategorical()
WEIGHTS = Tensor(np.array([1.0, 2.0, 5.0], np.float32))


def normal(x: Tensor) -> Any:
    return ops.normal((SIZE,), Tensor(1.0, ms.float32), Tensor(2.0, ms.float32))


def uniform(x: Tensor) -> Any:
    return ops.uniform((SIZE,), Tensor(1.0, ms.float32), Tensor(3.0, ms.float32))


def randint(x: Tensor) -> Any:
    return ops.randint(2, 8, (SIZE,))


def between(x: Tensor) -> Any:
    """Bounds that only the run knows."""
    low = x[0].astype(ms.int32)
    return ops.UniformInt()((SIZE,), low + 2, low + 8)


def rand_like(x: Tensor) -> Any:
    return ops.rand_like(x)


def bernoulli(x: Tensor) -> Any:
    return ops.bernoulli(x, 0.25)


def laplace(x: Tensor) -> Any:
    return LAPLACE((SIZE,))


def categorical(x: Tensor) -> Any:
    return CATEGORICAL(ops.log(WEIGHTS.reshape(1, 3)), SIZE, 0)


def multinomial(x: Tensor) -> Any:
    return ops.multinomial(WEIGHTS, SIZE, True)


def dropout2d(x: Tensor) -> Any:
    return ops.dropout2d(x.reshape(SIZE // 4, 1, 2, 2), 0.25)


def mint_randn(x: Tensor) -> Any:
    return mint.randn(SIZE)


def mint_normal(x: Tensor) -> Any:
    return mint.normal(1.0, 2.0, (SIZE,))


# The mean and the deviation of each, and the range.
DISTRIBUTIONS: dict[Any, tuple[float, float, float, float]] = {
    normal: (1.0, 2.0, -np.inf, np.inf),
    uniform: (2.0, 2 / 12**0.5, 1.0, 3.0),
    randint: (4.5, (35 / 12) ** 0.5, 2, 7),
    between: (4.5, (35 / 12) ** 0.5, 2, 7),
    rand_like: (0.5, 1 / 12**0.5, 0.0, 1.0),
    bernoulli: (0.25, 0.1875**0.5, 0, 1),
    laplace: (0.0, 2**0.5, -np.inf, np.inf),
    categorical: (1.5, 0.5**0.5, 0, 2),
    multinomial: (1.5, 0.5**0.5, 0, 2),
    dropout2d: (1.0, (1 / 3) ** 0.5, 0.0, 4 / 3),
    mint_randn: (0.0, 1.0, -np.inf, np.inf),
    mint_normal: (1.0, 2.0, -np.inf, np.inf),
}


@pytest.mark.parametrize("function", list(DISTRIBUTIONS), ids=lambda f: f.__name__)
def test_numbers_follow_their_distribution(function: Any) -> None:
    mean, deviation, low, high = DISTRIBUTIONS[function]
    x = ops.ones(SIZE) if function is not between else ops.zeros(SIZE)
    mindspore_npu.reset_counts()
    drawn = ms.jit(function, backend="npu")
    first, second = (drawn(x).asnumpy().astype(np.float64) for _ in range(2))
    assert mindspore_npu.counts() == mindspore_npu.Counts(compiled=1, runs=2)
    assert (first != second).any()
    found = np.concatenate([first.ravel(), second.ravel()])
    assert abs(found.mean() - mean) < 6 * deviation / (len(found) / 4) ** 0.5
    assert abs(found.std() - deviation) < 0.12 * deviation
    assert found.min() >= low and found.max() <= high * (1 + 1e-6)


def test_permutations_have_every_element() -> None:
    @ms.jit(backend="npu")
    def mixed(x: Tensor) -> Any:
        return ops.randperm(50), ops.shuffle(x)

    mindspore_npu.reset_counts()
    order, shuffled = (y.asnumpy() for y in mixed(Tensor(np.arange(50, dtype=np.float32))))
    assert mindspore_npu.counts().fallbacks == 0
    for found in (order, shuffled):
        np.testing.assert_array_equal(np.sort(found), np.arange(50))
        assert (found != np.arange(50)).any()


def test_dropped_channels_are_dropped_whole_and_have_no_gradient() -> None:
    def total(x: Tensor) -> Any:
        return (ops.dropout2d(x, 0.5) * 3).sum()

    gradient = ms.value_and_grad(total)

    @ms.jit(backend="npu")
    def both(x: Tensor) -> Any:
        return gradient(x)

    mindspore_npu.reset_counts()
    value, slope = both(ops.ones((8, 16, 3, 3)))
    assert mindspore_npu.counts().fallbacks == 0
    channels = slope.asnumpy().reshape(8 * 16, 9)
    assert set(np.unique(channels)) == {0.0, 6.0} and (channels == channels[:, :1]).all()
    np.testing.assert_allclose(channels.sum(), value.asnumpy(), rtol=1e-6)
