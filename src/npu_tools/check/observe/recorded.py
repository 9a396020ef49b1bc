"""The runtime's record of a run of any framework: task times, programs over time."""

from __future__ import annotations

from typing import Any

import npu_runtime
from npu_tools.check.recorder import Recorder
from npu_tools.recording import program_tasks

__all__ = ["Recorded", "start"]

_MOST_KERNELS = 64
_MOST_SPANS = 600
_SHOWN_STEPS = 3


def start() -> None:
    """Start recording program runs; call before any program is loaded."""
    npu_runtime.set_recording(True)


class Recorded:
    """The end of a recording."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        npu_runtime.set_recording(False)
        self._programs, spans, _ = npu_runtime.take_recording()
        names = {program[0]: program[1] for program in self._programs}
        self.runs = [
            {
                "name": names.get(number, "program"),
                "kind": "NPU",
                "begin": begin / 1e9 - recorder.began,
                "end": end / 1e9 - recorder.began,
            }
            for number, index, _, begin, end in spans.tolist()
            if index < 0
        ]

    def kernels(self) -> list[dict[str, Any]]:
        """The most expensive tasks, with seconds per call."""
        rows = [
            {
                **{key: task[key] for key in ("name", "engine", "kind", "dtype", "calls", "flops")},
                "implementation": task["implementation"] or task["kind"],
                "shape": list(task["shape"]),
                "seconds": task["seconds"] / task["calls"],
                "bytes": task["nbytes"],
            }
            for program in self._programs
            for task in program_tasks(*program)
            if task["calls"]
        ]
        return sorted(rows, key=lambda row: -row["seconds"] * row["calls"])[:_MOST_KERNELS]

    def last_steps(self) -> list[dict[str, Any]]:
        """The runs in the last steps of the main series."""
        return last_steps(self.runs, self._recorder)

    def seconds(self, begin: float, end: float) -> float:
        """Seconds in programs between two times."""
        inside = (r for r in self.runs if r["begin"] >= begin and r["end"] <= end)
        return sum((r["end"] - r["begin"] for r in inside), 0.0)


def last_steps(spans: list[dict[str, Any]], recorder: Recorder) -> list[dict[str, Any]]:
    """The spans in the last steps of the main series."""
    series = recorder.main_series()
    if series is None:
        return spans[-_MOST_SPANS:]
    steps = series.steps[-_SHOWN_STEPS:]
    shown = [s for s in spans if s["end"] >= steps[0].begin and s["begin"] <= steps[-1].end]
    return shown[-_MOST_SPANS:]
