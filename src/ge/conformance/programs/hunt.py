"""Parent process: sends seeds to workers, shrinks failing programs and records them."""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ge.conformance.pool import Worker, run_cases, start_worker
from ge.conformance.programs.judge import Verdict, verdict_of
from ge.conformance.programs.record import Program, numpy_dtype
from ge.conformance.programs.shrink import shrink

__all__ = ["FAILURES", "RECORD", "Failure", "Findings", "hunt", "shrunk"]

WORKER = "ge.conformance.programs.worker"
FAILURES = ("wrong", "error", "crash")
RECORD = "failures.jsonl"  # seeds and results, in the folder of failing programs
LIMIT = 90.0  # seconds a program may take
SHRINKING = 180.0  # seconds for one failure


@dataclass(frozen=True)
class _Request:
    """A request to a worker."""

    kind: str
    name: str


@dataclass
class Failure:
    """A failing program, shrunk."""

    seed: str
    program: Program
    verdict: Verdict
    text: str = ""  # the test file
    path: Path | None = None

    def label(self) -> str:
        """Signature; equal for failures that look like the same bug."""
        operators = "+".join(sorted(set(self.program.operators())))
        return f"{self.verdict.status} {self.verdict.mode} {operators} {_gist(self.verdict.reason)}"


@dataclass
class Findings:
    """The counts of a run."""

    programs: int = 0
    runs: int = 0
    elements: int = 0
    judged: int = 0  # elements that the framework itself settles
    statuses: Counter[str] = field(default_factory=Counter)
    operators: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)


def _gist(reason: str) -> str:
    """A reason with its numbers removed."""
    return re.sub(r"[\d.e+-]*\d[\d.e+-]*", "#", reason.split("\n")[0])[:60]


def hunt(
    door: str,
    seed: int,
    count: int,
    seconds: float,
    jobs: int = 1,
    out: Path | None = None,
    progress: Callable[[Findings], None] = lambda f: None,
    most_failures: int = 25,
    shrinking: float = math.inf,
    short: bool = False,
) -> Findings:
    """Run programs 0 to `count` of a seed, or as many as `seconds` allow; record and shrink failures.

    most_failures, shrinking: maximum number of failures to shrink, and seconds for each; all failures are recorded.
    short: generate programs of few statements.
    """
    findings = Findings()
    end = time.monotonic() + seconds
    failed: list[tuple[str, dict[str, Any]]] = []
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)

    def requests() -> Iterator[_Request]:
        numbers = range(count) if count else itertools.count()
        for number in numbers:
            if time.monotonic() > end:
                return
            yield _Request("seed", f"{seed}/{number}")

    def done(request: _Request, result: dict[str, Any]) -> None:
        findings.programs += 1
        findings.runs += result.get("runs", 0)
        findings.elements += result.get("elements", 0)
        findings.judged += result.get("judged", 0)
        findings.statuses[result["status"]] += 1
        findings.operators.update(result.get("operators", ()))
        if result["status"] in FAILURES:
            failed.append((request.name, result))
            if out is not None:  # written immediately: an interrupted run keeps its findings
                with (out / RECORD).open("a") as record:
                    print(json.dumps([request.name, result]), file=record)
        progress(findings)

    settings = {"door": door, "short": short}
    run_cases(requests(), settings, jobs, LIMIT, done, WORKER)
    findings.failures = shrunk(door, failed, out, most_failures, shrinking, short)
    return findings


def shrunk(
    door: str,
    failed: Sequence[tuple[str, dict[str, Any]]],
    out: Path | None,
    most: int = 25,
    seconds: float = math.inf,
    short: bool = False,
) -> list[Failure]:
    """Shrink and record the failures of a run; of failures with the same signature only the simplest."""
    found: list[Failure] = []
    shrinker = _Shrinker({"door": door, "short": short}, time.monotonic() + seconds)
    try:
        for name, result in sorted(failed, key=lambda item: len(item[1].get("program", "")))[:most]:
            if time.monotonic() > shrinker.end:
                break
            failure = shrinker.run(name, result)
            if failure.label() not in {f.label() for f in found}:
                found.append(failure)
                _write(failure, door, out)
    finally:
        shrinker.stop()
    return found


def _write(failure: Failure, door: str, out: Path | None) -> None:
    if out is None or not failure.text:
        return
    operator = failure.program.statements[-1].operator if failure.program.statements else "none"
    stem = re.sub(r"\W+", "_", f"test_{door}_{operator}_{failure.seed}".lower())
    out.mkdir(parents=True, exist_ok=True)
    failure.path = out / f"{stem}.py"
    failure.path.write_text(failure.text)


class _Shrinker:
    """Asks a dedicated worker whether smaller programs fail too; restarts it after a crash."""

    def __init__(self, settings: dict[str, Any], end: float) -> None:
        self.settings = settings
        self.end = end
        self.worker: Worker | None = None
        self.last: dict[str, Any] = {}

    def ask(self, kind: str, text: str) -> dict[str, Any]:
        self.worker = self.worker or start_worker(self.settings, WORKER)
        assert self.worker is not None, "no worker starts"
        result = self.worker.ask(_Request(kind, text), LIMIT)
        if result.pop("lost", False):
            self.worker.stop()
            self.worker = None
        return result

    def run(self, seed: str, first: dict[str, Any]) -> Failure:
        """The shrunk program; returned unchanged if it does not fail again in a fresh process."""
        text = first.get("program") or self.ask("make", seed).get("program")
        if not text:
            reason = f"(as the program is made) {first['reason']}"
            return Failure(seed, Program((), (), ()), verdict_of({**first, "reason": reason}))
        program = Program.from_json(text)
        self.stop()  # a fresh process
        if not self._fails(program, first):
            # Depends on earlier programs in the process: cannot be shrunk.
            verdict = verdict_of({**first, "reason": f"(not alone) {first['reason']}"})
            return Failure(seed, program, verdict, self._file(seed, program, verdict))
        end = min(self.end, time.monotonic() + SHRINKING)
        found = shrink(program, lambda p: time.monotonic() < end and self._fails(p, first), self._values)
        self._fails(found, first)
        verdict = verdict_of({"mode": found.mode, **self.last})
        return Failure(seed, found, verdict, self._file(seed, found, verdict))

    def stop(self) -> None:
        """End the worker."""
        if self.worker is not None:
            self.worker.stop()
            self.worker = None

    def _fails(self, program: Program, first: dict[str, Any]) -> bool:
        self.last = result = self.ask("program", program.as_json())
        same = result["status"] == first["status"]
        if first["status"] == "error":
            same = same and _gist(result["reason"])[:24] == _gist(first["reason"])[:24]
        return bool(same)

    def _file(self, seed: str, program: Program, verdict: Verdict) -> str:
        text = json.dumps([seed, program.as_json(), dataclasses.asdict(verdict)])
        return str(self.ask("file", text).get("text", ""))

    def _values(self, program: Program) -> dict[str, np.ndarray]:
        found = self.ask("values", program.as_json()).get("values", {})
        return {
            name: np.frombuffer(base64.b64decode(d["data"]), numpy_dtype(d["value"]["dtype"])).reshape(
                d["value"]["shape"]
            )
            for name, d in found.items()
        }
