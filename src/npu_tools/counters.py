"""Reads the counter files that processes on NPUs publish (layout: native/core/activity.h)."""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Process", "Rates", "Sample", "rates", "read_all"]

_MAGIC = 0x31504F5455504E
_DEVICES, _PROGRAMS, _NAME = 64, 1000, 48
_HEAD = struct.Struct(f"<5Q{_NAME}s")
_MEMORY = struct.Struct("<3Q")
_PROGRAM = struct.Struct(f"<{_NAME}s2Q")
_SIZE = _HEAD.size + _DEVICES * _MEMORY.size + _PROGRAMS * _PROGRAM.size


@dataclass(frozen=True)
class Sample:
    """The counters of one process at one time."""

    when: float
    compiles: int
    compile_seconds: float
    host_calls: int
    last_compile: str
    memory: tuple[tuple[int, int, int], ...]  # of each NPU: bytes in use, the most so far, the limit
    programs: dict[str, tuple[int, float]]  # runs and seconds; programs of the same name have numbers


@dataclass(frozen=True)
class Process:
    """A process and its counters."""

    pid: int
    command: str
    sample: Sample


@dataclass(frozen=True)
class Rates:
    """Rates shown by `top` for a process, since the previous sample or since the start."""

    pid: int
    command: str
    steps_per_second: float  # runs of the most expensive program
    busy: float  # share of time in programs; above 1 with several NPUs or threads
    memory: int
    peak: int
    limit: int
    host_calls_per_second: float
    host_calls: int
    compiles: int
    compile_seconds: float
    last_compile: str
    program: str  # the one whose runs are the steps
    programs: list[dict[str, Any]] = field(default_factory=list)

    def data(self) -> dict[str, Any]:
        return asdict(self)


def read_all(folder: Path) -> list[Process]:
    """The processes that publish counters in a folder, by process id; skips other users' files."""
    from npu_runtime.activity import is_running

    if not folder.is_dir():
        return []
    found = []
    for entry in os.scandir(folder):
        if not entry.is_file(follow_symlinks=False) or not is_running(entry.name):
            continue
        sample = _read(Path(entry.path))
        if sample is not None:
            pid = int(entry.name.partition("-")[0])
            found.append(Process(pid, _command(pid), sample))
    return sorted(found, key=lambda process: process.pid)


def _read(path: Path) -> Sample | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) != _SIZE or int.from_bytes(data[:8], "little") != _MAGIC:
        return None
    _, compiles, nanoseconds, host_calls, programs, last = _HEAD.unpack_from(data)
    memory = [_MEMORY.unpack_from(data, _HEAD.size + i * _MEMORY.size) for i in range(_DEVICES)]
    start = _HEAD.size + _DEVICES * _MEMORY.size
    runs: dict[str, tuple[int, float]] = {}
    for i in range(min(programs, _PROGRAMS)):
        name, count, busy = _PROGRAM.unpack_from(data, start + i * _PROGRAM.size)
        key = _text(name) if _text(name) not in runs else f"{_text(name)} #{i + 1}"
        runs[key] = (count, busy / 1e9)
    return Sample(
        time.monotonic(),
        compiles,
        nanoseconds / 1e9,
        host_calls,
        _text(last),
        tuple(m for m in memory if m[2]),
        runs,
    )


def _text(name: bytes) -> str:
    return name.split(b"\0")[0].decode(errors="replace")


def _command(pid: int) -> str:
    words: Sequence[bytes] = ()
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    texts = [word.decode(errors="replace") for word in words]
    if len(texts) > 1 and Path(texts[0]).name.startswith("python"):
        texts = texts[1:]
    return " ".join(texts)


def rates(before: Process | None, now: Process) -> Rates:
    """Rates of a process between two samples."""
    then, sample = before.sample if before else None, now.sample
    seconds = sample.when - then.when if then else 0.0
    old = then.programs if then else {}
    moved = {
        name: (runs - old.get(name, (0, 0.0))[0], busy - old.get(name, (0, 0.0))[1])
        for name, (runs, busy) in sample.programs.items()
    }
    leading = max(moved, key=lambda name: moved[name][1], default="")
    per = 1 / seconds if seconds > 0 else 0.0
    ranked = sorted(sample.programs.items(), key=lambda item: -item[1][1])
    return Rates(
        now.pid,
        now.command,
        moved[leading][0] * per if leading else 0.0,
        sum(busy for _, busy in moved.values()) * per,
        sum(m[0] for m in sample.memory),
        sum(m[1] for m in sample.memory),
        sum(m[2] for m in sample.memory),
        (sample.host_calls - (then.host_calls if then else 0)) * per,
        sample.host_calls,
        sample.compiles,
        sample.compile_seconds,
        sample.last_compile,
        leading,
        [{"name": name, "runs": runs, "seconds": busy} for name, (runs, busy) in ranked if runs],
    )
