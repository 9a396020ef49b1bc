"""Ray's own trainers on NPUs that Ray finds by itself: `make test-ray`."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray", reason="make test-ray installs Ray and runs this")
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ray_training.py"

KERAS = """
import numpy as np, tensorflow as tf
rows = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
tf.keras.utils.set_random_seed(0)
layers = tf.keras.layers
model = tf.keras.Sequential([layers.Input((8,)), layers.Dense(16, "tanh"), layers.Dense(1)])
optimizer = tf.keras.optimizers.Adam(0.05)
for _ in range(8):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(rows) - rows.sum(1, keepdims=True)))
    weights = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    print(float(loss))
"""


def trained(framework: str) -> tuple[float, float]:
    """First and last loss of two workers."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), framework],
        env=os.environ | {"NPU_DEVICE_COUNT": "2", "RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    found = re.search(rf"{framework}: loss ([\d.]+) to ([\d.]+) in 8 steps", done.stdout)
    assert found, done.stdout[-4000:]
    return float(found[1]), float(found[2])


def test_torch_trainer_has_the_losses_of_one_process() -> None:
    import torch

    spec = importlib.util.spec_from_file_location("ray_training", EXAMPLE)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    losses = []
    for _ in range(example.STEPS):
        loss = torch.nn.functional.mse_loss(
            model(torch.from_numpy(example.ROWS)), torch.from_numpy(example.TARGETS)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    np.testing.assert_allclose(trained("torch"), (losses[0], losses[-1]), rtol=1e-4)


def test_tensorflow_trainer_has_the_losses_of_one_process() -> None:
    plain = subprocess.run(
        [sys.executable, "-c", KERAS], capture_output=True, text=True, check=True, timeout=600
    )
    losses = [float(line) for line in plain.stdout.split()]
    np.testing.assert_allclose(trained("tensorflow"), (losses[0], losses[-1]), rtol=1e-4)
