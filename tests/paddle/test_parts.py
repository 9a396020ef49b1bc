"""Programs that are only in part for the NPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("paddle", reason="PaddlePaddle has an environment of its own: make test-paddle")

import paddle
import paddle.nn.functional as F
from paddle import nn

import paddle_npu

_kept: list[Any] = []  # see tests/paddle/support.py
MATRIX = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)


class Spectral(nn.Layer):
    """Layers on both sides of an operator that the engine does not have; one of them has running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2D(3, 8, 3, padding=1), nn.BatchNorm2D(8)
        self.middle, self.last = nn.Linear(8, 4), nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        z = self.middle(F.dropout(F.relu(self.norm(self.first(x))).mean([2, 3]), 0.2, training=self.training))
        return self.last(F.gelu(z * paddle.linalg.eigvalsh(z.T @ z)))


def decomposed(x: Any) -> Any:
    """A list of tensors behind the operator, and two of its results."""
    q, r = paddle.linalg.qr(x * 2)
    upper, lower = paddle.split(r, 2)
    return (q + 1).sum() + (upper * lower).sum() + paddle.concat([upper, lower]).max()


def written_over(x: Any) -> Any:
    """A value that the host reads before the NPU writes over it."""
    y = x * 3
    r = paddle.linalg.qr(y)[1]
    y[0] = 7.0
    return y.sum() + r.sum()


def twice(x: Any) -> Any:
    return paddle.linalg.qr(F.relu(paddle.linalg.qr(x)[1]) + paddle.eye(4))[1].sum()


def found(function: Callable[..., Any], x: np.ndarray, npu: bool, steps: int = 3) -> list[np.ndarray]:
    """Results and gradients of some calls; parameters and statistics at the end."""
    if npu:
        paddle_npu.enable()
    else:
        paddle_npu.disable()
    paddle.seed(0)
    network = function() if isinstance(function, type) else function
    compiled = paddle.jit.to_static(network, full_graph=True)
    _kept.append(compiled)
    made = []
    for _ in range(steps):
        given = paddle.to_tensor(x, stop_gradient=False)
        result = compiled(given)
        (result**2).sum().backward()
        made += [result.numpy(), given.grad.numpy()]
    if isinstance(network, nn.Layer):
        made += [p.grad.numpy() for p in network.parameters() if not p.stop_gradient]
        made += [b.numpy() for b in network.buffers()]
    return made


@pytest.mark.filterwarnings("ignore:PaddlePaddle runs a part")
@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("function", [decomposed, written_over, twice, Spectral])
def test_both_sides_give_paddles_values_and_gradients(function: Callable[..., Any], device: str) -> None:
    images = np.random.default_rng(1).standard_normal((5, 3, 8, 8)).astype(np.float32)
    x = images if function is Spectral else MATRIX
    try:
        paddle.set_device(device)
        paddle_npu.reset_counts()
        ours = found(function, x, npu=True)
        counted = paddle_npu.counts()
    finally:
        paddle.set_device("cpu")
    assert (counted.npu, counted.mixed, counted.paddle) == (3, 3, 0), counted
    assert any("no plugin maps it" in reason for reason in counted.reasons)
    for mine, theirs in zip(ours, found(function, x, npu=False), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_a_program_of_refused_operators_only_stays_with_paddle_and_is_named() -> None:
    def function(x: Any) -> Any:
        return paddle.linalg.qr(x)[1]

    x = paddle.to_tensor(MATRIX)
    paddle_npu.enable()
    paddle_npu.reset_counts()
    _kept.append(paddle.jit.to_static(function, full_graph=True))
    with pytest.warns(UserWarning, match=r"pd_op\.qr"):
        result = _kept[-1](x)
    np.testing.assert_allclose(result.numpy(), paddle.linalg.qr(x)[1].numpy(), rtol=1e-5)
    assert (paddle_npu.counts().npu, paddle_npu.counts().paddle) == (0, 1)


def test_a_refused_operator_is_an_error_where_asked() -> None:
    paddle_npu.enable(strict=True)
    _kept.append(paddle.jit.to_static(twice, full_graph=True))
    with pytest.raises(RuntimeError, match=r"pd_op\.qr"):
        _kept[-1](paddle.to_tensor(MATRIX))


@pytest.mark.filterwarnings("ignore:PaddlePaddle runs a part")
def test_what_lies_behind_an_open_size_stays_with_paddle() -> None:
    def function(x: Any) -> Any:
        places = paddle.nonzero(paddle.exp(x) > 1)
        return (x.gather_nd(places) * 2).sum(), F.softmax(x, -1)

    paddle_npu.enable()
    paddle_npu.reset_counts()
    _kept.append(paddle.jit.to_static(function, full_graph=True))
    total, weights = _kept[-1](paddle.to_tensor(MATRIX))
    assert (paddle_npu.counts().npu, paddle_npu.counts().mixed) == (1, 1)
    np.testing.assert_allclose(total.numpy(), 2 * MATRIX[MATRIX > 0].sum(), rtol=1e-5)
    np.testing.assert_allclose(weights.numpy().sum(-1), 1, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:PaddlePaddle runs a part")
def test_explain_tells_the_parts() -> None:
    paddle_npu.enable()
    _kept.append(paddle.jit.to_static(decomposed, full_graph=True))
    text = paddle_npu.explain(_kept[-1], paddle.to_tensor(MATRIX))
    assert "ReduceSum" in text and "PaddlePaddle runs pd_op.qr: no plugin maps it" in text
