"""Observes a script for `tf-adapter profile`: the tasks of every run, framework calls, host calls."""

from __future__ import annotations

import contextlib
import importlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ge.distributions import ascend

__all__ = ["program_tasks", "watch"]

MOST_SPANS = 300_000  # in the timeline; kernel times include all


@contextlib.contextmanager
def watch(framework: str, result: Path) -> Iterator[None]:
    """Record the runs of a script and write them as JSON when it ends."""
    import npu_runtime

    npu_runtime.set_recording(True)
    _time_calls(framework)
    began = time.monotonic_ns()
    try:
        yield
    finally:
        npu_runtime.set_recording(False)
        result.write_text(json.dumps(_recorded(framework, began, time.monotonic_ns()), allow_nan=False))


def _time_calls(framework: str) -> None:
    """Enable timing of TensorFlow's calls, after loading its front door, which resets the timeline from its options."""
    if not framework.startswith("tensorflow"):
        return
    if framework == "tensorflow1":
        ascend("npu_bridge.version1").install()
        ascend("npu_bridge.npu_init")
    else:
        importlib.import_module("tf_adapter")
    importlib.import_module("npu_runtime.tensorflow").set_timeline(True)


def _recorded(framework: str, began: int, ended: int) -> dict[str, Any]:
    import npu_runtime
    from ge.target import host
    from npu_runtime.activity import host_spans

    programs, spans, dropped = npu_runtime.take_recording()
    target = host()
    return {
        "framework": framework,
        "began": began,
        "ended": ended,
        "target": f"{target.isa}, {target.cores} threads",
        "roof": {"flops": 1 / target.seconds(1.0, 0.0), "bytes": 1 / target.seconds(0.0, 1.0)},
        "programs": [_program(*program) for program in programs],
        "spans": spans[:MOST_SPANS].tolist(),
        "dropped": dropped + max(0, len(spans) - MOST_SPANS),
        "calls": _calls(framework),
        "host": [list(span) for span in host_spans],
    }


def _program(
    number: int, name: str, runs: int, nanoseconds: int, calls: list[int], self_times: list[int]
) -> dict[str, Any]:
    rows = program_tasks(number, name, runs, nanoseconds, calls, self_times)
    return {"number": number, "name": name, "runs": runs, "seconds": nanoseconds / 1e9, "tasks": rows}


def program_tasks(
    number: int, name: str, runs: int, nanoseconds: int, calls: list[int], self_times: list[int]
) -> list[dict[str, Any]]:
    """Tasks of a recorded program, with calls and total seconds."""
    from ge.profile import recorded_tasks

    del name, runs, nanoseconds
    return [
        asdict(task) | {"calls": count, "seconds": own / 1e9}
        for task, count, own in zip(recorded_tasks.get(number, ()), calls, self_times, strict=False)
    ]


def _calls(framework: str) -> list[list[Any]]:
    """Functions and operators that TensorFlow has called: name, on the NPU, thread, start, end."""
    if not framework.startswith("tensorflow"):
        return []
    from npu_runtime import tensorflow as native

    return [list(span) for span in native.take_timeline()[:MOST_SPANS]]
