"""Measures a `tf.data` pipeline without a model, and the share of each stage."""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

import tensorflow as tf

__all__ = ["measure"]

_SECONDS = 0.6  # for one stage
_ELEMENTS = 24
_LINE = "_npu_check_line"


def measure(dataset: Any) -> dict[str, Any] | None:
    """Seconds per batch, and the stages with their share and line; None for fewer than two batches."""
    chain = _chain(dataset)
    with tf.device("/CPU:0"):
        until = [_seconds(stage, factor) for stage, factor in zip(chain, _factors(chain), strict=True)]
    whole = until[-1]
    if whole is None:
        return None
    # The cumulative time up to a stage is at most that up to a later one.
    bounded = list(itertools.accumulate([t or 0.0 for t in reversed(until)], min))[::-1]
    parts = [b - a for a, b in itertools.pairwise([0.0, *bounded])]
    stages = [
        {"stage": _name(stage), "location": getattr(stage, _LINE, ""), "seconds": part}
        for stage, part in zip(chain, parts, strict=True)
    ]
    return {"seconds": whole, "stages": stages}


def _chain(dataset: Any) -> list[Any]:
    """A dataset and its inputs, source first, as long as there is a single source."""
    chain = [dataset]
    while len(chain[-1]._inputs()) == 1:
        chain.append(chain[-1]._inputs()[0])
    bare = [d for d in chain if _name(d) not in ("Prefetch", "Options", "ModelDataset")]
    return list(reversed(bare)) or [dataset]


def _factors(chain: list[Any]) -> list[int]:
    """Number of elements of each stage per element of the last one."""
    factors, needed = [], 1
    for stage in reversed(chain):
        factors.append(needed)
        size = getattr(stage, "_batch_size", None)
        if size is not None:
            needed *= max(1, int(size))
    return list(reversed(factors))


def _seconds(dataset: Any, factor: int) -> float | None:
    """Seconds for `count` elements: the median; the mean for stages that prepare several at once.

    Elements in between are skipped inside TensorFlow, since returning each to Python would cost more than most stages.
    Warm-up elements do not count. None if the dataset is too short.
    """
    iterator = iter(dataset if factor == 1 else dataset.shard(factor, factor - 1))
    ends = [time.perf_counter()]
    for _ in range(_ELEMENTS):
        if next(iterator, None) is None:
            break
        ends.append(time.perf_counter())
        if ends[-1] - ends[0] > _SECONDS and len(ends) > 2:
            break
    taken = [b - a for a, b in itertools.pairwise(ends[1:])]
    if not taken:
        return None
    return statistics.fmean(taken) if _name(dataset).startswith("Parallel") else statistics.median(taken)


def _name(dataset: Any) -> str:
    name = type(dataset).__name__.lstrip("_").removesuffix("V1").removesuffix("V2").removesuffix("Dataset")
    return name or "Dataset"
