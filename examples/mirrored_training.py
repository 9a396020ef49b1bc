"""Training on several NPUs with MirroredStrategy beside the same training on one: the losses are the same.

NPU_DEVICE_COUNT=4 python examples/mirrored_training.py
"""

from __future__ import annotations

import os

os.environ.setdefault("NPU_DEVICE_COUNT", "2")  # before tf_adapter is imported

import numpy as np
import tensorflow as tf

import tf_adapter


def train(devices: list[str]) -> list[float]:
    """Losses of three epochs of a small network on synthetic images, all seeds fixed; the global batch is 32."""
    tf.keras.utils.set_random_seed(7)
    rng = np.random.default_rng(0)
    images = rng.standard_normal((128, 8, 8, 3)).astype(np.float32)
    labels = rng.integers(0, 10, 128)
    strategy = tf.distribute.MirroredStrategy(devices)
    with strategy.scope():
        layers = tf.keras.layers
        model = tf.keras.Sequential(
            [
                tf.keras.Input((8, 8, 3)),
                layers.Conv2D(8, 3, activation="relu"),
                layers.Flatten(),
                layers.Dense(10),
            ]
        )
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.AdamW(learning_rate=1e-3), loss)
    return model.fit(images, labels, batch_size=32, epochs=3, shuffle=False, verbose=0).history["loss"]


def main() -> None:
    """Train on all NPUs and on the first."""
    npus = [
        device.name.replace("/physical_device:", "/") for device in tf.config.list_physical_devices("NPU")
    ]
    on_all, on_one = train(npus), train(npus[:1])
    for epoch, (several, one) in enumerate(zip(on_all, on_one, strict=True), 1):
        print(f"epoch {epoch}: loss {several:.6f} on {len(npus)} NPUs, {one:.6f} on one")
    np.testing.assert_allclose(on_all, on_one, rtol=1e-5)
    assert tf_adapter.is_default()


if __name__ == "__main__":
    main()
