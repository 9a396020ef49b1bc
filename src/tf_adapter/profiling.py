"""Profiles: with `tf_adapter.options.profiling`, files about every call and every task in `profiling_dir`.

    timeline.json          when functions and operators ran, thread by thread, on the NPU or on the host (Perfetto)
    summary.csv            calls and times by function, the longest first
    tasks/NAME.csv, .json  the tasks of each compiled function: engine, implementation, shape, time, rate; a trace

Tasks are timed once, on the inputs a function is compiled for, without a change of its variables. Times of calls are
written when profiling is turned off and when the program ends; several times in a row continue the same files.
"""

from __future__ import annotations

import atexit
import csv
import json
import re
import statistics
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npu_runtime import tensorflow as native
from tf_adapter.options import options

if TYPE_CHECKING:
    from ge.model.model import Model
    from ge.profile import TaskProfile
    from tf_adapter.lowering import Described, Ports

__all__ = ["start", "tasks_of", "write"]

Span = tuple[str, bool, int, int, int]  # name, on the NPU, thread, start, end

_SUMMARY = ("function", "place", "calls", "total ms", "mean ms", "median ms", "least ms", "most ms")
_TASKS = ("name", "engine", "implementation", "type", "shape", "layout", "us", "GFLOP/s", "GB/s")
_lock = threading.Lock()
_REPEATS = 3


@dataclass
class _Measured:
    """What has been measured so far, and where it goes."""

    on: bool = False
    folder: Path = Path("npu_profile")
    spans: list[Span] = field(default_factory=list)


_state = _Measured()


def start() -> None:
    """Follow the options."""
    options.subscribe(_follow)
    atexit.register(_end)
    _follow()


def _follow() -> None:
    folder = options.profiling_dir or Path("npu_profile")
    if _state.on and not (options.profiling and folder == _state.folder):
        write()
    if folder != _state.folder:
        _state.folder, _state.spans = folder, []
    _state.on = options.profiling
    native.set_timeline(options.profiling)


def _end() -> None:
    if _state.on:
        write()


def write() -> Path:
    """Write what was measured up to now; the folder it is in."""
    with _lock:
        _state.spans += native.take_timeline()
        _state.folder.mkdir(parents=True, exist_ok=True)
        _write_timeline(_state.folder / "timeline.json", _state.spans)
        _write_summary(_state.folder / "summary.csv", _state.spans)
    return _state.folder


def _write_timeline(path: Path, spans: Sequence[Span]) -> None:
    first = min((span[3] for span in spans), default=0)
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "calls"}},
        *(
            {"ph": "M", "pid": 1, "tid": thread, "name": "thread_name", "args": {"name": f"thread {thread}"}}
            for thread in sorted({span[2] for span in spans})
        ),
    ]
    for name, on_npu, thread, begin, end in spans:
        times = {"ts": (begin - first) / 1e3, "dur": (end - begin) / 1e3}
        events.append({"ph": "X", "pid": 1, "tid": thread, "name": name, "cat": _place(on_npu), **times})
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}))


def _write_summary(path: Path, spans: Iterable[Span]) -> None:
    found: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for name, on_npu, _, begin, end in spans:
        found[name, on_npu].append((end - begin) / 1e6)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_SUMMARY)
        for (name, on_npu), times in sorted(found.items(), key=lambda item: -sum(item[1])):
            total = sum(times)
            figures = (total, total / len(times), statistics.median(times), min(times), max(times))
            writer.writerow([name, _place(on_npu), len(times), *(f"{figure:.4f}" for figure in figures)])


def _place(on_npu: bool) -> str:
    return "NPU" if on_npu else "host"


def tasks_of(model: Model, ports: Ports, inputs: Sequence[Described]) -> None:
    """Time the tasks of a function that was just compiled, where profiling is on."""
    if not options.profiling:
        return
    from ge.profile import trace

    feeds = [
        np.zeros(2, np.uint64) if kind == "random" else inputs[index].numpy() for kind, index in ports.inputs
    ]
    tasks = model.profile(feeds, _REPEATS)
    folder = _state.folder / "tasks"
    folder.mkdir(parents=True, exist_ok=True)
    path = _free(folder, re.sub(r"[^\w.-]+", "_", model.name))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_TASKS)
        writer.writerows(_task_row(task) for task in tasks)
    trace(path.with_suffix(".json"), tasks, model.name)


def _task_row(task: TaskProfile) -> list[str]:
    rates = (amount / task.seconds / 1e9 if task.seconds else 0.0 for amount in (task.flops, task.nbytes))
    return [
        task.name,
        task.engine,
        task.implementation or task.kind,
        task.dtype,
        "x".join(map(str, task.shape)),
        task.layout or "plain",
        f"{task.seconds * 1e6:.2f}",
        *(f"{rate:.1f}" for rate in rates),
    ]


def _free(folder: Path, name: str) -> Path:
    """A file of that name, or with a number behind it where there is one already."""
    with _lock:
        path, number = folder / f"{name}.csv", 1
        while path.exists():
            number += 1
            path = folder / f"{name}-{number}.csv"
        path.touch()
    return path
