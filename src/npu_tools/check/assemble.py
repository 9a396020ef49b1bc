"""Builds the report from the records of two runs: one JSON object with the schema `SCHEMA` (docs/migration.md)."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["EXACT", "SCHEMA", "assemble"]

SCHEMA = "tf-adapter-check/1"
EXACT = "float64 "  # prefix of results that were computed in float64
_MOST_STEPS = 400
_FEWEST_STEPS = 7  # needed to detect growth
RISING = 0.7  # share of steps in which memory must rise to count as growth


def assemble(
    subject: Mapping[str, Any],
    environment: Mapping[str, Any],
    runs: Mapping[str, Mapping[str, Any]],
    outputs: Mapping[str, Mapping[str, np.ndarray]],
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """Build the report without findings, figures and checklist, which `judge` adds."""
    plain, npu = runs.get("plain", {}), runs.get("npu", {})
    return {
        "schema": SCHEMA,
        "subject": dict(subject),
        "environment": dict(environment),
        "devices": npu.get("devices", []),
        "runs": {side: _run(record) for side, record in runs.items()},
        "operators": npu.get("operators", []),
        "graph": npu.get("graph", []),
        "drawing": npu.get("drawing", {}),
        "outputs": compare_outputs(outputs.get("plain", {}), outputs.get("npu", {})),
        "losses": {side: losses_of(record) for side, record in runs.items()},
        "speed": {side: speed(record) for side, record in runs.items()},
        "spent": npu.get("spent", {}),
        "kernels": npu.get("kernels", []),
        "timeline": npu.get("spans", []),
        "memory": {side: _memory(record) for side, record in runs.items()},
        "pipelines": npu.get("pipelines") or plain.get("pipelines") or [],
        "reads": npu.get("reads", []),
        "lines": {side: record.get("lines", []) for side, record in runs.items()},
        "precision": npu.get("precision", {}),
        "mixlist": npu.get("mixlist", {}),
        "batches": _batches(plain.get("batches", []), npu.get("batches", [])),
        "scaling": [],
        "other_losses": [],
        "environment_findings": [],
        **extra,
    }


def _batches(plain: list[dict[str, Any]], npu: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Batch sizes of the NPU run, with the time of the plain run if it was measured."""
    known = {row["batch"]: row["seconds"] for row in plain if "seconds" in row}
    return [row | ({"plain_seconds": known[row["batch"]]} if row["batch"] in known else {}) for row in npu]


def _run(record: Mapping[str, Any]) -> dict[str, Any]:
    kept = (
        "seconds",
        "stopped",
        "error",
        "interrupted",
        "reference",
        "no_reference",
        "notes",
        "incomplete",
        "trace",
        "inputs",
    )
    return {name: record[name] for name in kept if name in record} | {"main": record.get("main")}


def main_series(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The series of steps that represents a run."""
    chosen = record.get("main")
    return next((s for s in record.get("series", ()) if [s["kind"], s["name"]] == chosen), None)


def losses_of(record: Mapping[str, Any]) -> list[float]:
    series = main_series(record)
    if series is None:
        return []
    return [s["loss"] for s in series["steps"][:_MOST_STEPS] if s["loss"] is not None]


def speed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Steps of a run: count, first, median of the later half, and all of them, in milliseconds."""
    series = main_series(record)
    if series is None or not series["steps"]:
        return {"steps": 0}
    steps = series["steps"]
    times = [s["end"] - s["begin"] for s in steps]
    cycles = [b["end"] - a["end"] for a, b in itertools.pairwise(steps)]
    later = cycles[len(cycles) // 2 :] or times
    return {
        "kind": series["kind"],
        "name": series["name"],
        "location": series["location"],
        "steps": len(steps),
        "first_step_seconds": times[0],
        "to_first_step_seconds": steps[0]["end"],
        "step_seconds": statistics.median(later),
        "call_seconds": statistics.median(times[len(times) // 2 :]),
        "milliseconds": [1e3 * t for t in [times[0], *cycles][:_MOST_STEPS]],
    }


def _memory(record: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(record.get("memory", {}))
    if "npu_memory" in record:
        found["device"] = record["npu_memory"]
    series = main_series(record)
    steps = series["steps"] if series else []
    found["by_step"] = [s["resident"] for s in steps[:_MOST_STEPS]]
    found["growth_per_step"] = growth(found["by_step"])
    return found


def growth(sizes: list[int]) -> float:
    """Memory growth in bytes per step: the median slope of the later steps; 0 if there are too few steps.

    The median of all pairs ignores jumps such as a compile or a garbage collection; memory that rises only now and
    then does not count as growth.

    >>> growth([100, 100, 500, 500, 500, 500, 500, 500]), growth([0, 0, 0, 0, 90, 91, 91, 91, 120, 120])
    (0.0, 0.0)
    >>> growth([0, 0, 0, 0, 10, 20, 30, 40, 50, 60, 70])
    10.0
    """
    later = sizes[len(sizes) // 3 :]
    if len(later) < _FEWEST_STEPS:
        return 0.0
    rises = [b > a for a, b in itertools.pairwise(later)]
    if sum(rises) < RISING * len(rises):
        return 0.0
    slopes = [
        (later[j] - later[i]) / (j - i)
        for i in range(len(later))
        for j in range(i + 1, min(len(later), i + 40))
    ]
    return max(0.0, float(statistics.median(slopes)))


def compare_outputs(plain: Mapping[str, np.ndarray], npu: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Compare the results of both runs pairwise: by name if both have the same names, else by position.

    If float64 results are known, each row also has both errors against them.
    """
    exact = [array for name, array in npu.items() if name.startswith(EXACT)]
    npu = {name: array for name, array in npu.items() if not name.startswith(EXACT)}
    if set(plain) == set(npu):
        pairs = [(name, plain[name], npu[name]) for name in plain]
    else:
        pairs = [(a, plain[a], npu[b]) for a, b in zip(plain, npu, strict=False)]
    rows = [_difference(name, wanted, found) for name, wanted, found in pairs]
    for row, (_, wanted, found), true in zip(rows, pairs, exact, strict=False):
        if wanted.shape == found.shape == true.shape:
            row["framework_to_float64"] = errors(true, wanted)["error"]
            row["npu_to_float64"] = errors(true, found)["error"]
    return rows


def _difference(name: str, wanted: np.ndarray, found: np.ndarray) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "shape": list(wanted.shape), "dtype": str(wanted.dtype)}
    if wanted.shape != found.shape:
        return row | {"mismatch": f"shape {list(found.shape)} on the NPU", "error": None}
    return row | errors(wanted, found)


def errors(wanted: np.ndarray, found: np.ndarray) -> dict[str, Any]:
    """Error of an array: relative in the 2-norm, maximum absolute, number of non-finite values."""
    a, b = wanted.astype(np.float64).ravel(), found.astype(np.float64).ravel()
    same = np.isfinite(a) & np.isfinite(b)
    difference = np.abs(a[same] - b[same])
    norm = float(np.linalg.norm(a[same]))
    lost = int((np.isfinite(a) & ~np.isfinite(b)).sum())
    relative = float(np.linalg.norm(difference)) / norm if norm else float(np.linalg.norm(difference))
    return {
        "error": relative,
        "largest": float(difference.max(initial=0.0)),
        "not_finite": lost,
        "scale": norm / max(1, a.size) ** 0.5,
    }
