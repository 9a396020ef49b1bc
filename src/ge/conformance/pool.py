"""Worker processes that are restarted after a crash or a timeout."""

from __future__ import annotations

import json
import math
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

__all__ = ["Named", "Worker", "run_cases", "start_worker"]

START_SECONDS = 120.0
WORKER = "ge.conformance.worker"
_SLICE = 0.5  # seconds


class Named(Protocol):
    """Key by which workers identify a case."""

    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...


C = TypeVar("C", bound=Named)


class Worker:
    """A worker process and its pipe."""

    def __init__(self, settings: dict[str, Any], module: str) -> None:
        # OpenMP threads would spin between programs that take microseconds.
        environment = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive", **os.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self.answers: queue.Queue[str] = queue.Queue()
        self.settings = settings
        threading.Thread(target=self._listen, daemon=True).start()

    def wait_ready(self) -> None:
        """Send the settings and wait until the worker has collected its cases."""
        self._send(self.settings)
        self._answer(START_SECONDS)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put("")

    def _send(self, message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def _answer(self, seconds: float) -> str:
        """Read the next line. Waits in slices so that a suspended machine or process does not count as a timeout."""
        for waited in range(math.ceil(seconds / _SLICE)):
            try:
                line = self.answers.get(timeout=min(_SLICE, seconds - waited * _SLICE))
            except queue.Empty:
                continue
            if not line:
                raise EOFError
            return line
        raise queue.Empty

    def ask(self, case: Named, seconds: float) -> dict[str, Any]:
        """Result of a case; "crash" if the worker dies or hangs."""
        try:
            self._send([case.kind, case.name])
            return json.loads(self._answer(seconds))
        except queue.Empty:
            return {"status": "crash", "reason": f"no answer within {seconds:g} s", "lost": True}
        except (EOFError, BrokenPipeError):
            code = self.process.wait(10)
            return {"status": "crash", "reason": f"the process ended with status {code}", "lost": True}

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(10)


_NOT_STARTED = {"status": "crash", "reason": "the process that runs cases did not start"}
_START_ATTEMPTS = 2


def start_worker(settings: dict[str, Any], module: str) -> Worker | None:
    """Start a worker; None if it does not start."""
    for _ in range(_START_ATTEMPTS):
        worker = Worker(settings, module)
        try:
            worker.wait_ready()
            return worker
        except (EOFError, BrokenPipeError, queue.Empty):
            worker.stop()
    return None


def run_cases(
    cases: Iterable[C],
    settings: dict[str, Any],
    jobs: int,
    seconds: float,
    done: Callable[[C, dict[str, Any]], None],
    worker_module: str = WORKER,
) -> None:
    """Run all cases on `jobs` workers, calling `done` for each."""
    todo = iter(cases)
    lock = threading.Lock()

    def serve() -> None:
        worker: Worker | None = None
        while True:
            with lock:
                case = next(todo, None)
            if case is None:
                break
            worker = worker or start_worker(settings, worker_module)
            result = worker.ask(case, seconds) if worker is not None else dict(_NOT_STARTED)
            if worker is not None and result.pop("lost", False):
                worker.stop()
                worker = None
            with lock:
                done(case, result)
        if worker is not None:
            worker.stop()

    threads = [threading.Thread(target=serve) for _ in range(max(1, jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
