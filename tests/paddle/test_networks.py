"""Networks of `paddle.vision` and `paddle.nn`: inference, training steps, saved files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("paddle", reason="PaddlePaddle has an environment of its own: make test-paddle")

import paddle
import paddle.nn.functional as F
from paddle import nn

import ge
import paddle_npu
from tests.paddle.pd_networks import NETWORKS, Recogniser

_kept: list[Any] = []  # see tests/paddle/support.py


def losses(
    make: Callable[[], nn.Layer],
    x: np.ndarray,
    npu: bool,
    steps: int = 10,
    device: str = "cpu",
    static: bool = True,
    rate: float = 1e-2,
) -> list[float]:
    """The losses of training steps and, last, of an evaluation."""
    if npu:
        paddle_npu.enable(strict=True)
    else:
        paddle_npu.disable()
    paddle.set_device(device)
    paddle.seed(0)
    network = make()
    optimizer = paddle.optimizer.Momentum(rate, parameters=network.parameters())
    compiled = paddle.jit.to_static(network, full_graph=True) if static else network
    labels, data = paddle.to_tensor(np.arange(len(x)) % 5), paddle.to_tensor(x)
    found = []
    for _ in range(steps):
        loss = F.cross_entropy(compiled(data), labels)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        found.append(float(loss))
    compiled.eval()
    found.append(float(F.cross_entropy(compiled(data), labels)))
    paddle.set_device("cpu")
    return found


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "mobilenet_v2"])
def test_training_steps_have_paddles_losses(name: str) -> None:
    make, x = NETWORKS[name]
    paddle_npu.reset_counts()
    ours = losses(make, x, npu=True)
    counted = paddle_npu.counts()
    assert counted.npu == 11 and counted.paddle == 0
    np.testing.assert_allclose(ours, losses(make, x, npu=False), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("name", ["attention", "recurrent", "unet"])
def test_training_steps_on_the_device_have_paddles_losses(name: str, static: bool) -> None:
    make, x = NETWORKS[name]
    paddle_npu.reset_counts()
    ours = losses(make, x, npu=True, device="npu", static=static)
    counted = paddle_npu.counts()
    assert counted.npu == (11 if static else 0) and counted.paddle == 0 and not counted.reasons
    assert static or counted.eager > 50
    np.testing.assert_allclose(ours, losses(make, x, npu=False, static=False), rtol=2e-4, atol=2e-5)


def _resnet50() -> nn.Layer:
    """ResNet50 whose blocks begin as their shortcuts, as it is trained: rounding does not grow from block to block."""
    network = paddle.vision.models.resnet50(num_classes=5)
    for block in network.sublayers():
        if isinstance(block, paddle.vision.models.resnet.BottleneckBlock):
            block.bn3.weight.set_value(paddle.zeros_like(block.bn3.weight))
    return network


# With the rate of their steps and a tolerance: the roundings of a MobileNet grow soon, PaddlePaddle's own too.
VISION: dict[str, tuple[Callable[[], nn.Layer], tuple[int, ...], float, float]] = {
    "resnet50": (_resnet50, (4, 3, 32, 32), 1e-3, 2e-4),
    "mobilenet_v1": (
        lambda: paddle.vision.models.mobilenet_v1(scale=0.25, num_classes=5),
        (8, 3, 96, 96),
        1e-5,
        5e-3,
    ),
}


@pytest.mark.parametrize(("device", "static"), [("cpu", True), ("npu", True), ("npu", False)])
@pytest.mark.parametrize("name", VISION)
def test_networks_of_vision_infer_and_train(name: str, device: str, static: bool) -> None:
    make, shape, rate, tolerance = VISION[name]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    paddle_npu.reset_counts()
    ours = losses(make, x, npu=True, device=device, static=static, rate=rate)
    counted = paddle_npu.counts()
    assert counted.npu == (11 if static else 0) and counted.paddle == 0 and not counted.reasons
    assert static or counted.eager > 50
    theirs = losses(make, x, npu=False, static=False, rate=rate)
    assert theirs[9] < 0.5 * theirs[0]
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=2e-5)


def recognised(npu: bool, device: str, static: bool) -> list[float]:
    """The losses of training steps of a CRNN."""
    if npu:
        paddle_npu.enable(strict=True)
    else:
        paddle_npu.disable()
    paddle.set_device(device)
    paddle.seed(0)
    network = Recogniser()
    optimizer = paddle.optimizer.Adam(1e-2, parameters=network.parameters())
    compiled = paddle.jit.to_static(network, full_graph=True) if static else network
    random = np.random.default_rng(4)
    lines = paddle.to_tensor(random.standard_normal((3, 1, 16, 40)).astype(np.float32))
    labels = paddle.to_tensor(np.array([[1, 2, 2, 3], [6, 5, 0, 0], [4, 4, 4, 0]], np.int32))
    lengths, found = paddle.to_tensor(np.array([4, 2, 3])), []
    for _ in range(10):
        loss = compiled(lines, labels, lengths)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        found.append(float(loss))
    paddle.set_device("cpu")
    return found


@pytest.mark.parametrize(("device", "static"), [("cpu", True), ("npu", True), ("npu", False)])
def test_a_recogniser_of_text_trains_as_on_paddle(device: str, static: bool) -> None:
    paddle_npu.reset_counts()
    ours = recognised(True, device, static)
    assert paddle_npu.counts().npu == (10 if static else 0) and not paddle_npu.counts().reasons
    theirs = recognised(False, "cpu", False)
    np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    assert theirs[-1] < theirs[0]


def gradients(x: np.ndarray, npu: bool, dtype: str) -> dict[str, np.ndarray]:
    """The gradients of a MobileNet whose dropout is off."""
    if npu:
        paddle_npu.enable(strict=True)
    else:
        paddle_npu.disable()
    paddle.seed(0)
    network = NETWORKS["mobilenet_v2"][0]()
    network.classifier[0].p = 0.0
    network.to(dtype=dtype)
    output = paddle.jit.to_static(network, full_graph=True)(paddle.to_tensor(x.astype(dtype)))
    F.cross_entropy(output, paddle.to_tensor(np.arange(len(x)) % 5)).backward()
    return {name: p.grad.numpy() for name, p in network.named_parameters() if p.grad is not None}


def test_gradients_through_clipped_activations_are_near_double_precision() -> None:
    """Losses of the two float32 runs part soon: a value at the bound of relu6 goes one way here, another there."""
    images = np.random.default_rng(0).standard_normal((8, 3, 96, 96)).astype(np.float32)
    ours, exact = gradients(images, True, "float32"), gradients(images, False, "float64")
    errors = [np.abs(ours[name] - exact[name]).max() / np.abs(exact[name]).max() for name in exact]
    assert np.median(errors) < 1e-3


@pytest.mark.parametrize("name", NETWORKS)
def test_saved_models_compile_without_paddle(name: str, tmp_path: Path) -> None:
    make, x = NETWORKS[name]
    paddle_npu.disable()
    network = make()
    network.eval()
    wanted = network(paddle.to_tensor(x)).numpy()
    spec = paddle.static.InputSpec([None, *x.shape[1:]], str(x.dtype), "x")
    paddle.jit.save(paddle.jit.to_static(network, input_spec=[spec], full_graph=True), str(tmp_path / "net"))
    model = ge.compile(tmp_path / "net.json", ge.CompileOptions(input_shapes={"x": x.shape}))
    np.testing.assert_allclose(model(x), wanted, rtol=1e-4, atol=1e-4)
    model.save(tmp_path / "net.om")
    np.testing.assert_array_equal(ge.load(tmp_path / "net.om")(x), model(x))


class Padded(nn.Layer):
    """A recurrent layer over sequences of different lengths: its outputs and last states."""

    def __init__(self, kind: str, direction: str) -> None:
        super().__init__()
        cells = {"relu": ("SimpleRNN", {"activation": "relu"}), "tanh": ("SimpleRNN", {})}
        name, settings = cells.get(kind, (kind, {}))
        self.layer = getattr(nn, name)(3, 4, num_layers=2, direction=direction, **settings)

    def forward(self, x: Any, lengths: Any) -> Any:
        y, states = self.layer(x, sequence_length=lengths)
        return [y, *(states if isinstance(states, tuple) else [states])]


@pytest.mark.parametrize("direction", ["forward", "bidirect"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "tanh", "relu"])
def test_recurrent_layers_take_sequences_of_different_lengths(kind: str, direction: str) -> None:
    x = np.random.default_rng(0).standard_normal((4, 6, 3)).astype(np.float32)
    found = []
    for npu in (True, False):
        if npu:
            paddle_npu.enable(strict=True)
        else:
            paddle_npu.disable()
        paddle.seed(0)
        network = Padded(kind, direction)
        compiled = paddle.jit.to_static(network, full_graph=True)
        _kept.append(compiled)
        given = paddle.to_tensor(x, stop_gradient=False)
        paddle_npu.reset_counts()
        results = compiled(given, paddle.to_tensor(np.array([6, 1, 4, 2])))
        assert paddle_npu.counts().npu == npu
        weights = np.random.default_rng(1)
        sum(
            (r * paddle.to_tensor(weights.random(r.shape).astype(np.float32))).sum() for r in results
        ).backward()
        gradients = [given.grad, *(p.grad for p in network.parameters())]
        found.append([t.numpy() for t in (*results, *gradients)])
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_other_shapes_are_compiled_once_each() -> None:
    paddle_npu.enable(strict=True)
    paddle_npu.reset_counts()
    network = nn.Linear(4, 3)
    spec = paddle.static.InputSpec([None, 4], "float32", "x")
    compiled = paddle.jit.to_static(network, input_spec=[spec], full_graph=True)
    for rows in (2, 5, 2, 5):
        x = paddle.rand([rows, 4])
        np.testing.assert_allclose(
            compiled(x).numpy(), (x @ network.weight + network.bias).numpy(), rtol=1e-5
        )
    assert (paddle_npu.counts().npu, paddle_npu.counts().compiled) == (4, 2)


def test_explain_names_the_operators() -> None:
    paddle_npu.enable(strict=True)
    compiled = paddle.jit.to_static(nn.Linear(4, 3), full_graph=True)
    assert "MatMul" in paddle_npu.explain(compiled, paddle.rand([2, 4]))


def test_bytecode_capture_runs_too() -> None:
    paddle_npu.enable(strict=True)
    paddle_npu.reset_counts()
    network = nn.Sequential(*[nn.Linear(4, 4) for _ in range(8)], nn.ReLU())
    x = paddle.rand([2, 4])
    wanted = network(x).numpy()
    np.testing.assert_allclose(paddle.jit.to_static(network)(x).numpy(), wanted, rtol=1e-5, atol=1e-6)
    assert paddle_npu.counts().npu >= 1


def test_the_benchmark_runs() -> None:
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "paddle.py"
    command = [sys.executable, str(script), "--quick", "--models", "lstm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert not done.returncode, done.stderr[-3000:]
    assert "geometric mean" in done.stdout
