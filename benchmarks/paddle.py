"""PaddlePaddle networks by `paddle.jit.to_static` on the Graph Engine beside PaddlePaddle itself: inference, training.

make test-paddle && .venv-paddle/bin/python benchmarks/paddle.py [--quick] [--models lstm] [--modes infer]

PaddlePaddle runs the same programs. A training step is the forward program, the loss, the backward program and plain
SGD, which is PaddlePaddle's on both sides.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# In place of this folder, in which this file would be taken for PaddlePaddle.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np  # noqa: E402

from benchmarks.doors import Answer, Pair, arguments, report  # noqa: E402


def _networks(quick: bool) -> dict[str, tuple[Callable[[], Any], np.ndarray]]:
    import paddle

    from tests.paddle import pd_networks as nets

    if quick:
        renamed = {"attention": "bert", "recurrent": "lstm"}
        small = {renamed.get(name, name): network for name, network in nets.NETWORKS.items()}
        return {**small, "crnn": (nets.Crnn, nets.LINES)}
    random = np.random.default_rng(0)
    tokens = random.integers(0, 50, (4, 64))

    def images(batch: int, size: int, channels: int = 3) -> np.ndarray:
        return random.standard_normal((batch, channels, size, size)).astype(np.float32)

    return {
        "resnet50": (lambda: paddle.vision.models.resnet50(num_classes=5), images(2, 96)),
        "mobilenet_v2": (lambda: paddle.vision.models.mobilenet_v2(num_classes=5), images(2, 96)),
        "bert": (lambda: nets.Attention(256, 64, 4, 0.0), tokens),
        "lstm": (lambda: nets.Recurrent(64, 64), random.standard_normal((16, 32, 64)).astype(np.float32)),
        "unet": (lambda: nets.Unet(16), images(2, 64)),
        "crnn": (lambda: nets.Crnn(32), images(4, 64, 1)),
    }


def _call(make: Callable[[], Any], x: np.ndarray, mode: str, npu: bool) -> Answer:
    import paddle

    import paddle_npu

    paddle.seed(0)
    network = make()
    network.train() if mode == "train" else network.eval()
    for layer in network.sublayers():
        if isinstance(layer, paddle.nn.Dropout):
            layer.p = 0.0  # both sides draw from one generator, in turns: their losses would differ
    optimizer = paddle.optimizer.SGD(1e-4, parameters=network.parameters())
    compiled, data = paddle.jit.to_static(network, full_graph=True), paddle.to_tensor(x)

    def infer() -> np.ndarray:
        with paddle.no_grad():
            return np.asarray(compiled(data).numpy())

    def train() -> np.ndarray:
        loss = compiled(data).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        return np.asarray(loss.numpy())

    def call() -> np.ndarray:
        paddle_npu.enable(strict=True) if npu else paddle_npu.disable()
        return train() if mode == "train" else infer()

    return call


def _pairs(found: Any) -> Iterator[Pair]:
    for name, (make, x) in _networks(found.quick).items():
        for mode in found.modes if name in found.models else ():
            yield Pair(name, mode, *(_call(make, x, mode, npu) for npu in (False, True)))


def main() -> None:
    """Print the table; a program that falls back to PaddlePaddle is an error."""
    names = ("resnet50", "mobilenet_v2", "bert", "lstm", "unet", "crnn")
    found = arguments("PaddlePaddle beside the Graph Engine", names)
    report("PaddlePaddle", _pairs(found), 1 if found.quick else found.rounds)


if __name__ == "__main__":
    main()
