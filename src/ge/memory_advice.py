"""Out-of-memory errors that name the largest tensors and the batch that would fit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ge.errors import OutOfMemoryError

__all__ = ["fitting_batch", "largest_text", "out_of_memory"]

NAMED = 4  # tensors named in an error


def largest_text(peak: Sequence[dict[str, Any]]) -> str:
    """The largest tensors as text.

    >>> largest_text([{"name": "conv/Add", "shape": [8, 4], "dtype": "float32", "nbytes": 3 << 20}])
    'conv/Add float32[8,4] 3.0 MiB'
    """
    return ", ".join(
        f"{t['name']} {t['dtype']}[{','.join(map(str, t['shape']))}] {t['nbytes'] / 2**20:.1f} MiB"
        for t in peak[:NAMED]
    )


def out_of_memory(
    cause: object, peak: Sequence[dict[str, Any]], requested: int, available: int, remedy: str
) -> OutOfMemoryError:
    """The error of a plan that needs more memory than available; peak: the entry of a plan's report."""
    named = f"; the largest tensors are {largest_text(peak)}" if peak else ""
    return OutOfMemoryError(
        "E10030", f"{cause}{named}", remedy=remedy, requested=requested, available=available, peak=peak
    )


def fitting_batch(
    peak: Sequence[dict[str, Any]],
    requested: int,
    available: int,
    batch: int,
    fixed: Collection[tuple[int, ...]] = (),
) -> int:
    """The largest batch that should fit, 0 if none does; tensors of the `fixed` shapes do not grow with the batch.

    >>> activations = {"name": "a", "shape": [64, 10], "dtype": "float32", "nbytes": 900}
    >>> weights = {"name": "w", "shape": [10, 10], "dtype": "float32", "nbytes": 100}
    >>> fitting_batch([activations, weights], 1000, 550, 64, {(10, 10)})
    32
    """
    growing = sum(t["nbytes"] for t in peak if _grows(tuple(t["shape"]), batch, fixed))
    if not growing:
        return 0
    listed = sum(t["nbytes"] for t in peak)
    share = requested * growing / listed  # includes gaps in the plan
    return max(int(batch * (available - (requested - share)) / share), 0)


def _grows(shape: tuple[int, ...], batch: int, fixed: Collection[tuple[int, ...]]) -> bool:
    return bool(shape) and shape not in fixed and (batch in shape or shape[0] % batch == 0)
