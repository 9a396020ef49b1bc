"""Interleaved timing, answer checks, ratios and tables, shared by all benchmarks."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

__all__ = ["console", "geometric_mean", "interleave", "milliseconds", "new_table", "ratio", "relative_error"]

console = Console(width=None if Console().is_terminal else 160, highlight=False)


def interleave(
    calls: Mapping[str, Callable[[], Any]],
    rounds: int,
    burst_seconds: float = 0.1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Times of each call by a clock, taken in rounds that visit every contender in turn.

    Each visit starts with one call that is not timed, which lets the worker threads of the contender before
    it go to sleep; then calls are timed for `burst_seconds`, at least one. The order turns by one place a
    round.
    """
    names = list(calls)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        shift = number % max(len(names), 1)
        for name in names[shift:] + names[:shift]:
            calls[name]()
            times[name] += _burst(calls[name], burst_seconds, clock)
    return times


def _burst(call: Callable[[], Any], seconds: float, clock: Callable[[], float]) -> list[float]:
    taken: list[float] = []
    start = time.perf_counter()
    while True:
        begin = clock()
        call()
        taken.append(clock() - begin)
        if time.perf_counter() - start >= seconds:
            return taken


def relative_error(got: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The largest difference relative to the largest expected magnitude; infinite on a wrong shape or NaN.

    >>> relative_error([np.array([1.0, 2.0])], [np.array([1.0, 2.5])])
    0.2
    """
    worst = 0.0
    for g, e in zip(got, expected, strict=True):
        if g.shape != e.shape:
            return math.inf
        error = float(np.max(np.abs(g.astype(np.float64) - e))) / max(float(np.max(np.abs(e))), 1e-30)
        worst = max(worst, math.inf if math.isnan(error) else error)
    return worst


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean; NaN of nothing.

    >>> geometric_mean([1.0, 4.0])
    2.0
    """
    values = list(values)
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan


def milliseconds(seconds: float) -> str:
    """Three significant digits.

    >>> milliseconds(0.0367), milliseconds(1.2), milliseconds(0.0000123)
    ('36.7', '1200', '0.0123')
    """
    value = seconds * 1e3
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:.{digits}f}"


def ratio(value: float | None) -> str:
    """A ratio with its colour: green at 1 or above."""
    if value is None or math.isnan(value):
        return "–"
    return f"[{'green' if value >= 1 else 'red'}]{value:.2f}×[/]"


def new_table(title: str, columns: Sequence[str]) -> Table:
    """A table whose first column is text and the others numbers."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=index == 0)
    return table
