"""A small convolutional network on scanned digits learns on the NPU as well as in plain TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_adapter
from tests.tensorflow.comparing import CPU, NPU

datasets = pytest.importorskip("sklearn.datasets")

keras = tf.keras
L = keras.layers
SEEDS = range(5)
TRAINED = 1400  # of the 1797 images; the others are for the test
EPOCHS = 5
MODES = {"float32": "must_keep_origin_dtype", "bfloat16": "allow_mix_precision_bf16"}


def digits() -> tuple[np.ndarray, np.ndarray]:
    found = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    return (found.images[order, :, :, None] / 16.0).astype(np.float32), found.target[order]


def accuracy(seed: int, device: str) -> float:
    """The share of right answers on unseen images after training from a seed."""
    images, labels = digits()
    keras.utils.set_random_seed(seed)
    with tf.device(device):
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                L.Conv2D(16, 3, padding="same", activation="relu"),
                L.BatchNormalization(momentum=0.9),
                L.MaxPooling2D(),
                L.Conv2D(32, 3, padding="same", activation="relu"),
                L.Flatten(),
                L.Dropout(0.2),
                L.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(3e-3), loss, jit_compile=False)
        model.fit(images[:TRAINED], labels[:TRAINED], batch_size=64, epochs=EPOCHS, verbose=0)
        found = model.predict(images[TRAINED:], batch_size=128, verbose=0)
    return float((found.argmax(1) == labels[TRAINED:]).mean())


@pytest.fixture(scope="module")
def plain() -> np.ndarray:
    """The accuracies of plain TensorFlow."""
    return np.array([accuracy(seed, CPU) for seed in SEEDS])


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_it_reads_digits_as_well_as_plain_tensorflow(plain: Any, mode: str) -> None:
    with tf_adapter.options.override(precision_mode=MODES[mode]):
        found = np.array([accuracy(seed, NPU) for seed in SEEDS])
    print(f"plain {plain.mean():.4f} ± {plain.std():.4f}, {mode} {found.mean():.4f} ± {found.std():.4f}")
    assert plain.mean() > 0.95
    noise = max(plain.std(), found.std(), 1.0 / (1797 - TRAINED))
    assert abs(found.mean() - plain.mean()) < 2.0 * noise
