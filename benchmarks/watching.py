"""What being watched costs: runs of models with counters for `tf-adapter top`, and while `tf-adapter profile` records.

Every model is loaded twice, before and after the process publishes its counters, and runs on one thread. The ways are
interleaved; the median of the ratios of processor time to the way that nobody watches counts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ |= {"NPU_TOP": "0", "NPU_NUM_THREADS": "1"}

import numpy as np

import ge
import npu_runtime
from npu_runtime import activity


def graph(name: str) -> tuple[ge.Graph, tuple[int, ...]]:
    """A graph and the shape of its input."""
    g = ge.Graph(name)
    rows, width, layers = {
        "ten operators": (1, 16, 5),
        "small step": (32, 256, 4),
        "large step": (256, 512, 4),
    }[name]
    rng = np.random.default_rng(0)
    x = g.input("x", (rows, width), "float32")
    for _ in range(layers):
        weights = rng.standard_normal((width, width), np.float32) / np.float32(width**0.5)
        x = ge.ops.softmax(ge.ops.matmul(x, weights))
    g.output(x, "y")
    return g, (rows, width)


def measured(call: Callable[[], object], count: int) -> float:
    """Seconds of processor time of one call."""
    begin = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - begin) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    rounds = 5 if parser.parse_args().quick else 100
    names = ("ten operators", "small step", "large step")
    plain = {name: ge.compile(graph(name)[0]) for name in names}
    os.environ["NPU_TOP"] = "1"
    activity.publish(again=True)
    counted = {name: ge.compile(graph(name)[0]) for name in names}
    print(f"{'':<16} {'run':>10} {'top':>7} {'profile':>8}")
    for name in names:
        x = np.ones(graph(name)[1], np.float32)
        count = {"ten operators": 200, "small step": 20, "large step": 2}[name]
        times: dict[str, list[float]] = {"plain": [], "top": [], "profile": []}
        for _ in range(rounds):
            times["plain"].append(measured(lambda: plain[name](x), count))  # noqa: B023
            times["top"].append(measured(lambda: counted[name](x), count))  # noqa: B023
            npu_runtime.set_recording(True)
            times["profile"].append(measured(lambda: counted[name](x), count))  # noqa: B023
            npu_runtime.set_recording(False)
            npu_runtime.take_recording()
        ratios = [
            statistics.median(found / plain for found, plain in zip(times[way], times["plain"], strict=True))
            for way in ("top", "profile")
        ]
        run = min(times["plain"]) * 1e6
        print(f"{name:<16} {run:>7.1f} µs {ratios[0]:>6.3f}× {ratios[1]:>7.3f}×")


if __name__ == "__main__":
    main()
