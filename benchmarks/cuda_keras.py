"""Keras networks on one GPU: TensorFlow on /NPU:0 beside Keras on JAX, from the same weights, answers checked.

`python -m benchmarks.cuda_keras` needs a GPU, TensorFlow and JAX. Each side of a row is a process: all compile at the
same time and are timed one after another, over consecutive calls on inputs that are in the GPU's memory. Inference is
in mixed float16, a training step (momentum) in mixed bfloat16. Errors are relative to TensorFlow in float32 on the CPU.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

ROWS = ("ResNet50:1", "ResNet50:32", "BERT:1", "BERT:32", "ResNet50:64:train")
POLICIES = {"infer": "mixed_float16", "train": "mixed_bfloat16"}
RATE, MOMENTUM, STEPS = 1e-3, 0.9, 4
WARM_UP, ROUNDS, CALLS = 40, 7, 30  # a function whose variables rest has its final form after the first
Run = Callable[[], Any]


def build(name: str, policy: str, quick: bool) -> Any:
    """A network of Keras; its weights are the same numbers on every side."""
    import keras

    from benchmarks.keras_models import MODELS

    keras.mixed_precision.set_dtype_policy(policy)
    model = MODELS[name].build(quick)
    rng = np.random.default_rng(1)
    model.set_weights([_weight(w, rng) for w in model.weights])
    return model


def _weight(weight: Any, rng: np.random.Generator) -> np.ndarray:
    shape, name = tuple(weight.shape), weight.path.rsplit("/", 1)[-1]
    noise = rng.standard_normal(shape)
    if name == "moving_variance":
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    if len(shape) < 2:
        return (0.1 * noise + (name == "gamma")).astype(np.float32)
    fan_in = shape[1] if name == "embeddings" else math.prod(shape[:-1])
    return (noise / fan_in**0.5).astype(np.float32)


def targets(model: Any, batch: int) -> np.ndarray:
    """A class for each element of a batch."""
    return np.random.default_rng(3).integers(0, model.output_shape[-1], batch).astype(np.int32)


def _loss_and_optimizer() -> tuple[Any, Any]:
    import keras

    return (
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        keras.optimizers.SGD(RATE, momentum=MOMENTUM),
    )


def on_npu(name: str, x: np.ndarray, training: bool, quick: bool) -> tuple[Run, Callable[[Any], np.ndarray]]:
    """A call through TensorFlow on /NPU:0, and what waits for its result and fetches it."""
    import tensorflow as tf

    with tf.device("/NPU:0"):
        model = build(name, POLICIES["train" if training else "infer"], quick)
        fed = tf.constant(x)
        if not training:
            infer = tf.function(lambda x: model(x, training=False))
            return lambda: infer(fed), lambda y: y.numpy()
        loss_fn, optimizer = _loss_and_optimizer()
        optimizer.build(model.trainable_variables)
        labels = tf.constant(targets(model, len(x)))

        @tf.function
        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_fn(y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return lambda: step(fed, labels), lambda y: y.numpy()


def on_cpu(name: str, x: np.ndarray, training: bool, quick: bool) -> np.ndarray:
    """TensorFlow's result in float32; in training, the loss of the first step."""
    import tensorflow as tf

    with tf.device("/CPU:0"):
        model = build(name, "float32", quick)
        y = tf.function(lambda x: model(x, training=training))(tf.constant(x))
        if not training:
            return y.numpy()
        return _loss_and_optimizer()[0](tf.constant(targets(model, len(x))), y).numpy()


def on_jax(name: str, x: np.ndarray, training: bool, quick: bool) -> tuple[Run, Callable[[Any], np.ndarray]]:
    """The same in JAX: Keras's stateless calls, jitted, with donated state."""
    import jax
    import jax.numpy as jnp

    model = build(name, POLICIES["train" if training else "infer"], quick)
    weights, rest = (
        [v.value for v in vs] for vs in (model.trainable_variables, model.non_trainable_variables)
    )
    fed = jnp.asarray(x)
    if not training:
        infer = jax.jit(lambda w, r, x: model.stateless_call(w, r, x, training=False)[0])
        return lambda: infer(weights, rest, fed), np.asarray
    loss_fn, optimizer = _loss_and_optimizer()
    optimizer.build(model.trainable_variables)
    labels = jnp.asarray(targets(model, len(x)))

    def loss_of(w: Any, r: Any, x: Any, y: Any) -> tuple[Any, Any]:
        found, r = model.stateless_call(w, r, x, training=True)
        return loss_fn(y, found), r

    def update(state: Any, x: Any, y: Any) -> tuple[Any, Any]:
        w, r, o = state
        (loss, r), gradients = jax.value_and_grad(loss_of, has_aux=True)(w, r, x, y)
        w, o = optimizer.stateless_apply(o, gradients, w)
        return (w, r, o), loss

    step = jax.jit(update, donate_argnums=0)
    state = [(weights, rest, [v.value for v in optimizer.variables])]

    def run() -> Any:
        state[0], loss = step(state[0], fed, labels)
        return loss

    return run, np.asarray


