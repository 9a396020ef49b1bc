"""The migration guide's training script on the NPU and in TensorFlow: the loss of each of 20 steps.

ResNet50 of 1000 classes, AdamW at a constant rate, a `tf.function` step, synthetic images; the same weights and data
for both. TensorFlow runs a second time with inputs that are off by a rounding, which tells what float32 settles of the
curve; with `--exact` a third time in float64 (slow), which tells who is how far from it.

A residual network from random weights amplifies rounding: an activation near zero that comes out on its other side
changes the gradient by a whole term, and AdamW's first step is the gradient's sign. The residual branches therefore
begin as nothing (a last scale of 0, as such networks are usually started).
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measure import console, new_table

K = tf.keras
STEPS = 20
CPU, NPU = "/CPU:0", "/NPU:0"
TOLERANCE = 1e-3
Batches = list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Script:
    """What the script is given: a network, images of its size and a learning rate."""

    network: Callable[[], Any]
    size: int
    classes: int
    rate: Callable[[], Any]


def resnet50(size: int) -> Any:
    """Keras's network; what its residual branches add begins as 0."""
    model = K.applications.ResNet50(weights=None, classes=1000, input_shape=(size, size, 3))
    for layer in model.layers:
        if layer.name.endswith("_3_bn"):
            layer.gamma.assign(tf.zeros_like(layer.gamma))
    return model


def at_a_constant_rate(size: int) -> Script:
    """ResNet50 at the rate that the script has from its first step on."""
    return Script(lambda: resnet50(size), size, 1000, lambda: 1e-3)


def random_batches(script: Script, batch: int, seed: int = 0) -> Batches:
    """Images and labels at random, others in each step."""
    random = np.random.default_rng(2 + seed)
    shape = (batch, script.size, script.size, 3)
    one_hot = np.eye(script.classes, dtype=np.float32)
    return [
        (random.standard_normal(shape).astype(np.float32), one_hot[random.integers(0, script.classes, batch)])
        for _ in range(STEPS)
    ]


def pattern_batches(script: Script, batch: int, seed: int = 0) -> Batches:
    """Two batches again and again, of ten patterns to be told apart, with noise."""
    random = np.random.default_rng(2 + seed)
    small = random.standard_normal((10, 7, 7, 3)).astype(np.float32)
    with tf.device(CPU):
        patterns = tf.image.resize(small, (script.size, script.size), "bicubic").numpy()
    numbers = random.integers(0, 10, (2, batch))
    noise = random.standard_normal((2, batch, script.size, script.size, 3))
    x = (patterns[numbers] + 0.5 * noise).astype(np.float32)
    y = np.eye(script.classes, dtype=np.float32)[numbers]
    return [(x[i % 2], y[i % 2]) for i in range(STEPS)]


IMAGES = {"random": random_batches, "patterns": pattern_batches}


def off_by_a_rounding(batches: Batches) -> Batches:
    """The same images, each number moved up or down by about a unit of its last place."""
    random = np.random.default_rng(3)
    return [
        ((x * (1 + random.choice([-1, 1], x.shape) * 2.0**-23)).astype(np.float32), y) for x, y in batches
    ]


@contextlib.contextmanager
def _numbers(dtype: str) -> Iterator[None]:
    """Let Keras compute in a type, parameters and losses included."""
    before = K.backend.floatx()
    K.backend.set_floatx(dtype)
    K.mixed_precision.set_global_policy(dtype)
    try:
        yield
    finally:
        K.backend.set_floatx(before)
        K.mixed_precision.set_global_policy(before)


class Training:
    """The script on a device, from weights that are the same on all of them."""

    def __init__(self, script: Script, device: str, dtype: str = "float32", seed: int = 0) -> None:
        self.device, self.dtype = device, dtype
        with tf.device(CPU):
            K.utils.set_random_seed(11 + seed)
            weights = script.network().get_weights()
        with tf.device(device), _numbers(dtype):
            self.model = script.network()
            self.model.set_weights(weights)
            self.optimizer = K.optimizers.AdamW(learning_rate=script.rate())
            self.optimizer.build(self.model.trainable_variables)
            self._state = [*self.model.variables, *self.optimizer.variables]
            self._first = [np.asarray(v.numpy()) for v in self._state]
            self._step = self._made()

    def _made(self) -> Any:
        model, optimizer = self.model, self.optimizer
        loss_fn = K.losses.CategoricalCrossentropy()

        @tf.function
        def train_step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                logits = model(x, training=True)
                loss = loss_fn(y, logits)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return train_step

    def curve(self, batches: Batches) -> np.ndarray:
        """The loss of every step, from the first weights."""
        with tf.device(self.device), _numbers(self.dtype):
            for variable, value in zip(self._state, self._first, strict=True):
                variable.assign(value)
            given = ((tf.constant(x, self.dtype), tf.constant(y, self.dtype)) for x, y in batches)
            return np.array([float(self._step(x, y)) for x, y in given])


def distance(curve: np.ndarray, reference: np.ndarray) -> float:
    """How far a curve as a whole is from another, relative to that (Euclidean norms)."""
    return float(np.linalg.norm(curve - reference) / np.linalg.norm(reference))


def show(expected: np.ndarray, others: dict[str, np.ndarray], exact: np.ndarray | None) -> None:
    """Print TensorFlow's losses, and how far the others are from them and all are from the exact ones."""
    pairs = {name: (curve, expected) for name, curve in others.items()}
    if exact is not None:
        curves = {"TensorFlow": expected, **others}
        pairs |= {f"{name}, from float64": (curve, exact) for name, curve in curves.items()}
    off = {name: np.abs(curve / reference - 1) for name, (curve, reference) in pairs.items()}
    table = new_table("Loss by step, and differences from it", ["step", "TensorFlow", *off])
    for number, loss in enumerate(expected):
        table.add_row(str(number + 1), f"{loss:.4f}", *(f"{d[number]:.1e}" for d in off.values()))
    table.add_row("largest", "", *(f"{d.max():.1e}" for d in off.values()))
    table.add_row("whole curve", "", *(f"{distance(*pair):.1e}" for pair in pairs.values()))
    console.print(table)


def main() -> int:
    """Run and print; the exit status says whether every loss is within 1e-3 of TensorFlow's."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=224, help="of the images")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--images", choices=sorted(IMAGES), default="random")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and images")
    parser.add_argument("--exact", action="store_true", help="compare with TensorFlow in float64 as well")
    given = parser.parse_args()

    import tf_adapter

    assert tf_adapter
    script = at_a_constant_rate(given.size)
    batches = IMAGES[given.images](script, given.batch, given.seed)
    plain = Training(script, CPU, seed=given.seed)
    expected, rounded = plain.curve(batches), plain.curve(off_by_a_rounding(batches))
    ours = Training(script, NPU, seed=given.seed).curve(batches)
    exact = Training(script, CPU, "float64", given.seed).curve(batches) if given.exact else None
    show(expected, {"NPU": ours, "TensorFlow, inputs off by a rounding": rounded}, exact)
    return int(not np.abs(ours / expected - 1).max() <= TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
