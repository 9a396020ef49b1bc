"""Profiles: one line per task with engine, implementation, shape, layout, time and rate; traces for Perfetto."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["TaskProfile", "described", "lines", "recorded_tasks", "table", "trace"]


@dataclass(frozen=True)
class TaskProfile:
    """A task of a model, and its time."""

    name: str
    engine: str
    kind: str
    implementation: str
    layout: str
    shape: tuple[int, ...]
    dtype: str
    seconds: float
    flops: float
    nbytes: float
    feeds: tuple[int, ...] = ()  # the tasks whose results it reads, in recordings


# Tasks of the programs loaded while runs are recorded, by program number; seconds are 0.
recorded_tasks: dict[int, tuple[TaskProfile, ...]] = {}


def lines(tasks: Sequence[TaskProfile]) -> list[str]:
    """One line per task: name, engine, implementation, shape, layout, microseconds, GFLOP/s or GB/s.

    >>> lines([TaskProfile("fc", "AI Core", "matmul", "brg", "ab,BA16a", (1, 8), "float32", 2e-6, 4000.0, 100.0)])
    ['fc,AI Core,brg,float32[1x8],ab/BA16a,2.0 us,2.0 GFLOP/s']
    """
    return [",".join(_fields(task)) for task in tasks]


def table(tasks: Sequence[TaskProfile]) -> str:
    """The lines, then the time by engine and in total."""
    total = sum(t.seconds for t in tasks)
    by_engine: dict[str, float] = {}
    for task in tasks:
        by_engine[task.engine] = by_engine.get(task.engine, 0.0) + task.seconds
    shares = [
        f"{engine}: {seconds * 1e3:.3f} ms ({seconds / total:.0%})" if total else engine
        for engine, seconds in sorted(by_engine.items(), key=lambda item: -item[1])
    ]
    return "\n".join(
        [*lines(tasks), f"total {total * 1e3:.3f} ms in {len(tasks)} tasks; " + ", ".join(shares)]
    )


def trace(path: str | os.PathLike[str], tasks: Sequence[TaskProfile], model: str = "model") -> Path:
    """Write the tasks in sequence as a Chrome trace for Perfetto.

    Process and thread ids start at 1: Perfetto takes 0 for the idle thread of the system. Times are whole nanoseconds,
    written in microseconds, so that no task overlaps the next by a rounding error.
    """
    engines = list(dict.fromkeys(t.engine for t in tasks))
    events: list[dict[str, Any]] = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": model}}]
    events += [
        {"ph": "M", "pid": 1, "tid": i, "name": "thread_name", "args": {"name": e}}
        for i, e in enumerate(engines, 1)
    ]
    clock = 0
    for task in tasks:
        nanoseconds = round(task.seconds * 1e9)
        times = {"ts": clock / 1e3, "dur": nanoseconds / 1e3}
        events.append(
            {"ph": "X", "pid": 1, "tid": engines.index(task.engine) + 1, **times, **described(task)}
        )
        clock += nanoseconds
    target = Path(path)
    target.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, allow_nan=False))
    return target


def described(task: TaskProfile) -> dict[str, Any]:
    """The properties of a task in a trace, besides its time."""
    args = {
        "implementation": task.implementation,
        "layout": task.layout,
        "shape": list(task.shape),
        "dtype": task.dtype,
        "flops": task.flops,
        "bytes": task.nbytes,
    }
    return {"name": task.name, "cat": task.kind, "args": args}


def _fields(task: TaskProfile) -> list[str]:
    shape = f"{task.dtype}[{'x'.join(map(str, task.shape))}]"
    implementation = task.implementation or task.kind
    return [
        task.name,
        task.engine,
        implementation,
        shape,
        task.layout.replace(",", "/") or "plain",  # of the data, of packed weights
        f"{task.seconds * 1e6:.1f} us",
        _rate(task),
    ]


def _rate(task: TaskProfile) -> str:
    if not task.seconds:
        return "-"
    if task.kind in ("kernel", "copy", "reorder", "aicpu", "pool") or not task.flops:
        return f"{task.nbytes / task.seconds / 1e9:.1f} GB/s"
    return f"{task.flops / task.seconds / 1e9:.1f} GFLOP/s"