def _consecutive(run: Run, fetch: Callable[[Any], Any], calls: int) -> float:
    """The seconds of a call among consecutive ones, until the last result is on the host."""
    start = time.perf_counter()
    for _ in range(calls):
        last = run()
    fetch(last)
    return (time.perf_counter() - start) / calls


def side(which: str, row: str, quick: bool) -> Iterator[tuple[str, Any]]:
    """What one side finds of a row."""
    if which == "npu":
        import tf_adapter

        assert tf_adapter
    from benchmarks.keras_models import MODELS

    name, batch, *train = row.split(":")
    x = MODELS[name].feed(int(batch), quick)
    began = time.perf_counter()
    run, fetch = (on_npu if which == "npu" else on_jax)(name, x, bool(train), quick)
    first = fetch(run())
    yield "first call s", time.perf_counter() - began
    yield "answer", np.asarray([first, *(fetch(run()) for _ in range(STEPS))] if train else first).tolist()
    if which == "npu":
        yield "expected", on_cpu(name, x, bool(train), quick).tolist()
    if not quick:
        _consecutive(run, fetch, WARM_UP)
    print("ready", flush=True)
    sys.stdin.readline()  # until the others have compiled, and those before it are measured
    yield (
        "ms",
        statistics.median(
            _consecutive(run, fetch, 1 if quick else CALLS) for _ in range(1 if quick else ROUNDS)
        )
        * 1e3,
    )
    if which == "npu":
        from tf_adapter import gpu

        before = gpu.copies()
        last = run()
        after = gpu.copies()
        yield "copies per call", sum(after[key] - before[key] for key in ("uploads", "downloads"))
        fetch(last)
        yield "hosted", gpu.hosted()


def _start(which: str, row: str, quick: bool) -> subprocess.Popen[str]:
    settings = {
        "KERAS_BACKEND": "tensorflow" if which == "npu" else "jax",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "NPU_DEVICE": "cuda",
    }
    command = [sys.executable, "-m", "benchmarks.cuda_keras", row, "--side", which, *["--quick"] * quick]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, env={**os.environ, **settings}, text=True, **pipes)


def _until_ready(process: subprocess.Popen[str]) -> str:
    """What a side prints until it has compiled, or ends."""
    assert process.stdout is not None
    told = ""
    for line in process.stdout:
        if line.strip() == "ready":
            break
        told += line
    return told


def _finish(process: subprocess.Popen[str], told: str) -> dict[str, Any]:
    out, _ = process.communicate("go\n" if process.poll() is None else None)
    lines = [line for line in out.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {"failed": (told + out)[-2000:]}


def error(answer: Any, expected: Any) -> float:
    """The relative error; of losses, of the first one."""
    a, b = np.asarray(answer, np.float64), np.asarray(expected, np.float64)
    a = a if a.shape == b.shape else a[0]
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def main() -> int:
    """Print one line for each row; the exit status says whether both sides ran and agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", default=ROWS, help="network:batch or network:batch:train")
    parser.add_argument("--quick", action="store_true", help="small networks")
    parser.add_argument("--alone", action="store_true", help="without JAX")
    parser.add_argument("--side", choices=("npu", "jax"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        print(json.dumps(dict(side(given.side, given.rows[0], given.quick))))
        return 0
    sides = ("npu", *["jax"] * (not given.alone))
    started = {(row, which): _start(which, row, given.quick) for row in given.rows for which in sides}
    told = {key: _until_ready(process) for key, process in started.items()}
    found = {key: _finish(process, told[key]) for key, process in started.items()}
    right = {row: _tell(row, {which: found[row, which] for which in sides}) for row in given.rows}
    return int(not all(right.values()))


def _tell(row: str, found: dict[str, dict[str, Any]]) -> bool:
    """Print a row; whether all sides ran and agree."""
    told, right = [row], True
    for which, done in found.items():
        if "failed" in done or "failed" in found["npu"]:
            told.append(f"{which} failed: {done.get('failed', '')}")
            right = False
            continue
        off = error(done["answer"], found["npu"]["expected"])
        right &= off < 5e-2
        told.append(f"{which} {done['ms']:.3f} ms, error {off:.1e}, first call {done['first call s']:.1f} s")
        if "train" in row:
            told.append("losses " + " ".join(f"{loss:.4f}" for loss in done["answer"]))
        if which == "npu":
            told.append(f"{done['copies per call']} copies, on the host {done['hosted']}")
    print("; ".join(told), flush=True)
    return right


if __name__ == "__main__":
    sys.exit(main())
