"""Runs test files in separate processes; a crash or hang fails only the test that caused it."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from ge.conformance.suites.limits import Limits, Outcome
from ge.conformance.suites.recorder import VARIABLE
from ge.conformance.suites.suite import Side, Suite

__all__ = ["read_outcomes", "run_suite"]

_SLICE = 0.5  # seconds between polls of a process
_OTHER_SECONDS = 600.0  # outside tests: import, collection, exit
_PYTEST_FINISHED = (0, 1, 5)  # all passed, some failed, none selected


def read_outcomes(path: Path) -> dict[str, Outcome]:
    """Read outcomes by name from a results file; skips a line truncated by a kill."""
    found: dict[str, Outcome] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                name, status, message = json.loads(line)
            except ValueError:
                continue
            found[name] = Outcome(status, message)
    return found


def run_suite(
    suite: Suite,
    side: Side,
    limits: Limits,
    folder: Path,
    report: Callable[[str], None] = lambda text: None,
    among: Collection[str] | None = None,
) -> dict[str, Outcome]:
    """Run a suite on one device and add the outcomes to `folder`; skips tests that already have one.

    `among` restricts the run to these tests; None: all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "outcomes.jsonl"
    outcomes = read_outcomes(results)
    todo: queue.Queue[tuple[Limits, tuple[str, ...]]] = queue.Queue()
    files = [file for file in suite.files if limits.wants_file(file)]
    if among is not None:
        left = {name.partition("::")[0] for name in among if name not in outcomes}
        files = [file for file in files if file in left]
    for group in _groups(suite, files):
        for part in range(limits.parts):
            todo.put((dataclasses.replace(limits, part=part), group))
    lock = threading.Lock()
    end = time.monotonic() + 60 * limits.minutes if limits.minutes else math.inf
    run = _Run(suite, side, folder, end, None if among is None else sorted(among))

    def keep(found: Mapping[str, Outcome]) -> None:
        with lock, results.open("a") as file:
            outcomes.update(found)
            for name, outcome in found.items():
                file.write(json.dumps([name, outcome.status, outcome.message]) + "\n")

    def serve() -> None:
        while time.monotonic() < end:
            try:
                mine, files = todo.get_nowait()
            except queue.Empty:
                return
            _run_files(run, mine, files, outcomes, keep)
            report(files[-1])

    threads = [threading.Thread(target=serve) for _ in range(max(1, limits.jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def _groups(suite: Suite, files: Sequence[str]) -> list[tuple[str, ...]]:
    """The files of each process."""
    shared = [file for file in files if file not in suite.alone]
    size = suite.files_per_process
    groups = [tuple(shared[start : start + size]) for start in range(0, len(shared), size)]
    return groups + [(file,) for file in files if file in suite.alone]


@dataclasses.dataclass(frozen=True)
class _Run:
    """State shared by all processes of a run."""

    suite: Suite
    side: Side
    folder: Path
    end: float  # by the monotonic clock
    among: Sequence[str] | None


def _run_files(
    run: _Run,
    limits: Limits,
    files: Sequence[str],
    outcomes: Mapping[str, Outcome],
    keep: Callable[[Mapping[str, Outcome]], None],
) -> None:
    """Run files in one process; after a crash continue with the remaining tests in a new one."""
    while True:
        process = _Process(run, limits, files, sorted(outcomes))
        found, finished = process.outcomes()
        progress = not found.keys() <= outcomes.keys()
        keep(found)
        if finished:
            return
        if not progress:  # died before its first test
            if len(files) == 1:
                keep({files[0]: Outcome("crash", f"before its first test: {process.last_words()}")})
                return
            for file in files:
                _run_files(run, limits, [file], outcomes, keep)
            return


class _Process:
    """One pytest process and its record."""

    def __init__(self, run: _Run, limits: Limits, files: Sequence[str], done: Sequence[str]) -> None:
        suite, side = run.suite, run.side
        self.end = run.end
        self.work = Path(tempfile.mkdtemp(prefix="conformance-"))
        self.record = self.work / "record.jsonl"
        self.record.touch()
        self.log = run.folder / f"{Path(files[0]).stem}{f'-{limits.part}' if limits.part else ''}.log"
        self.seconds = limits.seconds
        self.late = False  # stopped at the suite's time limit; the running test has no outcome
        (self.work / "choice.json").write_text(json.dumps({"done": list(done), "among": run.among}))
        settings = {
            "record": str(self.record),
            "choice": str(self.work / "choice.json"),
            "renames": side.renames,
            "only": side.only,
            "limits": dataclasses.asdict(limits),
        }
        plugins = ["ge.conformance.suites.recorder", *side.plugins]
        (self.work / "run").mkdir()
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"),
                    *("-c", os.devnull, "--rootdir", str(suite.root), "--continue-on-collection-errors"),
                    *(text for plugin in plugins for text in ("-p", plugin)),
                    *suite.arguments,
                    *(str(suite.root / file) for file in files),
                ],
                cwd=self.work / "run",
                env={**os.environ, **side.environment, VARIABLE: json.dumps(settings)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def outcomes(self) -> tuple[dict[str, Outcome], bool]:
        """Outcomes of the tests that ran, and True if all of them did."""
        hung = self._wait()
        lines = [json.loads(line) for line in self.record.read_text().splitlines()]
        found = {line[1]: Outcome(line[2], line[3]) for line in lines if line[0] == "outcome"}
        code = self.process.returncode
        if self.late or (not hung and code in _PYTEST_FINISHED):
            return found, True
        started = [line[1] for line in lines if line[0] == "start" and line[1] not in found]
        if started:
            found[started[-1]] = (
                Outcome("hang", f"no end within {self.seconds:g} s")
                if hung
                else Outcome("crash", f"the process ended with status {code}: {self.last_words()}")
            )
        return found, False

    def _wait(self) -> bool:
        """Wait for the end. True if a test took too long and the process was stopped.

        Counts slices instead of reading a clock: while the machine is suspended no time passes.
        """
        size, waited = 0, 0.0
        while True:
            try:
                self.process.wait(_SLICE)
                return False
            except subprocess.TimeoutExpired:
                waited += _SLICE
            now = self.record.stat().st_size
            if now != size:
                size, waited = now, 0.0
            self.late = time.monotonic() >= self.end
            if self.late or (waited >= self.seconds and (self._in_a_test() or waited >= _OTHER_SECONDS)):
                os.killpg(self.process.pid, 9)
                self.process.wait()
                return True

    def _in_a_test(self) -> bool:
        lines = self.record.read_text().splitlines()
        return bool(lines) and lines[-1].startswith('["start"')

    def last_words(self) -> str:
        """The last line that the process wrote."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][-300:] if lines else "it wrote nothing"
