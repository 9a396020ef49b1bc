"""Rows of the front doors' benchmarks: a framework with this back end and by itself, interleaved, answers checked."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.contenders import limit_threads
from benchmarks.measure import (
    console,
    geometric_mean,
    interleave,
    milliseconds,
    new_table,
    ratio,
    relative_error,
)

__all__ = ["GOALS", "MODES", "Pair", "arguments", "report"]

GOALS = {"infer": 1.5, "train": 1.3}
MODES = tuple(GOALS)
Answer = Callable[[], np.ndarray]


@dataclass(frozen=True)
class Pair:
    """One row: the same call through both; a training step gives its loss."""

    name: str
    mode: str
    theirs: Answer
    ours: Answer


def arguments(text: str, names: Sequence[str]) -> Any:
    """The command line, with the threads set for everything that is imported later."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--models", nargs="+", choices=names, default=list(names))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="small networks, one round")
    found = parser.parse_args()
    limit_threads(found.threads)
    return found


def report(framework: str, pairs: Iterable[Pair], rounds: int, tolerance: float = 1e-3) -> None:
    """Print the table: the fastest call of each side, which noise disturbs least, and the geometric mean by mode."""
    table = new_table("", ["network", "mode", f"{framework} ms", "NPU ms", "ratio", "difference"])
    ratios: dict[str, list[float]] = {mode: [] for mode in MODES}
    for pair in pairs:
        difference = relative_error([pair.ours()], [pair.theirs()])
        times = interleave({"theirs": pair.theirs, "ours": pair.ours}, rounds)
        theirs, ours = min(times["theirs"]), min(times["ours"])
        ratios[pair.mode].append(theirs / ours)
        shown = f"{difference:.0e}" if difference <= tolerance else f"[red]{difference:.0e}[/]"
        table.add_row(
            pair.name, pair.mode, milliseconds(theirs), milliseconds(ours), ratio(theirs / ours), shown
        )
    console.print(table)
    for mode, found in ratios.items():
        if found:
            console.print(
                f"{mode}: geometric mean {geometric_mean(found):.2f} (goal {GOALS[mode]}), least {min(found):.2f}"
            )
