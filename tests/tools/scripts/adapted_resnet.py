"""The migration guide's adapted script, with a smaller image."""

import tensorflow as tf
from tensorflow.keras.applications import ResNet50

import tf_adapter  # noqa: F401

with tf.device("/NPU:0"):
    model = ResNet50(weights=None, input_shape=(64, 64, 3), classes=10)
    image = tf.random.stateless_normal([1, 64, 64, 3], seed=[1, 2])
    output = model(image)

print("Output shape:", output.shape)
