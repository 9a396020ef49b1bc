"""A worker of `MultiWorkerMirroredStrategy` whose `fit` resumes from its last epoch: `workers.py folder` (Keras 2)."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tf_adapter

FOLDER, EPOCHS = Path(sys.argv[1]), 12
ROWS = np.random.default_rng(0).standard_normal((32, 6)).astype(np.float32)
KEPT = FOLDER / "kept.json"  # losses of the epochs that have ended

assert tf_adapter.__file__
strategy = tf.distribute.MultiWorkerMirroredStrategy(
    communication_options=tf.distribute.experimental.CommunicationOptions(timeout_seconds=60)
)
chief = strategy.cluster_resolver.task_id == 0


class Progress(tf.keras.callbacks.Callback):
    """Keeps the losses, and lasts long enough for the test to end a host in the middle."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        time.sleep(0.1)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if chief:
            losses = json.loads(KEPT.read_text())[:epoch] if KEPT.exists() else []
            KEPT.write_text(json.dumps([*losses, float(logs["loss"])]))
            (FOLDER / "step").write_text(str(epoch))


tf.keras.utils.set_random_seed(1)
layers = tf.keras.layers
with strategy.scope():
    model = tf.keras.Sequential([layers.Input((6,)), layers.Dense(8, "tanh"), layers.Dense(1)])
    model.compile(tf.keras.optimizers.Adam(0.05), "mse")
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
data = tf.data.Dataset.from_tensor_slices((ROWS, ROWS.sum(1, keepdims=True))).batch(8).with_options(options)
print("begins", flush=True)
model.fit(
    data,
    epochs=EPOCHS,
    verbose=0,
    callbacks=[tf.keras.callbacks.BackupAndRestore(str(FOLDER / "backup")), Progress()],
)
if chief:
    (FOLDER / "losses.json").write_text(KEPT.read_text())
