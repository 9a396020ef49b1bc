"""The migration guide's original script, with a smaller image and random weights."""

import tensorflow as tf
from tensorflow.keras.applications import ResNet50

model = ResNet50(weights=None, input_shape=(64, 64, 3), classes=10)
image = tf.random.normal([1, 64, 64, 3])
output = model(image)
print(output.shape)
