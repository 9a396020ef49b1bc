"""Train over all NPUs with BackupAndRestore, killed in an epoch: `resumed.py folder [epoch]`; prints losses as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import numpy as np
import tensorflow as tf

import tf_adapter

FOLDER, KILLED = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else -1
ROWS = np.random.default_rng(0).standard_normal((32, 6)).astype(np.float32)
EPOCHS = 5


class Kill(tf.keras.callbacks.Callback):
    """End the process in the middle of an epoch, as a machine that fails does."""

    epoch = -1

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.epoch == KILLED and batch == 1:
            os.kill(os.getpid(), signal.SIGKILL)


assert tf_adapter.__file__
tf.keras.utils.set_random_seed(1)
layers = tf.keras.layers
with tf.distribute.MirroredStrategy().scope():
    model = tf.keras.Sequential([layers.Input((6,)), layers.Dense(8, "tanh"), layers.Dense(1)])
    model.compile(tf.keras.optimizers.Adam(0.05), "mse")
history = model.fit(
    ROWS,
    ROWS.sum(1, keepdims=True),
    batch_size=8,
    epochs=EPOCHS,
    shuffle=False,
    verbose=0,
    callbacks=[tf.keras.callbacks.BackupAndRestore(FOLDER), Kill()],
)
print(json.dumps(history.history["loss"]))
