"""Estimator mode: train, evaluate, predict and export; prints what came out."""

import json
import sys
import tempfile

import numpy as np
import tensorflow as tf

from npu_bridge.npu_init import *

rng = np.random.default_rng(0)
features = rng.normal(size=(256, 6)).astype("f")
labels = (features @ rng.normal(size=6) > 0).astype(np.int64)
mixed, iterations = sys.argv[1] == "mixed", int(sys.argv[2])


def model_fn(features, labels, mode, params):
    net = tf.layers.dense(features["x"], params["width"], activation=tf.nn.relu)
    net = npu_ops.dropout(net, 0.9) if mode == tf.estimator.ModeKeys.TRAIN else net
    logits = tf.layers.dense(net, 2)
    predictions = {"class": tf.argmax(logits, 1), "probability": tf.nn.softmax(logits)}
    if mode == tf.estimator.ModeKeys.PREDICT:
        export = {"serving_default": tf.estimator.export.PredictOutput(predictions)}
        return NPUEstimatorSpec(mode, predictions=predictions, export_outputs=export)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    accuracy = tf.metrics.accuracy(labels, predictions["class"])
    if mode == tf.estimator.ModeKeys.EVAL:
        return NPUEstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy})
    manager = ExponentialUpdateLossScaleManager(init_loss_scale=1024, incr_every_n_steps=10)
    optimizer = npu_tf_optimizer(tf.train.AdamOptimizer(0.01))
    optimizer = NPULossScaleOptimizer(optimizer, manager)
    train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    return NPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def inputs(repeat):
    def input_fn():
        data = tf.data.Dataset.from_tensor_slices(({"x": features}, labels))
        return data.repeat(repeat).batch(32, drop_remainder=True)

    return input_fn


session_config = tf.ConfigProto(allow_soft_placement=True)
config = NPURunConfig(
    model_dir=tempfile.mkdtemp(),
    session_config=session_config,
    mix_compile_mode=mixed,
    iterations_per_loop=iterations,
    save_checkpoints_steps=40,
    precision_mode="must_keep_origin_dtype",
)
estimator = NPUEstimator(model_fn, config=config, params={"width": 16})
estimator.train(inputs(None), steps=80, hooks=npu_hooks_append())
found = estimator.evaluate(inputs(1))
predicted = [int(p["class"]) for p in estimator.predict(inputs(1))]
receiver = tf.estimator.export.build_raw_serving_input_receiver_fn(
    {"x": tf.placeholder(tf.float32, [None, 6])}
)
exported = estimator.export_saved_model(tempfile.mkdtemp(), receiver)
print(
    json.dumps(
        {
            "step": int(found["global_step"]),
            "accuracy": float(found["accuracy"]),
            "agreement": float(np.mean(np.array(predicted) == labels)),
            "checkpoint": estimator.latest_checkpoint().rsplit("-", 1)[-1],
            "exported": bool(exported),
        }
    )
)
