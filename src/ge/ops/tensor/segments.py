"""TensorFlow's segment reductions: rows combined by segment id."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from ge.ir.types import FLOATS, numpy_dtype
from ge.ops.math.checks import in_range
from ge.ops.plugins import Node, Results, plugin
from ge.ops.tensor.gather_scatter import indices_tf


def _neutral(n: Node, reduction: str, dtype: str, finite: bool = True) -> Any:
    """The neutral element; with `finite` the largest or smallest number instead of an infinity."""
    kind = numpy_dtype(dtype)
    if reduction in ("add", "mul"):
        return n.builder.constant(np.asarray(0 if reduction == "add" else 1, kind))
    if dtype in FLOATS:
        bound = ml_dtypes.finfo(kind).max if finite else np.inf
        return n.builder.constant(np.asarray(-bound if reduction == "max" else bound).astype(kind))
    limits = np.iinfo(kind)
    return n.builder.constant(np.asarray(limits.min if reduction == "max" else limits.max, kind))


def _segments(n: Node, data: Any, ids: Any, count: int, reduction: str, empty: Any) -> Any:
    """Rows combined by segment id; negative ids go to a row that is cut off."""
    id_shape = [int(d) for d in ids.shape]
    shape = [int(d) for d in data.shape]
    row = shape[len(id_shape) :]
    rows = n.op("Reshape", data, shape=[math.prod(id_shape), *row])
    spots = n.op("Reshape", n.op("Cast", ids, to="int64"), shape=[math.prod(id_shape), 1])
    spots = n.op("Select", n.op("Less", spots, 0), count, spots)
    start = n.op("BroadcastTo", empty, shape=[count + 1, *row])
    y = n.op("ScatterNd", start, spots, rows, reduction=reduction)
    return n.op("Slice", y, starts=[0] * (1 + len(row)), ends=[count, *row])


_UNSORTED = {
    "UnsortedSegmentSum": "add",
    "UnsortedSegmentProd": "mul",
    "UnsortedSegmentMax": "max",
    "UnsortedSegmentMin": "min",
}


@plugin(tensorflow=list(_UNSORTED))
def _unsorted_segments(n: Node) -> Results:
    reduction, count = _UNSORTED[n.type], n.ints(2, "the number of segments")[0]
    empty = _neutral(n, reduction, n.desc().dtype)
    least = np.iinfo(numpy_dtype(n.desc(1).dtype)).min  # rows of negative segments are ignored
    ids = in_range(n.builder, n.inputs[1], [count], "segment_ids", int(least))
    return _segments(n, n.inputs[0], ids, count, reduction, empty)


_SORTED = {
    "SegmentSum": "add",
    "SegmentMean": "add",
    "SegmentProd": "mul",
    "SegmentMax": "max",
    "SegmentMin": "min",
    "SparseSegmentSum": "add",
    "SparseSegmentMean": "add",
    "SparseSegmentSqrtN": "add",
    "SparseSegmentSumWithNumSegments": "add",
    "SparseSegmentMeanWithNumSegments": "add",
    "SparseSegmentSqrtNWithNumSegments": "add",
}


@plugin(tensorflow=list(_SORTED))
def _sorted_segments(n: Node) -> Results:
    """Segments with known ids; the sparse forms gather the rows first, empty segments are zero."""
    sparse, reduction = n.type.startswith("Sparse"), _SORTED[n.type]
    ids = n.const(2 if sparse else 1, "the segments")
    data = n.inputs[0]
    if sparse:
        data = n.op("Gather", data, in_range(n.builder, indices_tf(n, 1), n.desc().shape[:1]), axis=0)
    count = int(ids.max(initial=-1)) + 1
    if n.type.endswith("WithNumSegments"):
        count = n.ints(3, "the number of segments")[0]
    sizes = np.bincount(ids, minlength=count)[:count]
    empty = _neutral(n, reduction, n.desc().dtype, finite=False)
    y = _segments(n, data, n.builder.constant(ids.astype(np.int64)), count, reduction, empty)
    column = sizes.reshape(-1, *(1,) * (n.desc().rank - 1))
    if "Mean" in n.type or "SqrtN" in n.type:
        divisor = np.sqrt(np.maximum(column, 1)) if "SqrtN" in n.type else np.maximum(column, 1)
        y = n.op("Div", y, n.builder.constant(divisor.astype(numpy_dtype(n.desc().dtype))))
    if reduction in ("max", "min") and not sizes.all():
        y = n.op("Select", n.builder.constant(column > 0), y, np.zeros((), numpy_dtype(n.desc().dtype)))
    return y
