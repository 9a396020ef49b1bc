"""The migration guide's training script on the NPU: its loss falls as it does in TensorFlow.

A residual network from random weights amplifies rounding: an activation near zero that comes out on its other side
changes the gradient by a whole term, and AdamW's first step is the gradient's sign. What is compared here is therefore
the script with residual branches that begin as nothing (a last scale of 0, as such networks are usually started),
where TensorFlow agrees with itself when its inputs are off by a rounding. Every step's loss counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

K = tf.keras
L = K.layers
BATCH, BATCHES, EPOCHS = 16, 2, 10
CPU, NPU = "/CPU:0", "/NPU:0"


@dataclass(frozen=True)
class Script:
    """What the script is given: a network, images of its size and a learning rate."""

    network: Callable[[], Any]
    size: int
    classes: int
    rate: Callable[[], Any]


def _normalised(x: Any, first: str = "ones") -> Any:
    return L.BatchNormalization(gamma_initializer=first)(x)


def _block(x: Any, width: int, stride: int) -> Any:
    y = L.ReLU()(_normalised(L.Conv2D(width, 1, stride)(x)))
    y = L.ReLU()(_normalised(L.Conv2D(width, 3, padding="same")(y)))
    y = _normalised(L.Conv2D(4 * width, 1)(y), "zeros")
    if x.shape[-1] != 4 * width:
        x = _normalised(L.Conv2D(4 * width, 1, stride)(x))
    return L.ReLU()(L.Add()([x, y]))


def small_resnet() -> Any:
    """ResNet50's beginning, blocks and end, with fewer and narrower blocks."""
    x = inputs = K.Input((32, 32, 3))
    x = L.ReLU()(_normalised(L.Conv2D(16, 7, 2, padding="same")(x)))
    x = L.MaxPooling2D(3, 2, padding="same")(x)
    for width, stride in ((8, 1), (8, 1), (16, 2), (16, 1), (32, 2), (32, 1)):
        x = _block(x, width, stride)
    return K.Model(inputs, L.Dense(10, activation="softmax")(L.GlobalAveragePooling2D()(x)))


def resnet50() -> Any:
    model = K.applications.ResNet50(weights=None, classes=1000, input_shape=(64, 64, 3))
    for layer in model.layers:
        if layer.name.endswith("_3_bn"):
            layer.gamma.assign(tf.zeros_like(layer.gamma))
    return model


def warming_up() -> Any:
    return K.optimizers.schedules.CosineDecay(3e-6, 10_000, warmup_target=1e-3, warmup_steps=300)


SCRIPTS = {
    "small": Script(small_resnet, 32, 10, lambda: 1e-3),
    "resnet50": Script(resnet50, 64, 1000, warming_up),
}


def images(script: Script) -> tuple[np.ndarray, np.ndarray]:
    """Ten patterns to be told apart, with noise."""
    random = np.random.default_rng(2)
    small = random.standard_normal((10, 7, 7, 3)).astype(np.float32)
    with tf.device(CPU):
        patterns = tf.image.resize(small, (script.size, script.size), "bicubic").numpy()
    numbers = random.integers(0, 10, BATCH * BATCHES)
    noise = random.standard_normal((len(numbers), script.size, script.size, 3))
    x = (patterns[numbers] + 0.5 * noise).astype(np.float32)
    return x, np.eye(script.classes, dtype=np.float32)[numbers]


class Training:
    """The script on a device, from weights that are the same on all of them."""

    def __init__(self, script: Script, device: str) -> None:
        self.device = device
        with tf.device(CPU):
            K.utils.set_random_seed(11)
            weights = script.network().get_weights()
        with tf.device(device):
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

    def curve(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The loss of every step, from the first weights."""
        with tf.device(self.device):
            for variable, value in zip(self._state, self._first, strict=True):
                variable.assign(value)
            dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
            return np.array([float(self._step(*batch)) for _ in range(EPOCHS) for batch in dataset])


@pytest.mark.parametrize("name", ["small", pytest.param("resnet50", marks=pytest.mark.slow)])
def test_the_loss_falls_as_in_tensorflow(name: str) -> None:
    script = SCRIPTS[name]
    x, y = images(script)
    plain = Training(script, CPU)
    expected = plain.curve(x, y)
    assert len(expected) == 20 and expected[-1] < 0.75 * expected[0]
    rounded = x * (1 + np.random.default_rng(3).choice([-1, 1], x.shape) * 2.0**-23)
    np.testing.assert_allclose(plain.curve(rounded.astype(np.float32), y), expected, rtol=1e-3)
    np.testing.assert_allclose(Training(script, NPU).curve(x, y), expected, rtol=1e-3)
