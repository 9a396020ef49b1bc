"""Trains a small model, writes a checkpoint every 10 steps, goes on from the last one; prints every loss.

checkpointed.py FOLDER STEPS [END]

END kills the process: "17" after that step, "merge" while the second checkpoint is written, "record" once its files are
there but before it is the latest. WITHOUT_NPU=1 in the environment: plain TensorFlow.
"""

import os
import signal
import sys
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint_management
from tensorflow.python.ops import gen_io_ops

if os.environ.get("WITHOUT_NPU") != "1":
    import tf_adapter  # noqa: F401

folder, steps = sys.argv[1], int(sys.argv[2])
end = sys.argv[3] if len(sys.argv) > 3 else ""
AT_SECOND = {
    "merge": (gen_io_ops, "merge_v2_checkpoints"),
    "record": (checkpoint_management, "update_checkpoint_state_internal"),
}


def kill(*_: Any, **__: Any) -> None:
    """As if the power went."""
    os.kill(os.getpid(), signal.SIGKILL)


def save() -> None:
    """Write a checkpoint, or die on the way."""
    if end in AT_SECOND and int(counter) == 20:
        setattr(*AT_SECOND[end], kill)
    manager.save()


tf.keras.utils.set_random_seed(1)
model = tf.keras.Sequential(
    [tf.keras.Input((8,)), tf.keras.layers.Dense(16, activation="tanh"), tf.keras.layers.Dense(1)]
)
optimizer = tf.keras.optimizers.Adam(0.01)
optimizer.build(model.trainable_variables)
counter = tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, counter=counter)
manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=2)
if manager.latest_checkpoint:
    checkpoint.restore(manager.latest_checkpoint).assert_existing_objects_matched()


@tf.function(jit_compile=False)
def step(x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    counter.assign_add(1)
    return loss


while int(counter) < steps:
    number = int(counter)
    x = np.random.default_rng(number).standard_normal((16, 8)).astype(np.float32)
    print(number, float(step(tf.constant(x), tf.constant(x[:, :1] * x[:, 1:2]))).hex(), flush=True)
    if end == str(number):
        kill()
    if int(counter) % 10 == 0:
        save()
