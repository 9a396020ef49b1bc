"""Child processes that run scripts and models: start, monitor, interrupt, read results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from npu_tools.check.request import Request

__all__ = ["Finished", "run_child"]

_POLL = 0.1
_GRACE = 20.0  # seconds that an interrupted process has to write its record
_TAIL = 8000  # characters of a script's output that are kept
_STARTUP = 120.0  # seconds beyond the limit of a run: imports, profiles, layers


Tick = Callable[[str, int, int], None]  # stage, steps done, total steps


class Finished:
    """Results of a process: its record, outputs and printed text."""

    def __init__(self, record: dict[str, Any], outputs: dict[str, np.ndarray], printed: str) -> None:
        self.record, self.outputs, self.printed = record, outputs, printed


def run_child(
    request: Request,
    folder: Path,
    current: Path,
    environment: dict[str, str],
    tick: Tick,
) -> Finished:
    """Run a request in a child process; `tick` receives its progress.

    Ctrl-C is passed on: the process writes what it has, and KeyboardInterrupt is raised with the partial result as
    its argument.
    """
    folder.mkdir(parents=True, exist_ok=True)
    asked = request.save(folder / "request.json")
    command = [sys.executable, "-m", "npu_tools.check.child", str(asked)]
    with open(folder / "output.txt", "wb") as out:
        process = subprocess.Popen(
            command,
            cwd=current,
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            interrupted = _wait(process, request, folder, tick)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    finished = _read(folder, process.returncode, request, interrupted)
    if interrupted:
        raise KeyboardInterrupt(finished)
    return finished


def _wait(process: subprocess.Popen[bytes], request: Request, folder: Path, tick: Tick) -> bool:
    """Wait for a process to end; True if it was interrupted."""
    until = time.monotonic() + request.seconds + _STARTUP * (4 if request.layers or request.mixlist else 1)
    interrupted = False
    while process.poll() is None and time.monotonic() < until:
        try:
            time.sleep(_POLL)
            tick(*_progress(folder, request))
        except KeyboardInterrupt:
            if interrupted:
                break
            interrupted = True
            process.send_signal(signal.SIGINT)
            until = time.monotonic() + _GRACE
    return interrupted


def _progress(folder: Path, request: Request) -> tuple[str, int, int]:
    try:
        phase, done, total = json.loads((folder / "progress").read_text())
        return str(phase), int(done), int(total)
    except (OSError, ValueError):
        return "steps", 0, request.steps


def _read(folder: Path, status: int | None, request: Request, interrupted: bool) -> Finished:
    """Read the results of a process; one interrupted before it wrote anything did not fail."""
    printed = (folder / "output.txt").read_text(errors="replace")[-_TAIL:]
    for seen, known in request.roots:
        printed = printed.replace(seen, known)
    path = folder / "record.json"
    if not path.is_file() and interrupted:
        return Finished({"side": request.side, "error": {}, "series": [], "interrupted": True}, {}, printed)
    if not path.is_file():
        how = (
            f"was killed by {signal.Signals(-status).name}"
            if status and status < 0
            else f"ended with status {status}"
        )
        error = {
            "type": "ProcessEnded",
            "message": f"the process {how}",
            "location": "",
            "traceback": printed[-2000:],
        }
        return Finished({"side": request.side, "error": error, "series": []}, {}, printed)
    record = json.loads(path.read_text())
    with np.load(folder / "outputs.npz") as arrays:
        outputs = {name: arrays[f"a{i}"] for i, name in enumerate(record.pop("output_names"))}
    return Finished(record, outputs, printed)
