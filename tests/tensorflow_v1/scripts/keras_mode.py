"""Keras in a session: fit, evaluate, predict; and a Keras model as an estimator."""

import json
import sys

import numpy as np
import tensorflow as tf

from npu_bridge.npu_init import *

rng = np.random.default_rng(0)
x = rng.normal(size=(256, 6)).astype("f")
y = (x @ rng.normal(size=6) > 0).astype("f")[:, None]

config = npu_config_proto()
config.graph_options.rewrite_options.custom_optimizers[0].parameter_map["mix_compile_mode"].b = (
    sys.argv[1] == "mixed"
)
session = set_keras_session_npu_config(config)
tf.set_random_seed(1)
np.random.seed(1)  # Keras shuffles by it
model = tf.keras.Sequential(
    [
        tf.keras.layers.Dense(16, activation="relu", input_shape=(6,)),
        tf.keras.layers.BatchNormalization(),
        tf.keras.layers.Dropout(0.1),
        tf.keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(npu_keras_optimizer(tf.keras.optimizers.Adam(0.01)), "binary_crossentropy", ["accuracy"])
history = model.fit(x, y, batch_size=32, epochs=16, verbose=0, callbacks=npu_callbacks_append())
loss, accuracy = model.evaluate(x, y, verbose=0)
predicted = model.predict(x)
weights = model.get_weights()
hidden = np.maximum(x @ weights[0] + weights[1], 0)
hidden = (hidden - weights[4]) / np.sqrt(weights[5] + 1e-3) * weights[2] + weights[3]
expected = 1 / (1 + np.exp(-(hidden @ weights[6] + weights[7])))
print(
    json.dumps(
        {
            "losses": history.history["loss"],
            "accuracy": float(accuracy),
            "error": float(np.abs(predicted - expected).max()),
        }
    )
)
close_session(session)
