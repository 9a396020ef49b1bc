"""Tensor dumps requested by a script: disabled while it is measured, collected in a separate run."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ge import tensor_dump
from npu_tools.check.observe.patching import around

__all__ = ["collected", "suspend"]

_MOST = 400  # rows of each table
_NUMBERS = ("least", "greatest", "mean")


def suspend() -> None:
    """Write no tensors in this process."""
    around(tensor_dump, "dump_to", lambda original: lambda settings, owner: None)


def collected(line: Callable[[str], str]) -> dict[str, Any]:
    """The operators that overflowed, and the tensors of the first step that was written; `line` is that of a node."""

    def location(nodes: tuple[str, ...]) -> str:
        return next(filter(None, map(line, nodes)), "")

    flaws = [
        asdict(flaw) | {"origin": list(flaw.origin), "location": location((flaw.node, *flaw.origin))}
        for flaw in tensor_dump.overflows()[:_MOST]
    ]
    rows = [row for folder in tensor_dump.folders() for path in _first_steps(folder) for row in _read(path)]
    for row in rows[:_MOST]:
        row["location"] = location((row["node"], *row["origin"].split()))
    return {"overflows": flaws, "tensors": rows[:_MOST]}


def _first_steps(folder: Path) -> list[Path]:
    """The table of the first step of each program below a folder, the largest programs first."""
    found: dict[Path, Path] = {}
    for path in folder.rglob("tensors.csv"):
        before = found.setdefault(path.parent.parent, path)
        if int(path.parent.name) < int(before.parent.name):
            found[path.parent.parent] = path
    return sorted(found.values(), key=lambda path: -path.stat().st_size)


def _read(path: Path) -> list[dict[str, Any]]:
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        {key: row[key] for key in ("operators", "node", "origin", "side", "dtype", "shape")}
        | {key: float(row[key]) if row[key] else None for key in _NUMBERS}
        | {
            "not_finite": int(row["not_finite"] or 0),
            "step": int(path.parent.name),
            "program": path.parents[2].name,
        }
        for row in rows
    ]
