"""Finds the largest batch that fits the device: extrapolated from measured batches, then tried.

Each trial is a separate process that the system kills first if memory runs out. Trials are bounded: a step may take
`MOST_SECONDS` by extrapolation, and the process as much memory as the machine can spare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Trial", "computed", "search"]

MOST_SECONDS = 3.0  # of a step that is tried
SPARE = 0.25  # of the memory that is available
COPIES = 2.0  # of what the device takes: the framework holds batches as well
SMALLER = (1.0, 0.8, 0.6)  # shares of the computed batch, tried until one fits


@dataclass
class Trial:
    """Computed and tried batches; each row has a batch, and its seconds or the reason for failure."""

    computed: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    bound: str = ""  # why a smaller batch than the computed one was tried

    @property
    def largest(self) -> int:
        """The largest batch: the computed one unless a trial failed."""
        ran = [row["batch"] for row in self.rows if "seconds" in row]
        if self.bound or not self.rows:
            return self.computed
        return max(ran, default=min(row["batch"] for row in self.rows))

    def text(self) -> str:
        """The outcome in words."""
        fits = next((row for row in self.rows if "seconds" in row), None)
        failed = "".join(
            f" {row['batch']:,} does not: {row['refused']}." for row in self.rows if "refused" in row
        )
        tried = f"{fits['batch']:,}, tried ({fits['seconds']:.2g} s a step)" if fits else ""
        if not self.bound and fits:
            return f"The largest batch that fits: {tried}.{failed}"
        by_memory = f"{self.computed:,} by the memory of the measured batches"
        if not self.bound:
            return f"The largest batch would be {by_memory}, but it does not run.{failed}"
        said = f"A batch that fits: {tried}.{failed}" if fits else f"No larger batch was tried.{failed}"
        return f"{said} The largest would be {by_memory}; {self.bound}."

    def data(self) -> dict[str, Any]:
        return asdict(self) | {"text": self.text()}


def computed(record: Mapping[str, Any]) -> int | None:
    """The largest batch whose memory plan fits the device, extrapolated from the measured batches."""
    found = _line(record)
    if found is None:
        return None
    batch, arena, slope = found
    device = record["npu_memory"]
    return int((device["limit"] - device.get("constants", 0) - arena) / slope) + batch


def search(record: Mapping[str, Any], run: Callable[[int], dict[str, Any]]) -> Trial | None:
    """Compute the largest batch and try it; `run` tries one batch and returns its row."""
    most, line = computed(record), _line(record)
    if most is None or line is None:
        return None
    trial = Trial(most)
    batch, _, slope = line
    seconds = next(row["seconds"] for row in record["batches"] if row["batch"] == batch and "arena" in row)
    by_time, by_memory = int(MOST_SECONDS / seconds * batch), int(SPARE * _available() / (COPIES * slope))
    first = min(most, by_time, by_memory)
    if first < most:
        why = (
            f"a step of more would take over {MOST_SECONDS:g} s"
            if by_time <= by_memory
            else f"more needs memory that this machine cannot spare now ({_available() / 2**30:.1f} GiB are free)"
        )
        trial.bound = f"more was not tried because {why}"
    for share in SMALLER if first > batch else ():
        trial.rows.append({"batch": max(batch, int(first * share)), **run(max(batch, int(first * share)))})
        if "seconds" in trial.rows[-1]:
            break
    return trial


def _line(record: Mapping[str, Any]) -> tuple[int, int, float] | None:
    """Largest measured batch, its bytes, and the bytes per additional sample."""
    rows = sorted((r["batch"], r["arena"]) for r in record.get("batches", ()) if "arena" in r)
    if len(rows) < 2 or not record.get("npu_memory", {}).get("limit"):
        return None
    (a, small), (b, large) = rows[-2:]  # small batches may reuse memory that was already allocated
    slope = (large - small) / (b - a)
    return (b, large, slope) if slope > 0 else None


def _available() -> int:
    """Bytes of memory available without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 1 << 30
