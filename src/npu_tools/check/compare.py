"""Compares with an older report: figures, findings, checklist, operators."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npu_tools.check.assemble import SCHEMA
from npu_tools.outcome import Failure

__all__ = ["changes", "load"]

_CHANGED = 0.05  # smallest relative change that is reported
_MORE_IS_BETTER = ("speedup",)
_NOISE = {  # absolute differences below these are noise
    "input_share": 0.02,
    "memory_growth_kib": 32.0,
    "device_memory_share": 0.01,
    **dict.fromkeys(("output_error", "loss_error", "framework_loss_error"), 1e-5),
}
_NEUTRAL = ("operators", "plain_step_ms", "plain_first_step_s", "plain_peak_memory_mib")


def load(path: Path) -> dict[str, Any]:
    """Load an earlier report; raises Failure for any other file."""
    try:
        data: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Failure(
            f"{path} cannot be read as a report: {error}", "give the JSON file of an earlier check"
        ) from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else None
        raise Failure(f"{path} has the schema {found!r}, not {SCHEMA!r}", "check again with this version")
    figures = data["figures"].items()  # JSON has no "nan" and "inf"
    return data | {"figures": {name: None if value is None else float(value) for name, value in figures}}


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Differences between two reports as rows of old and new values."""
    return {
        "since": old.get("started", ""),
        "figures": _figures(old["figures"], new["figures"]),
        "new_findings": _missing(new["findings"], old["findings"]),
        "gone_findings": _missing(old["findings"], new["findings"]),
        "checklist": [
            {"item": b["item"], "old": a["state"], "new": b["state"]}
            for a, b in zip(old["checklist"], new["checklist"], strict=False)
            if a["item"] == b["item"] and a["state"] != b["state"]
        ],
        "operators": _operators(old, new),
    }


def _figures(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for name in new:
        a, b = old.get(name), new[name]
        if not _same(a, b, _NOISE.get(name, 0.0)):
            rows.append({"figure": name, "old": a, "new": b, "verdict": _verdict(name, a, b)})
    return rows


def _same(old: float | None, new: float | None, noise: float) -> bool:
    """True if a figure changed by no more than run-to-run noise.

    >>> _same(1.0, 1.04, 0.0), _same(1e-7, 2e-7, 1e-5), _same(None, 1.0, 0.0), _same(math.nan, math.nan, 0.0)
    (True, True, False, True)
    """
    if old is None or new is None:
        return old is new
    if not math.isfinite(old) or not math.isfinite(new):
        return str(old) == str(new)
    return abs(old - new) <= max(noise, _CHANGED * max(abs(old), abs(new)))


def _verdict(name: str, old: float | None, new: float | None) -> str:
    """Verdict on a change: better, worse, or "changed" for neutral figures.

    >>> _verdict("speedup", 1.0, 2.0), _verdict("step_ms", 1.0, 2.0), _verdict("operators", 1.0, 2.0)
    ('better', 'worse', 'changed')
    """
    if name in _NEUTRAL or old is None or new is None:
        return "changed"
    if math.isnan(old) or math.isnan(new):
        return "worse" if math.isnan(new) else "better"
    return "better" if (new > old) == (name in _MORE_IS_BETTER) else "worse"


def _missing(here: list[Any], there: list[Any]) -> list[dict[str, Any]]:
    """Findings missing from the other list; line numbers are ignored."""
    known = {(f["id"], _kind(f["title"])) for f in there}
    return [f for f in here if (f["id"], _kind(f["title"])) not in known]


def _kind(title: str) -> str:
    """A title without its numbers.

    >>> _kind("Cast ×12 runs on the host")
    'Cast × runs on the host'
    """
    return "".join(c for c in title if not c.isdigit() and c not in ".,%")


def _operators(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[dict[str, Any]]:
    before, after = (_places(report) for report in (old, new))
    return [
        {
            "operator": name,
            "place": place,
            "old": before.get((name, place), 0),
            "new": after.get((name, place), 0),
        }
        for name, place in sorted({*before, *after})
        if before.get((name, place), 0) != after.get((name, place), 0)
    ]


def _places(report: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for row in report["operators"]:
        key = (row["operator"], row["place"])
        found[key] = found.get(key, 0) + row["count"]
    return found
