"""A small Keras classifier: trained, evaluated, asked, saved beside the script."""

import sys

import numpy as np
import tensorflow as tf

units = int(sys.argv[1]) if len(sys.argv) > 1 else 8
x = np.random.default_rng(0).standard_normal((512, 12, 12, 1)).astype("float32")
y = (x.mean((1, 2, 3)) > 0).astype("int64")
model = tf.keras.Sequential(
    [
        tf.keras.Input((12, 12, 1)),
        tf.keras.layers.Conv2D(units, 3, activation="relu"),
        tf.keras.layers.GlobalAveragePooling2D(),
        tf.keras.layers.Dense(2),
    ]
)
model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(x, y, batch_size=32, epochs=2, verbose=0)
model.evaluate(x[:64], y[:64], verbose=0)
print(model.predict(x[:8], verbose=0).shape)
model.save("model.keras")
