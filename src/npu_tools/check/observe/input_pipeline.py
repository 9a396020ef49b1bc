"""How fast a `tf.data` pipeline is without a model, and which of its stages takes the time."""

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
    """Seconds for a batch, and the stages with their part of it and line; None for one of fewer than two batches."""
    chain = _chain(dataset)
    with tf.device("/CPU:0"):
        until = [_seconds(stage, factor) for stage, factor in zip(chain, _factors(chain), strict=True)]
    whole = until[-1]
    if whole is None:
        return None
    # What a stage and those before it take is at most what they and all behind them take.
    bounded = list(itertools.accumulate([t or 0.0 for t in reversed(until)], min))[::-1]
    parts = [b - a for a, b in itertools.pairwise([0.0, *bounded])]
    stages = [
        {"stage": _name(stage), "location": getattr(stage, _LINE, ""), "seconds": part}
        for stage, part in zip(chain, parts, strict=True)
    ]
    return {"seconds": whole, "stages": stages}


def _chain(dataset: Any) -> list[Any]:
    """A dataset and what it is made of, the source first, as far as there is one source."""
    chain = [dataset]
    while len(chain[-1]._inputs()) == 1:
        chain.append(chain[-1]._inputs()[0])
    bare = [d for d in chain if _name(d) not in ("Prefetch", "Options", "ModelDataset")]
    return list(reversed(bare)) or [dataset]


def _factors(chain: list[Any]) -> list[int]:
    """How many elements of each stage one element of the last one takes."""
    factors, needed = [], 1
    for stage in reversed(chain):
        factors.append(needed)
        size = getattr(stage, "_batch_size", None)
        if size is not None:
            needed *= max(1, int(size))
    return list(reversed(factors))


def _seconds(dataset: Any, factor: int) -> float | None:
    """Seconds for so many elements: the median, of stages that prepare several at once the mean.

    The elements in between are skipped inside TensorFlow: to hand each of them to Python would cost more than most
    stages do. The first ones, which start the pipeline, do not count. None for a dataset that ends too early to tell.
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
