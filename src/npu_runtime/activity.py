"""Counters of this process for `tf-adapter top`: a small file in the user's runtime folder, mapped into memory.

1. The file is made when the first model is loaded; NPU_TOP=0 makes none. Counting costs two clock reads a run.
2. Its name is the process's number and the time the process began, so that a number that is used again is another file.
3. It goes when the process ends. What a killed process leaves is removed by the next process and by `top`.
4. A folder that cannot be used is no error: nothing is counted then.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar, cast

from npu_runtime import _native, environment

__all__ = [
    "compiling",
    "folder",
    "host_call",
    "host_spans",
    "is_running",
    "publish",
    "remove_dead",
    "started",
]

_Function = TypeVar("_Function", bound=Callable[..., object])

_done = False
host_spans: list[tuple[str, int, int]] = []  # name, start, end of calls on the host, while runs are recorded
_MOST_SPANS = 1 << 18


def folder() -> Path:
    """The folder of the counters of this user's processes."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return (
        Path(runtime) / "tf-adapter" if runtime else Path(tempfile.gettempdir()) / f"tf-adapter-{os.getuid()}"
    )


def publish(*, again: bool = False) -> None:
    """Create the file, once per process; `again` reads NPU_TOP anew."""
    global _done
    if _done and not again:
        return
    _done = True
    if environment.text("NPU_TOP") == "0":
        return
    with contextlib.suppress(OSError, ValueError):
        place = folder()
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = place.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            return  # somebody else's
        remove_dead(place)
        path = place / f"{os.getpid()}-{started(os.getpid())}"
        path.unlink(missing_ok=True)
        _native.publish(str(path))
        atexit.register(_remove, path, os.getpid())


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # not a fork
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def started(process: int) -> int:
    """When a process began, in clock ticks since the machine did; 0 where there is no such process.

    >>> started(os.getpid()) > 0
    True
    """
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] in "ZX" else int(fields[19])


def is_running(name: str) -> bool:
    """True if the process that a file is named after runs."""
    process, _, began = name.partition("-")
    return process.isdecimal() and began.isdecimal() and started(int(process)) == int(began) != 0


def remove_dead(place: Path) -> None:
    """Remove the files of processes that have ended."""
    for entry in os.scandir(place):
        if entry.is_file(follow_symlinks=False) and not is_running(entry.name):
            with contextlib.suppress(OSError):
                os.unlink(entry.path)


@contextlib.contextmanager
def compiling(name: str) -> Iterator[None]:
    """Count the compile in this block."""
    publish()
    begin = time.perf_counter_ns()
    yield
    _native.count_compile(name, time.perf_counter_ns() - begin)


def host_call(name: str, function: _Function) -> _Function:
    """A call that the host runs: counted, and timed where runs are recorded."""
    if not _native.is_recording():

        def counted(*args: object) -> object:
            _native.count_host_call()
            return function(*args)

        return cast(_Function, counted)

    def timed(*args: object) -> object:
        _native.count_host_call()
        begin = time.monotonic_ns()
        result = function(*args)
        if len(host_spans) < _MOST_SPANS:
            host_spans.append((name, begin, time.monotonic_ns()))
        return result

    return cast(_Function, timed)
