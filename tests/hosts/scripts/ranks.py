"""Training whose gradients `npu_device.distribute` averages over MPI, kept after every step: `ranks.py folder`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import npu_device
from hccl.manage.api import get_rank_id, get_rank_size

FOLDER, STEPS, ROWS = Path(sys.argv[1]), 30, 4
STATE = FOLDER / "state.json"

npu_device.open().as_default()
rank = get_rank_id()
assert get_rank_size() == 2
rng = np.random.default_rng(0)
shapes = ((6, 32), (32, 1))
weights = [tf.Variable(rng.standard_normal(shape).astype(np.float32) / 8) for shape in shapes]
losses: list[float] = []
if STATE.exists():
    saved = json.loads(STATE.read_text())
    losses = saved["losses"]
    for weight, value in zip(weights, saved["weights"], strict=True):
        weight.assign(np.asarray(value, np.float32))


@tf.function
def gradients(x: Any) -> Any:
    with tf.GradientTape() as tape:
        y = tf.tanh(x @ weights[0]) @ weights[1]
        loss = tf.reduce_mean(tf.square(y - tf.reduce_sum(x, 1, keepdims=True)))
    return [loss, *tape.gradient(loss, weights)]


print(f"rank {rank} begins at step {len(losses)}", flush=True)
for step in range(len(losses), STEPS):
    rows = np.random.default_rng(step).standard_normal((2 * ROWS, 6)).astype(np.float32)
    loss, *slopes = npu_device.distribute.all_reduce(gradients(tf.constant(rows[ROWS * rank :][:ROWS])))
    for weight, slope in zip(weights, slopes, strict=True):
        weight.assign_sub(0.05 * slope)
    losses.append(float(loss))
    if rank == 0:
        state = {"losses": losses, "weights": [weight.numpy().tolist() for weight in weights]}
        STATE.with_suffix(".new").write_text(json.dumps(state))
        STATE.with_suffix(".new").replace(STATE)
        (FOLDER / "step").write_text(str(step))
    time.sleep(0.1)  # the test ends a host in the middle
if rank == 0:
    (FOLDER / "losses.json").write_text(json.dumps(losses))
