"""The migration guide's training script on the NPU: its loss falls as it does in TensorFlow.

Compared is a form of the script in which TensorFlow agrees with itself when its inputs are off by a rounding. Every
step's loss counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.training_script import (
    CPU,
    NPU,
    STEPS,
    Script,
    Training,
    off_by_a_rounding,
    pattern_batches,
    resnet50,
)

K = tf.keras
L = K.layers


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


def warming_up() -> Any:
    return K.optimizers.schedules.CosineDecay(3e-6, 10_000, warmup_target=1e-3, warmup_steps=300)


SCRIPTS = {
    "small": Script(small_resnet, 32, 10, lambda: 1e-3),
    "resnet50": Script(lambda: resnet50(64), 64, 1000, warming_up),
}


@pytest.mark.parametrize("name", ["small", pytest.param("resnet50", marks=pytest.mark.slow)])
def test_the_loss_falls_as_in_tensorflow(name: str) -> None:
    script = SCRIPTS[name]
    batches = pattern_batches(script, 16)
    plain = Training(script, CPU)
    expected = plain.curve(batches)
    assert len(expected) == STEPS and expected[-1] < 0.75 * expected[0]
    np.testing.assert_allclose(plain.curve(off_by_a_rounding(batches)), expected, rtol=1e-3)
    np.testing.assert_allclose(Training(script, NPU).curve(batches), expected, rtol=1e-3)
