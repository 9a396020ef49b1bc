"""Keras training in a session with every optimizer: losses on the NPU and in plain TensorFlow, and what ran where."""

import json
import sys

import numpy as np
import tensorflow as tf
import tensorflow.compat.v2 as version2

from npu_bridge.npu_init import *

LEGACY = tf.keras.optimizers.legacy if hasattr(tf.keras.optimizers, "legacy") else tf.keras.optimizers
NAMES = ["SGD", "Adam", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam", "Ftrl"]
rng = np.random.default_rng(0)
data = rng.integers(0, 30, (96, 4)).astype("f")
wanted = rng.normal(size=(96, 1)).astype("f")


def trained(name, offload):
    tf.keras.backend.clear_session()
    config = npu_config_proto()
    config.graph_options.rewrite_options.custom_optimizers[0].parameter_map["use_off_line"].b = offload
    session = set_keras_session_npu_config(config)
    tf.set_random_seed(1)
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Embedding(30, 5, input_length=4),
            layers.Flatten(),
            layers.Dense(8, activation="tanh"),
            layers.BatchNormalization(),
            layers.Dense(1),
        ]
    )
    optimizer = getattr(LEGACY, name)(0.01, **({"momentum": 0.9} if name == "SGD" else {}))
    model.compile(optimizer, "mse", ["mae"])
    history = model.fit(data, wanted, batch_size=32, epochs=3, verbose=0, shuffle=False)
    losses = history.history.pop("loss")
    (metric,) = history.history.values()
    found = {"losses": losses, "metric": [float(v) for v in metric]}
    reports = [done.report for _, done, _ in session._npu_runs.values()]
    if offload:
        report = max(reports, key=lambda r: len(r.operations))
        found["parts"] = report.parts
        found["npu"] = sorted({p.type for p in report.operations if p.side == "npu"})
        found["host"] = sorted({f"{p.type}: {p.reason}" for p in report.operations if p.side == "host"})
    close_session(session)
    return found


def newer(offload):
    """What TensorFlow says when a model of a session is compiled with an optimizer of version 2's own kind."""
    config = npu_config_proto()
    config.graph_options.rewrite_options.custom_optimizers[0].parameter_map["use_off_line"].b = offload
    session = set_keras_session_npu_config(config)
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
    try:
        model.compile(version2.keras.optimizers.Adam(0.01), "mse")
        return "compiled"
    except NotImplementedError as error:
        return str(error)
    finally:
        close_session(session)


if sys.argv[1:] == ["newer"]:
    print(json.dumps([newer(True), newer(False)]))
else:
    print(json.dumps({name: [trained(name, True), trained(name, False)] for name in sys.argv[1:] or NAMES}))
