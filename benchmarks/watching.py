"""What being watched costs: runs with counters for `tf-adapter top`, and while `tf-adapter profile` records.

Graphs and a training step of Keras are loaded twice, before and after the process publishes its counters, and run on
one thread. The ways are interleaved; the median of the ratios of processor time to the way that nobody watches counts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ |= {"NPU_TOP": "0", "NPU_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}

import numpy as np

import ge
import npu_runtime
from npu_runtime import activity

MOST = 1.03  # of the time without anybody watching
GRAPHS = {"ten operators": (1, 16, 5), "small step": (32, 256, 4), "large step": (256, 512, 4)}
COUNTS = {"ten operators": 200, "small step": 20, "large step": 2, "Keras step": 10}
Call = Callable[[], object]


def graph_call(name: str) -> Call:
    """A compiled graph on its input."""
    g = ge.Graph(name)
    rows, width, layers = GRAPHS[name]
    rng = np.random.default_rng(0)
    x = g.input("x", (rows, width), "float32")
    for _ in range(layers):
        weights = rng.standard_normal((width, width), np.float32) / np.float32(width**0.5)
        x = ge.ops.softmax(ge.ops.matmul(x, weights))
    g.output(x, "y")
    model = ge.compile(g)
    given = np.ones((rows, width), np.float32)
    return lambda: model(given)


def keras_call() -> Call:
    """A training step of a small network, compiled."""
    import keras

    layers = [keras.Input([64]), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = np.ones((32, 64), np.float32), np.zeros(32, np.int64)

    def step() -> object:
        return model.train_on_batch(x, y)

    for _ in range(20):
        step()
    return step


def calls() -> dict[str, Call]:
    return {name: graph_call(name) for name in GRAPHS} | {"Keras step": keras_call()}


def record(on: bool) -> None:
    """Record as `tf-adapter profile` does, or stop."""
    from npu_runtime import tensorflow as native

    npu_runtime.set_recording(on)
    native.set_timeline(on)


def measured(call: Call, count: int) -> float:
    """Seconds of processor time of one call."""
    begin = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - begin) / count


def ratios(name: str, plain: Call, watched: Call, rounds: int) -> tuple[float, float, float]:
    """Seconds of a run that nobody watches, and the times of the others relative to it."""
    count, times = COUNTS[name], {way: [0.0] * rounds for way in ("plain", "top", "profile")}
    for i in range(rounds):
        for way in ("plain", "top", "profile") if i % 2 else ("profile", "top", "plain"):
            record(way == "profile")
            times[way][i] = measured(plain if way == "plain" else watched, count)
    record(False)
    npu_runtime.take_recording()
    relative = [
        statistics.median(found / plain for found, plain in zip(times[way], times["plain"], strict=True))
        for way in ("top", "profile")
    ]
    return min(times["plain"]), relative[0], relative[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    rounds = 5 if parser.parse_args().quick else 201
    import tf_adapter  # noqa: F401  # before Keras, so that it runs on the NPU

    plain = calls()
    os.environ["NPU_TOP"] = "1"
    activity.publish(again=True)
    watched = calls()
    print(f"{'':<16} {'run':>10} {'top':>7} {'profile':>8}   at most {MOST:.2f}×")
    for name in plain:
        run, top, profile = ratios(name, plain[name], watched[name], rounds)
        print(f"{name:<16} {run * 1e6:>7.1f} µs {top:>6.3f}× {profile:>7.3f}×")


if __name__ == "__main__":
    main()
