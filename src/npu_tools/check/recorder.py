"""Records a run: steps, losses, outputs, waits, host reads, memory, and samples of source lines."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import statistics
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from npu_tools.check.locations import Roots

__all__ = ["Enough", "Recorder", "Step", "resident_bytes"]

MOST_SAVED = 4 << 20  # elements of outputs kept for a comparison
MOST_OUTPUTS = 16
SAMPLE_SECONDS = 0.05  # seldom enough not to disturb what is measured
PROGRESS_SECONDS = 0.2
MOST_POINTS = 4000
_PAGE = os.sysconf("SC_PAGE_SIZE")
TRAINING = ("fit", "optimizer", "session")  # kinds of steps, most significant first


class Enough(BaseException):
    """Ends a script after enough steps. Not an Exception, so that scripts do not catch it."""


@dataclass
class Step:
    """One step of a series; times in seconds since the run began."""

    begin: float
    end: float
    loss: float | None = None
    waited: float = 0.0  # for its input, if observed
    resident: int = 0


@dataclass
class Series:
    """Steps of one kind from one place."""

    kind: str
    name: str
    location: str = ""
    steps: list[Step] = field(default_factory=list)


def resident_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * _PAGE


class Recorder:
    """Collects what a framework's hooks observe. One per process."""

    def __init__(self, roots: Roots, most_steps: int, progress: Path | None = None) -> None:
        self.roots, self.most_steps = roots, most_steps
        self._progress, self._told = progress, 0.0
        self.began = time.perf_counter()
        self.series: dict[tuple[str, str], Series] = {}
        self.outputs: dict[str, np.ndarray] = {}
        self.reads: Counter[tuple[str, str]] = (
            Counter()
        )  # (what, line) of reads of device values by the script
        self.read_steps: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self.waits: Counter[str] = Counter()
        self.lines: Counter[tuple[str, bool]] = Counter()  # samples by (line, inside a step)
        self.memory: list[tuple[float, int]] = []
        self.containers: dict[str, list[int]] = {}
        self.stopped = ""
        self._local = threading.local()
        self._main = threading.main_thread().ident
        self._pending: float | None = None
        self._waited = 0.0
        self._saved = 0
        self._measured = 0  # steps after which containers were measured
        self._stop = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="check sampler", daemon=True)

    # -- time --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to count time and to sample."""
        self.began = time.perf_counter()
        self._sampler.start()

    def end(self) -> None:
        """Stop sampling."""
        self._stop.set()
        if self._sampler.is_alive():
            self._sampler.join()

    def now(self) -> float:
        return time.perf_counter() - self.began

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            frame = sys._current_frames().get(self._main or 0)
            user = None if frame is None else self.roots.frame(frame)
            if user is not None:
                line = f"{self.roots.name(user.f_code.co_filename)}:{user.f_lineno}"
                self.lines[line, self.depth_of_main > 0] += 1
            if len(self.memory) < MOST_POINTS:
                self.memory.append((self.now(), resident_bytes()))

    # -- nesting -----------------------------------------------------------------------------------------------

    depth_of_main = 0

    @property
    def busy(self) -> bool:
        """True if a hook on this thread is inside another one."""
        return getattr(self._local, "depth", 0) > 0

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Hooks inside of this block see nothing."""
        self._local.depth = getattr(self._local, "depth", 0) + 1
        main = threading.get_ident() == self._main
        self.depth_of_main += main
        try:
            yield
        finally:
            self._local.depth -= 1
            self.depth_of_main -= main

    # -- what hooks tell ---------------------------------------------------------------------------------------

    def of(self, kind: str, name: str, location: str = "") -> Series:
        """The series of a kind and name."""
        found = self.series.get((kind, name))
        if found is None:
            found = self.series[kind, name] = Series(kind, name, location)
        return found

    def check_limit(self, kind: str, name: str) -> None:
        """End the script if its next step would be one too many."""
        found = self.series.get((kind, name))
        if found is not None and len(found.steps) >= self.most_steps:
            self.stopped = f"after {len(found.steps)} calls of {name}"
            raise Enough

    def step(self, kind: str, name: str, begin: float, loss: float | None = None, location: str = "") -> None:
        """A step has ended."""
        series = self.of(kind, name, location)
        if loss is None and kind == "optimizer":
            loss, self._pending = self._pending, None
        series.steps.append(Step(begin, self.now(), loss, self._waited, resident_bytes()))
        self._waited = 0.0
        if self.steps_done() > self._measured:
            self._measured = self.steps_done()
            self._measure_containers()
        if time.perf_counter() - self._told > PROGRESS_SECONDS:
            self._told = time.perf_counter()
            self.tell("steps", self.steps_done(), self.most_steps)

    def tell(self, phase: str, done: int, total: int) -> None:
        """Report progress to the parent process."""
        if self._progress is not None:
            partial = self._progress.with_suffix(".tmp")
            partial.write_text(json.dumps([phase, done, total]))
            partial.replace(self._progress)

    def loss(self, value: float) -> None:
        """Record a differentiated loss for the next step."""
        self._pending = value

    def wait(self, seconds: float, location: str) -> None:
        """Record that the script waited for its input."""
        self._waited += seconds
        self.waits[location] += seconds  # type: ignore[assignment]

    def read(self, what: str, caller: FrameType) -> None:
        """Record a read of a device value, if made by the script itself and not by a library."""
        if self.roots.owns(caller.f_code.co_filename):
            location = f"{self.roots.name(caller.f_code.co_filename)}:{caller.f_lineno}"
            self.reads[what, location] += 1
            self.read_steps[what, location].add(self.steps_done())

    def output(self, name: str, values: list[np.ndarray]) -> None:
        """Record results to compare, once per name."""
        if len(self.outputs) >= MOST_OUTPUTS or f"{name}[0]" in self.outputs:
            return
        for index, value in enumerate(values):
            if value.dtype.kind in "fc" and self._saved + value.size <= MOST_SAVED and value.size:
                self._saved += value.size
                self.outputs[f"{name}[{index}]"] = value

    def steps_done(self) -> int:
        """Steps of the longest series so far."""
        return max((len(s.steps) for s in self.series.values()), default=0)

    # -- leaks -------------------------------------------------------------------------------------------------

    def _measure_containers(self) -> None:
        """Sizes of the lists, dictionaries and sets that the script's variables hold."""
        frame = self.roots.frame(skip=2)
        seen: set[int] = set()
        while frame is not None:
            if self.roots.owns(frame.f_code.co_filename):
                self._measure(frame, seen)
            frame = frame.f_back

    def _measure(self, frame: FrameType, seen: set[int]) -> None:
        places = [frame.f_globals] if frame.f_locals is frame.f_globals else [frame.f_locals, frame.f_globals]
        for place in places:
            for name, value in list(place.items()):
                self._measure_value(name, value, seen)
                held = getattr(value, "__dict__", None)
                if isinstance(held, dict) and self.roots.owns(_file_of(type(value))):
                    for attribute, inner in list(held.items()):
                        self._measure_value(f"{name}.{attribute}", inner, seen)

    def _measure_value(self, name: str, value: Any, seen: set[int]) -> None:
        holds = isinstance(value, (list, dict, set, deque))
        if holds and id(value) not in seen and not name.startswith("__"):
            seen.add(id(value))
            self.containers.setdefault(name, []).append(len(value))

    # -- the result --------------------------------------------------------------------------------------------

    def main_series(self) -> Series | None:
        """The series that represents the script: training first, then the longest, then the most expensive."""
        return min(
            self.series.values(),
            key=lambda s: (_rank(s.kind), -len(s.steps), -_total(s)),
            default=None,
        )

    @staticmethod
    def later_steps(series: Series) -> tuple[list[Step], float]:
        """The later half of the steps, and the end of the step before them, since a step starts with a wait.

        >>> Recorder.later_steps(Series("call", "f", "", [Step(i, i + 0.5) for i in range(4)]))[1]
        1.5
        """
        half = len(series.steps) // 2
        return series.steps[half:], series.steps[max(0, half - 1)].end

    def record(self) -> dict[str, Any]:
        """Everything as plain data."""
        chosen = self.main_series()
        total = sum(self.lines.values()) or 1
        return {
            "seconds": self.now(),
            "stopped": self.stopped,
            "main": None if chosen is None else [chosen.kind, chosen.name],
            "series": [asdict(s) for s in self.series.values()],
            "reads": [
                {"what": what, "location": line, "count": count, "steps": len(self.read_steps[what, line])}
                for (what, line), count in self.reads.most_common(20)
            ],
            "waits": [{"location": line, "seconds": s} for line, s in self.waits.most_common(5)],
            "lines": [
                {"location": line, "inside": inside, "share": count / total}
                for (line, inside), count in self.lines.most_common(12)
            ],
            "memory": {
                "over_time": _thinned(self.memory, 240),
                "peak": max([_peak_resident(), *(m for _, m in self.memory)]),
                "growing": self._growing(chosen),
            },
        }

    def _growing(self, series: Series | None) -> list[dict[str, Any]]:
        """Containers that grew in nearly every step."""
        steps = len(series.steps) if series else 0
        found = []
        for name, sizes in self.containers.items():
            rises = [b - a for a, b in itertools.pairwise(sizes)]
            if steps >= 4 and len(rises) >= steps // 2 and sum(r > 0 for r in rises) >= 0.8 * len(rises):
                found.append({"name": name, "per_step": statistics.fmean(rises), "size": sizes[-1]})
        return sorted(found, key=lambda item: -item["per_step"])


def _rank(kind: str) -> int:
    """The place of a kind of steps: `fit`, optimizers, sessions, then everything else."""
    return TRAINING.index(kind) if kind in TRAINING else len(TRAINING)


def _total(series: Series) -> float:
    return sum(s.end - s.begin for s in series.steps)


def _file_of(kind: type) -> str:
    return getattr(sys.modules.get(kind.__module__), "__file__", "") or ""


def _thinned(points: list[tuple[float, int]], most: int) -> list[tuple[float, int]]:
    every = max(1, len(points) // most)
    return points[::every]


def _peak_resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return resident_bytes()
