"""What being watched costs: runs of models with counters for `tf-adapter top`, and while `tf-adapter profile` records.

Every model is loaded twice, before and after the process publishes its counters; runs are interleaved, and the least
time of each way counts. Prints the time of a run and the ratios to the way that nobody watches.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

os.environ["NPU_TOP"] = "0"

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
        "large step": (256, 1024, 4),
    }[name]
    rng = np.random.default_rng(0)
    x = g.input("x", (rows, width), "float32")
    for _ in range(layers):
        weights = rng.standard_normal((width, width), np.float32) / np.float32(width**0.5)
        x = ge.ops.softmax(ge.ops.matmul(x, weights))
    g.output(x, "y")
    return g, (rows, width)


def best(call: Callable[[], object], count: int) -> float:
    """Seconds of one call."""
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    rounds = 5 if parser.parse_args().quick else 200
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
            times["plain"].append(best(lambda: plain[name](x), count))  # noqa: B023
            times["top"].append(best(lambda: counted[name](x), count))  # noqa: B023
            npu_runtime.set_recording(True)
            times["profile"].append(best(lambda: counted[name](x), count))  # noqa: B023
            npu_runtime.set_recording(False)
            npu_runtime.take_recording()
        least = {way: min(found) for way, found in times.items()}
        ratios = [least[way] / least["plain"] for way in ("top", "profile")]
        print(f"{name:<16} {least['plain'] * 1e6:>7.1f} µs {ratios[0]:>6.3f}× {ratios[1]:>7.3f}×")


if __name__ == "__main__":
    main()
