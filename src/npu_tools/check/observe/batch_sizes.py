"""Measures a script's step at other batch sizes: time and device memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npu_tools.check.request import Request

__all__ = ["Repeatable", "attempt", "common_batch", "resized", "throughput"]

_SECONDS = 8.0  # for all sizes; the current size is completed
_WARM = 6
_REPEATS = 5
_ONE = 0.5  # sizes that take longer are not repeated

Step = Callable[[], Any]


def common_batch(shapes: Sequence[tuple[int, ...]]) -> int:
    """The first dimension shared by all tensors of a step; raises ValueError if there is none.

    >>> common_batch([(32, 8), (32,), ()])
    32
    """
    found = {shape[0] for shape in shapes if shape}
    if len(found) != 1:
        raise ValueError("its inputs have no common batch dimension")
    return found.pop()


def resized(array: np.ndarray, batch: int) -> np.ndarray:
    """An array with another number of rows, repeating its own.

    >>> resized(np.array([[1], [2]]), 3).ravel().tolist()
    [1, 2, 1]
    """
    return np.resize(array, (batch, *array.shape[1:])) if array.ndim else array


def sizes_around(batch: int, asked: Sequence[int]) -> list[int]:
    """The batch sizes to measure: the requested ones, else 1/2, 1, 2 and 4 times the script's own.

    >>> sizes_around(16, ()), sizes_around(1, ()), sizes_around(16, (8, 1))
    ([8, 16, 32, 64], [1, 2, 4], [1, 8])
    """
    return sorted(asked) if asked else sorted({max(1, batch // 2), batch, 2 * batch, 4 * batch})


@dataclass(frozen=True)
class Repeatable:
    """A repeatable step: its batch size, and a function that makes the step for another one."""

    batch: Callable[[], int]
    step: Callable[[int], Step]


def throughput(
    step: Repeatable | None, request: Request, tell: Callable[[str, int, int], None]
) -> list[dict[str, Any]]:
    """Rows of batch, seconds per step and device bytes; empty if the step cannot be repeated."""
    rows: list[dict[str, Any]] = []
    try:
        sizes = [] if step is None else sizes_around(step.batch(), request.batches)
    except ValueError:  # no batch dimension
        return rows
    began = time.perf_counter()
    for batch in sizes:
        if step is None or (rows and time.perf_counter() - began > _SECONDS):
            break
        tell("batch sizes", len(rows), len(sizes))
        try:
            rows.append({"batch": batch, **_measured(step.step(batch), request.side == "npu")})
        except Exception as error:  # a fixed batch size, or out of memory
            rows.append({"batch": batch, "refused": str(error)[:300]})
    return rows


def attempt(step: Repeatable | None, batch: int) -> dict[str, Any]:
    """Seconds of one step with this batch, or the reason why it fails."""
    if step is None:
        return {"refused": "the step cannot be repeated"}
    try:
        work = step.step(batch)
        begin = time.perf_counter()
        work()
        return {"seconds": time.perf_counter() - begin}
    except Exception as error:  # most likely one of memory
        return {"refused": _first_line(error)}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _measured(step: Step, on_npu: bool) -> dict[str, Any]:
    import npu_runtime

    if on_npu:
        npu_runtime.reset_peak()
    began = time.perf_counter()
    for _ in range(_WARM):  # the first step compiles; a later one may specialise for a frequent size
        step()
        if time.perf_counter() - began > _ONE:
            break
    times: list[float] = []
    while len(times) < _REPEATS and sum(times) < _ONE:
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    memory = npu_runtime.memory_info()
    used = {"arena": memory["peak"] - memory["constants"]} if on_npu else {}
    return {"seconds": statistics.median(times), **used}
