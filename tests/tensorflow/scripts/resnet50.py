"""The migration guide's example: a network on the NPU by one import and one with statement."""

import tensorflow as tf
from tensorflow.keras.applications import ResNet50

import tf_adapter  # noqa: F401

print("NPU devices:", tf.config.list_physical_devices())
assert any(d.device_type == "NPU" for d in tf.config.list_physical_devices())

with tf.device("/NPU:0"):
    model = ResNet50(weights=None, input_shape=(64, 64, 3))
    image = tf.random.normal([1, 64, 64, 3])
    output = model(image)

print("Output shape:", output.shape)
assert output.shape == (1, 1000)

with tf.device("/CPU:0"):
    reference = ResNet50(weights=None, input_shape=(64, 64, 3))
    reference.set_weights(model.get_weights())
    expected = reference(tf.constant(image.numpy()))
assert abs(output.numpy() - expected.numpy()).max() < 1e-4

tf.config.set_optimizer_experimental_options({"auto_mixed_precision": False})
