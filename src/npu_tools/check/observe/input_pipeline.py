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
    """Seconds for a batch, and the stages with their share and line; None for one of fewer than two batches."""
    chain = _chain(dataset)
    factors = _factors(chain)
    before, stages = 0.0, []
    with tf.device("/CPU:0"):
        for stage, factor in zip(chain, factors, strict=True):
            took = _seconds(stage, last=stage is chain[-1])
            if took is None:
                return None
            whole = took * factor
            stages.append(
                {
                    "stage": _name(stage),
                    "location": getattr(stage, _LINE, ""),
                    "seconds": max(0.0, whole - before),
                }
            )
            before = whole
    return {"seconds": before, "stages": stages}


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


def _seconds(dataset: Any, last: bool) -> float | None:
    """Seconds for an element: the median, of stages that prepare several at once the mean.

    The first element, which starts the pipeline, does not count. A source of one element, from which a later stage
    makes many, costs nothing; what a pipeline of one element takes is not known.
    """
    iterator = iter(dataset)
    ends = [time.perf_counter()]
    for _ in range(_ELEMENTS):
        if next(iterator, None) is None:
            break
        ends.append(time.perf_counter())
        if ends[-1] - ends[0] > _SECONDS and len(ends) > 2:
            break
    if len(ends) < 2:
        return None
    if len(ends) == 2:
        return None if last else 0.0
    taken = [b - a for a, b in itertools.pairwise(ends[1:])]
    return statistics.fmean(taken) if _name(dataset).startswith("Parallel") else statistics.median(taken)


def _name(dataset: Any) -> str:
    name = type(dataset).__name__.lstrip("_").removesuffix("V1").removesuffix("V2").removesuffix("Dataset")
    return name or "Dataset"
