"""Text as numbers: counting n-grams."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from ge.ir.values import desc_of
from ge.ops.plugins import Node, Results, Unsupported, plugin

_MODES = ("TF", "IDF", "TFIDF")


@plugin(onnx="TfIdfVectorizer")
def _tf_idf(n: Node) -> Results:
    """How often each n-gram of a pool occurs in each row, its elements 0 to max_skip_count places apart."""
    if n.attr("pool_strings") is not None or n.desc().dtype not in ("int32", "int64"):
        raise Unsupported(
            "counting n-grams of strings has no NPU implementation", "feed the numbers of the words"
        )
    mode, places = n.attr("mode"), np.asarray(n.attr("ngram_indexes"))
    if mode not in _MODES:
        raise Unsupported(f"mode {mode!r} of TfIdfVectorizer is unknown", f"use one of {', '.join(_MODES)}")
    shape = n.desc().shape
    x = n.inputs[0] if len(shape) == 2 else n.op("Reshape", n.inputs[0], shape=[1, *shape])
    counts = [_counted(n, x, grams) for grams in _pool(n)]
    total = counts[0] if len(counts) == 1 else n.op("Concat", *counts, axis=1)
    width = int(places.max()) + 1
    source = np.full(width, len(places), np.int64)  # one past the counts: a column of zeros
    source[places] = np.arange(len(places))
    rank = desc_of(total).rank
    padded = n.op("Pad", total, low=[0] * rank, high=[0] * (rank - 1) + [1])
    y = n.op("Gather", padded, source, axis=1)
    if mode == "IDF":
        y = n.op("Cast", n.op("Greater", y, 0.0), to="float32")
    weights = n.attr("weights")
    if mode != "TF" and weights is not None:
        spread = np.zeros(width, np.float32)
        spread[places] = weights
        y = n.op("Mul", y, spread)
    return y if len(shape) == 2 else n.op("Reshape", y, shape=[width])


def _pool(n: Node) -> list[np.ndarray]:
    """The n-grams of the pool as matrices, one per length; those of other lengths match nothing."""
    pool = np.asarray(n.attr("pool_int64s"), np.int64)
    starts = [*n.attr("ngram_counts"), len(pool)]
    spans = enumerate(itertools.pairwise(starts), 1)
    return [pool[a:b].reshape(-1, size) for size, (a, b) in spans if b > a]


def _counted(n: Node, x: Any, grams: np.ndarray) -> Any:
    """The number of occurrences of each n-gram in each row (rows, n-grams), as float32."""
    rows, length = desc_of(x).shape
    count, size = grams.shape
    wanted = int(n.attr("min_gram_length")) <= size <= int(n.attr("max_gram_length"))
    total: Any = n.op("BroadcastTo", np.float32(0), shape=[rows, count])
    for skip in range(int(n.attr("max_skip_count")) + 1 if size > 1 else 1):
        places = length - (size - 1) * (skip + 1)
        if places < 1 or not wanted:
            break
        where = np.arange(places)[:, None] + np.arange(size) * (skip + 1)
        windows = n.op("Reshape", n.op("Gather", x, where, axis=1), shape=[rows, places, 1, size])
        same = n.op("Equal", windows, grams.astype(desc_of(x).dtype))
        hits = n.op("Cast", n.op("ReduceAll", same, axes=[3]), to="float32")
        total = n.op("Add", total, n.op("ReduceSum", hits, axes=[1]))
    return total
