"""Keras training on the NPU beside the same training on the CPU: one import is the difference.

python examples/keras_training.py
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import tf_adapter


def train(device: str) -> list[float]:
    """Losses of three epochs of a small network on synthetic data, all seeds fixed."""
    tf.keras.utils.set_random_seed(7)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((256, 20)).astype(np.float32)
    labels = (x[:, :3].sum(axis=1) > 0).astype(np.int32)
    with tf.device(device):
        model = tf.keras.Sequential(
            [tf.keras.Input((20,)), tf.keras.layers.Dense(32, "relu"), tf.keras.layers.Dense(2)]
        )
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.Adam(0.01), loss)
        return model.fit(x, labels, batch_size=32, epochs=3, verbose=0).history["loss"]


def main() -> None:
    """Train on both devices and compare the losses."""
    on_npu = train("/NPU:0")
    tf_adapter.as_default(False)  # the NPU is the default device once tf_adapter is imported
    on_cpu = train("/CPU:0")
    for epoch, (npu, cpu) in enumerate(zip(on_npu, on_cpu, strict=True), 1):
        print(f"epoch {epoch}: loss {npu:.5f} on the NPU, {cpu:.5f} on the CPU")
    np.testing.assert_allclose(on_npu, on_cpu, rtol=1e-4)
    print(tf_adapter.explain(tf.function(lambda t: tf.nn.relu(t @ t)), tf.ones([4, 4])))


if __name__ == "__main__":
    main()
