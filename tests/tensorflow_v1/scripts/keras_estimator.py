"""A Keras model as an estimator, and recurrent Keras layers in a session: results and what ran where."""

import json
import tempfile

import numpy as np
import tensorflow as tf

from npu_bridge.npu_init import *

rng = np.random.default_rng(0)
data = rng.normal(size=(64, 5, 3)).astype("f")
wanted = data.sum((1, 2), keepdims=False)[:, None].astype("f")


def network():
    layers = tf.keras.layers
    inputs = tf.keras.Input((5, 3), name="x")
    net = layers.LSTM(6, kernel_initializer=tf.keras.initializers.glorot_uniform(seed=1))(inputs)
    model = tf.keras.Model(inputs, layers.Dense(1, name="y")(net))
    model.compile(tf.keras.optimizers.legacy.Adam(0.05), "mse")
    return model


def fitted(offload):
    tf.keras.backend.clear_session()
    config = npu_config_proto()
    config.graph_options.rewrite_options.custom_optimizers[0].parameter_map["use_off_line"].b = offload
    session = set_keras_session_npu_config(config)
    tf.set_random_seed(1)
    history = network().fit(data, wanted, batch_size=16, epochs=3, verbose=0, shuffle=False)
    found = {"losses": history.history["loss"]}
    if offload:
        report = max((d.report for _, d, _ in session._npu_runs.values()), key=lambda r: len(r.operations))
        found["parts"] = report.parts
        found["share"] = len(report.on_npu()) / len(report.operations)
        found["host"] = sorted({f"{p.type}: {p.reason}" for p in report.operations if p.side == "host"})
    close_session(session)
    return found


def estimated():
    tf.keras.backend.clear_session()
    tf.set_random_seed(1)
    config = NPURunConfig(model_dir=tempfile.mkdtemp(), save_checkpoints_steps=20)
    estimator = keras_to_npu.model_to_npu_estimator(network(), config=config)

    def inputs():
        return tf.data.Dataset.from_tensor_slices(({"x": data}, wanted)).repeat(10).batch(16)

    def once():
        return tf.data.Dataset.from_tensor_slices(({"x": data}, wanted)).batch(16)

    before = None
    estimator.train(inputs, steps=1)
    before = estimator.evaluate(once)["loss"]
    estimator.train(inputs, steps=39)
    predicted = [p["y"][0] for p in estimator.predict(once)]
    after = estimator.evaluate(once)
    error = float(np.mean((np.array(predicted) - wanted[:, 0]) ** 2))
    return {
        "before": float(before),
        "after": float(after["loss"]),
        "step": int(after["global_step"]),
        "error": error,
    }


print(json.dumps({"fit": [fitted(True), fitted(False)], "estimator": estimated()}))
