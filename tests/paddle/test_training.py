"""Training as users of PaddlePaddle write it: `paddle.Model`, mixed precision, data loaders, checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("paddle", reason="PaddlePaddle has an environment of its own: make test-paddle")

import paddle
import paddle.nn.functional as F
from paddle import nn

import paddle_npu

_kept: list[Any] = []  # see tests/paddle/support.py
Ways = pytest.mark.parametrize(("device", "static"), [("cpu", True), ("npu", True), ("npu", False)])


class Pictures(paddle.io.Dataset):
    """A few pictures of two classes."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.labels = np.arange(12) % 2
        noise = random.standard_normal((12, 1, 8, 8))
        self.images = (noise + self.labels.reshape(-1, 1, 1, 1)).astype(np.float32)

    def __getitem__(self, index: int) -> tuple[np.ndarray, Any]:
        return self.images[index], self.labels[index : index + 1]

    def __len__(self) -> int:
        return len(self.images)


def network() -> nn.Layer:
    paddle.seed(0)
    return nn.Sequential(
        nn.Conv2D(1, 4, 3, padding=1, bias_attr=False),
        nn.BatchNorm2D(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 2),
    )


def prepared(npu: bool, device: str) -> None:
    if npu:
        paddle_npu.enable(strict=True)
    else:
        paddle_npu.disable()
    paddle.set_device(device)
    paddle_npu.reset_counts()


def both(train: Callable[[bool], list[float]], device: str, static: bool) -> None:
    """The same numbers with and without the NPU, which must have run."""
    try:
        prepared(True, device)
        ours = train(static)
        counted = paddle_npu.counts()
        prepared(False, "cpu")
        theirs = train(static)
    finally:
        paddle.set_device("cpu")
    assert counted.npu if static else counted.eager, counted
    assert not counted.paddle and not counted.reasons, counted
    np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-4)


def compiled(layer: nn.Layer, static: bool) -> Any:
    _kept.append(paddle.jit.to_static(layer, full_graph=True) if static else layer)
    return _kept[-1]


class Losses(paddle.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[float] = []

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        self.found.append(float(logs["loss"][0]))


class Compiled(nn.Layer):
    """`paddle.Model` asks for the arguments of `forward`, which a layer of `to_static` does not tell."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return self.layer(x)


@Ways
def test_a_model_fits_evaluates_and_predicts(device: str, static: bool) -> None:
    def train(static: bool) -> list[float]:
        layer = Compiled(compiled(network(), static))
        model, losses = paddle.Model(layer), Losses()
        optimizer = paddle.optimizer.Adam(1e-2, parameters=layer.parameters())
        model.prepare(optimizer, nn.CrossEntropyLoss(), paddle.metric.Accuracy())
        model.fit(Pictures(), epochs=2, batch_size=4, shuffle=False, verbose=0, callbacks=[losses])
        loss = model.evaluate(Pictures(), batch_size=4, verbose=0)["loss"][0]
        answers = model.predict(Pictures(), batch_size=4, verbose=0, stack_outputs=True)[0]
        return [*losses.found, float(loss), *answers.ravel()]

    both(train, device, static)


@Ways
@pytest.mark.parametrize(("level", "dtype"), [("O1", "bfloat16"), ("O2", "bfloat16"), ("O1", "float16")])
def test_levels_of_mixed_precision_train(level: str, dtype: str, device: str, static: bool) -> None:
    """Losses of the NPU against PaddlePaddle's in float32: a narrow type may part from it by its own precision."""
    if level == "O2" and device == "npu":
        pytest.skip("PaddlePaddle has no optimizers of 16-bit parameters for CPUs, where the device's run")

    def train(npu: bool) -> list[float]:
        layer = network()
        optimizer = paddle.optimizer.Momentum(1e-2, parameters=layer.parameters())
        if npu and level == "O2":
            layer, optimizer = paddle.amp.decorate(layer, optimizer, level=level, dtype=dtype)
        run, scaler = compiled(layer, static), paddle.amp.GradScaler(init_loss_scaling=8.0)
        found, data = [], Pictures()
        images, labels = paddle.to_tensor(data.images), paddle.to_tensor(data.labels)
        for _ in range(6):
            with paddle.amp.auto_cast(enable=npu, level=level, dtype=dtype):
                loss = F.cross_entropy(run(images).astype("float32"), labels)
            scaled = scaler.scale(loss)
            scaled.backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.clear_grad()
            found.append(float(loss))
        return found

    try:
        prepared(True, device)
        ours, counted = train(True), paddle_npu.counts()
        prepared(False, "cpu")
        theirs = train(False)
    finally:
        paddle.set_device("cpu")
    assert (counted.npu == 6 if static else counted.eager > 6) and not counted.paddle, counted
    np.testing.assert_allclose(ours, theirs, rtol=0.1, atol=0.03)
    assert ours[-1] < ours[0]


@Ways
def test_loaders_with_workers_feed_a_loop(device: str, static: bool) -> None:
    def train(static: bool) -> list[float]:
        layer = compiled(network(), static)
        optimizer = paddle.optimizer.AdamW(1e-2, parameters=layer.parameters())
        found = []
        for images, labels in paddle.io.DataLoader(Pictures(), batch_size=4, num_workers=1):
            loss = F.cross_entropy(layer(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            found.append(float(loss))
        return found

    both(train, device, static)


def trained(npu: bool, steps: int, folder: Path, go_on: bool = False) -> list[float]:
    """The losses of some steps, from a checkpoint or the beginning; leaves a checkpoint."""
    data, found = Pictures(), []
    files = [str(folder / name) for name in ("net.pdparams", "net.pdopt")]
    try:
        prepared(npu, "npu" if npu else "cpu")
        with paddle.utils.unique_name.guard():  # checkpoints have the names of parameters
            layer = compiled(network(), True)
            optimizer = paddle.optimizer.Adam(1e-2, parameters=layer.parameters())
            if go_on:
                layer.set_state_dict(paddle.load(files[0]))
                optimizer.set_state_dict(paddle.load(files[1]))
            for _ in range(steps):
                loss = F.cross_entropy(layer(paddle.to_tensor(data.images)), paddle.to_tensor(data.labels))
                loss.backward()
                optimizer.step()
                optimizer.clear_grad()
                found.append(float(loss))
        assert paddle_npu.counts().npu == (steps if npu else 0)
        for file, part in zip(files, (layer, optimizer), strict=True):
            paddle.save(part.state_dict(), file)
    finally:
        paddle.set_device("cpu")
    return found


@pytest.mark.parametrize("first", [True, False])
def test_checkpoints_pass_from_one_side_to_the_other(first: bool, tmp_path: Path) -> None:
    """Two steps on one side, then two from its checkpoint on the other: as four on PaddlePaddle."""
    found = trained(first, 2, tmp_path) + trained(not first, 2, tmp_path, go_on=True)
    np.testing.assert_allclose(found, trained(False, 4, tmp_path), rtol=1e-4, atol=1e-5)


def test_embeddings_with_sparse_gradients_have_dense_ones_in_programs() -> None:
    prepared(True, "cpu")
    paddle.seed(0)
    layer = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2))
    compiled(layer, True)(paddle.to_tensor(np.array([1, 3, 3]))).sum().backward()
    wanted = np.zeros((10, 4), np.float32)
    np.add.at(wanted, [1, 3, 3], np.broadcast_to(layer[1].weight.numpy().sum(1), (3, 4)))
    np.testing.assert_allclose(layer[0].weight.grad.numpy(), wanted, rtol=1e-5)
    assert paddle_npu.counts().npu == 1
