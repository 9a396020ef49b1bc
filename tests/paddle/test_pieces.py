"""Functions of `to_static` without `full_graph=True`: PaddlePaddle captures pieces, or nothing."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("paddle", reason="PaddlePaddle has an environment of its own: make test-paddle")

import paddle
import paddle.nn.functional as F
from paddle import nn

import paddle_npu

_kept: list[Any] = []  # see tests/paddle/support.py


class Deep(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LayerList([nn.Linear(4, 4) for _ in range(6)])

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = F.relu(layer(x))
        return F.softmax(x)


class Shallow(nn.Layer):
    def forward(self, x: Any) -> Any:
        return x * 2


def small(x: Any) -> Any:
    return x + 1


def _call(function: Any, *arguments: Any) -> tuple[Any, list[str]]:
    _kept.append(paddle.jit.to_static(function))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            result = _kept[-1](*arguments)
    return result, [str(w.message) for w in found if "to_static" in str(w.message)]


@pytest.fixture(autouse=True)
def fresh() -> None:
    paddle_npu.enable()
    paddle_npu.reset_counts()


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_a_whole_network_is_one_piece_on_every_device(device: str) -> None:
    """SOT looks at every Python call inside of the function: not at ours, and not at those of the engine."""
    network = Deep()
    x = np.ones((2, 4), np.float32)
    expected = network(paddle.to_tensor(x)).numpy()
    paddle.set_device(device)
    network.to(device)
    result, warned = _call(network, paddle.to_tensor(x))
    assert not warned and paddle_npu.counts().npu == 2, paddle_npu.counts()
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5)


def test_a_layer_of_paddles_own_is_named_with_the_remedy() -> None:
    x = paddle.ones([2, 5, 8])
    _, (warned,) = _call(nn.GRU(8, 8), x)
    assert "GRU.forward" in warned and "PaddlePaddle's own layers" in warned and "full_graph=True" in warned
    assert paddle_npu.counts().npu == 0
    _kept.append(paddle.jit.to_static(nn.GRU(8, 8), full_graph=True))
    _kept[-1](x)
    assert paddle_npu.counts().npu == 1


@pytest.mark.parametrize("function", [Shallow(), small])
def test_a_small_function_is_named_with_the_remedy(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, (warned,) = _call(function, paddle.ones([2, 3]))
    assert "at least 10 operators" in warned and "MIN_GRAPH_SIZE=0" in warned and "full_graph=True" in warned
    monkeypatch.setenv("MIN_GRAPH_SIZE", "0")
    _, warned_again = _call(function, paddle.ones([3, 2]))
    assert paddle_npu.counts().npu == 2 and not warned_again


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_operators_between_the_pieces_run_on_the_device(device: str) -> None:
    """On the device an operator outside of a piece asks for its program while SOT looks on."""
    paddle.set_device(device)
    result, warned = _call(nn.Linear(4, 4, bias_attr=False), paddle.ones([2, 4]))
    assert len(warned) == 1 and result.shape == [2, 4]
    assert paddle_npu.counts().eager == (2 if device == "npu" else 0)


def test_explain_tells_that_nothing_was_handed_over() -> None:
    _kept.append(paddle.jit.to_static(small))
    with pytest.warns(UserWarning, match="to_static function small"):
        assert "full_graph=True" in paddle_npu.explain(_kept[-1], paddle.ones([2]))


def test_disabling_takes_the_warning_back() -> None:
    paddle_npu.disable()
    _, warned = _call(small, paddle.ones([2]))
    assert not warned
