"""What a folder of operator files is compared with, and how."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from tbe.bench import ulp_errors

__all__ = ["Outcome", "differs", "load", "report"]

STATUSES = ("pass", "refused", "wrong")


@dataclass(frozen=True)
class Outcome:
    """One case: its family, its mode, what came of it and why."""

    family: str
    mode: str
    name: str
    status: str  # pass, refused (an error), wrong
    why: str = ""


def load(path: Path) -> ModuleType:
    """The module in a file that says what operators compute."""
    if not path.is_file():
        raise typer.BadParameter(f"{path} is not there: run this in a checkout, or give the files")
    spec = importlib.util.spec_from_file_location(f"_conformance_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def differs(found: Any, wanted: Any, limit: float, scale: float = 0.0) -> str:
    """How results differ from what is wanted, "" when they do not: whole numbers at all, others by ulps.

    >>> differs([np.float32([1])], [np.float32([1])], 0), differs([np.int32([1])], [np.int32([2])], 0)
    ('', 'output 0 differs')
    """
    if len(found) != len(wanted):
        return f"{len(found)} outputs, {len(wanted)} are wanted"
    for number, (got, other) in enumerate(zip(found, wanted, strict=True)):
        other = np.asarray(other)
        if got.size != other.size or got.dtype != other.dtype:
            return f"output {number} is {got.dtype}{list(got.shape)}, not {other.dtype}{list(other.shape)}"
        other = other.reshape(got.shape)
        if got.dtype.kind in "iub":
            if not np.array_equal(got, other):
                return f"output {number} differs"
        elif (worst := _distance(got, other, scale)) > limit:
            return f"output {number} differs by {worst:.3g} ulps, {limit:g} are allowed"
    return ""


def _distance(got: np.ndarray, wanted: np.ndarray, scale: float) -> float:
    """The largest distance in ulps; numbers below `scale` count in its ulps."""
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    if np.array_equal(a, b, equal_nan=True):
        return 0.0
    small = (np.abs(b) < scale) & np.isfinite(a)
    lifted = np.where(small, scale, b)
    errors = ulp_errors((lifted + np.where(small, a - b, 0.0)).astype(got.dtype), lifted)
    plain = ulp_errors(got, b)
    return float(np.max(np.where(small, errors, plain), initial=0.0))


def report(title: str, outcomes: Iterable[Outcome], show: int) -> int:
    """Print counts by family and mode, and the first that do not pass; the number of wrong ones."""
    found = list(outcomes)
    console = Console(width=140)
    table = Table("family", "mode", *STATUSES, title=title)
    groups = sorted({(o.family, o.mode) for o in found})
    for family, mode in [*groups, *(("all", m) for m in sorted({m for _, m in groups}))]:
        counts = Counter(o.status for o in found if o.mode == mode and family in (o.family, "all"))
        table.add_row(family, mode, *(str(counts[s]) for s in STATUSES))
    console.print(table)
    bad = [o for o in found if o.status != "pass"]
    for one in bad[:show]:
        console.print(f"{one.status}: {one.name} ({one.mode}): {one.why[:400]}", markup=False)
    return sum(o.status == "wrong" for o in found)
