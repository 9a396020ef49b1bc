"""State of a training: checkpoints, weights and saved models between the NPU and plain TensorFlow, kills, long runs."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_adapter  # noqa: F401

SCRIPT = Path(__file__).parent / "scripts" / "checkpointed.py"
KILLED = -9
TIMEOUT = 1800  # seconds; a busy machine is no failure
keras = tf.keras


def _run(*arguments: Any, plain: bool = False, code: int = 0) -> str:
    """What a program prints, with the NPU or in plain TensorFlow, which never imports the adapter."""
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "WITHOUT_NPU": "1" if plain else "0",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert done.returncode == code, done.stderr[-2000:]
    return done.stdout


def _losses(text: str) -> dict[int, str]:
    return {int(n): loss for n, loss in (line.split() for line in text.splitlines())}


def _numbers(losses: dict[int, str], steps: range) -> list[float]:
    return [float.fromhex(losses[n]) for n in steps]


@dataclass(frozen=True)
class Killed:
    """A run that was killed after step 17: where its checkpoint of step 10 is, and its losses."""

    folder: Path
    losses: dict[int, str]

    def copy(self, target: Path) -> Path:
        """A folder to go on in. Checkpoints are named relative to theirs."""
        shutil.copytree(self.folder, target)
        return target


def _killed(folder: Path, plain: bool) -> Killed:
    losses = _losses(_run(SCRIPT, folder, 30, 17, plain=plain, code=KILLED))
    assert sorted(losses) == list(range(18))
    return Killed(folder, losses)


@pytest.fixture(scope="module")
def on_npu(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    return _killed(tmp_path_factory.mktemp("npu") / "run", plain=False)


@pytest.fixture(scope="module")
def on_plain(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    return _killed(tmp_path_factory.mktemp("plain") / "run", plain=True)


def test_a_killed_run_goes_on_with_identical_losses(on_npu: Killed, tmp_path: Path) -> None:
    whole = _losses(_run(SCRIPT, tmp_path / "whole", 30))
    rest = _losses(_run(SCRIPT, on_npu.copy(tmp_path / "again"), 30))
    assert sorted(rest) == list(range(10, 30))
    assert {**on_npu.losses, **rest} == whole
    assert all(on_npu.losses[n] == rest[n] for n in range(10, 18))


@pytest.mark.parametrize("npu_first", [True, False])
def test_checkpoints_go_both_ways(on_npu: Killed, on_plain: Killed, tmp_path: Path, npu_first: bool) -> None:
    folder = (on_npu if npu_first else on_plain).copy(tmp_path / "mixed")
    rest = _losses(_run(SCRIPT, folder, 18, plain=npu_first))
    assert sorted(rest) == list(range(10, 18))
    steps = range(10, 18)
    np.testing.assert_allclose(_numbers(rest, steps), _numbers(on_plain.losses, steps), rtol=1e-3)
    np.testing.assert_allclose(_numbers(rest, steps), _numbers(on_npu.losses, steps), rtol=1e-3)


@pytest.mark.parametrize("moment", ["merge", "record"])
def test_a_crash_while_saving_leaves_the_previous_checkpoint(
    on_npu: Killed, tmp_path: Path, moment: str
) -> None:
    _run(SCRIPT, tmp_path, 30, moment, code=KILLED)
    found, wanted = (
        tf.train.load_checkpoint(tf.train.latest_checkpoint(str(folder)))
        for folder in (tmp_path, on_npu.folder)
    )
    names = found.get_variable_to_shape_map()
    assert names == wanted.get_variable_to_shape_map()
    for name in names:
        if name != "_CHECKPOINTABLE_OBJECT_GRAPH":
            np.testing.assert_array_equal(found.get_tensor(name), wanted.get_tensor(name), err_msg=name)


def _model() -> Any:
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(2)]
    )
    model.compile("adam", "mse", jit_compile=False)
    return model


X = np.random.default_rng(0).standard_normal((16, 6)).astype(np.float32)
_PLAIN = """
import sys, numpy as np, tensorflow as tf
path, data, result = sys.argv[1:]
assert "tf_adapter" not in sys.modules and not tf.config.list_physical_devices("NPU")
x = np.load(data)
if path.endswith(".saved"):
    loaded = tf.saved_model.load(path)
    found = loaded.call(tf.constant(x))
else:
    found = tf.keras.models.load_model(path)(x)
np.save(result, np.asarray(found))
"""


class _Module(tf.Module):
    """A model as tf.saved_model writes it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.held = [getattr(v, "value", v) if hasattr(v, "path") else v for v in model.variables]
        self.model = model

    @tf.function(input_signature=[tf.TensorSpec([None, 6])])
    def call(self, x: Any) -> Any:
        return self.model(x)


@pytest.mark.parametrize("kind", [".keras", ".saved"])
def test_models_trained_on_the_npu_load_in_plain_tensorflow(tmp_path: Path, kind: str) -> None:
    model = _model()
    model.fit(X, X[:, :2], epochs=2, batch_size=4, verbose=0)
    path, data, result = tmp_path / f"model{kind}", tmp_path / "x.npy", tmp_path / "y.npy"
    tf.saved_model.save(_Module(model), str(path)) if kind == ".saved" else model.save(path)
    np.save(data, X)
    _run("-c", _PLAIN, path, data, result, plain=True)
    np.testing.assert_allclose(np.load(result), np.asarray(model(X)), rtol=1e-4, atol=1e-5)


def test_weights_are_those_of_the_last_step(tmp_path: Path) -> None:
    model = _model()
    model.fit(X, X[:, :2], epochs=2, batch_size=4, verbose=0)
    path = str(tmp_path / "w.weights.h5")
    model.save_weights(path)
    before = model.get_weights()
    model.fit(X, X[:, :2], epochs=1, batch_size=4, verbose=0)
    assert any(np.any(a != b) for a, b in zip(model.get_weights(), before, strict=True))
    model.load_weights(path)
    for found, wanted in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, wanted)
    other = _model()
    other.load_weights(path)
    np.testing.assert_allclose(np.asarray(other(X)), np.asarray(model(X)), rtol=1e-5, atol=1e-6)


def _objects() -> int:
    """How many objects Python's collector knows."""
    gc.collect()
    return len(gc.get_objects())


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _long_run(steps: int) -> None:
    model = _model()
    optimizer = keras.optimizers.Adam(1e-3)

    @tf.function(jit_compile=False)
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - x[:, :2]))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    x = tf.constant(X)
    losses = [float(step(x)) for _ in range(steps // 5)]
    before, objects = _resident(), _objects()
    losses += [float(step(x)) for _ in range(steps - len(losses))]
    assert losses[-1] < losses[0]
    assert _resident() - before < 24 << 20
    assert _objects() - objects < steps // 4  # a step that keeps something slows the next ones down


def test_a_thousand_steps_keep_nothing() -> None:
    _long_run(1000)


@pytest.mark.slow
def test_ten_thousand_steps_keep_nothing() -> None:
    _long_run(10_000)
