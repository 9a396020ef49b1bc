"""TensorFlow's operators on sparse tensors whose results are dense, or have the positions they came with."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge.ir.types import FLOATS, numpy_dtype
from ge.ops.math.checks import in_range
from ge.ops.plugins import Node, Results, Unsupported, plugin
from ge.ops.tensor.gather_scatter import nd_indices


def _spread(n: Node, places: int, values: int, shape: list[int], empty: Any, reduction: str = "none") -> Any:
    """The dense form of a sparse tensor; `empty` fills the rest."""
    whole = n.op(
        "BroadcastTo", n.builder.constant(np.asarray(empty, numpy_dtype(n.desc(values).dtype))), shape=shape
    )
    return n.op("ScatterNd", whole, nd_indices(n, places, shape), n.inputs[values], reduction=reduction)


@plugin(tensorflow="SparseTensorDenseAdd")
def _sparse_dense_add(n: Node) -> Results:
    return n.op("ScatterNd", n.inputs[3], nd_indices(n, 0, n.desc(3).shape), n.inputs[1], reduction="add")


_CWISE = {"SparseDenseCwiseAdd": "Add", "SparseDenseCwiseMul": "Mul", "SparseDenseCwiseDiv": "Div"}


@plugin(tensorflow=list(_CWISE))
def _sparse_dense_cwise(n: Node) -> Results:
    """The values of a sparse tensor combined with the elements of a dense one at the same positions."""
    shape = n.ints(2, "the shape of the sparse operand")
    dense = n.op("BroadcastTo", n.inputs[3], shape=shape)
    return n.op(_CWISE[n.type], n.inputs[1], n.op("GatherNd", dense, nd_indices(n, 0, shape)))


@plugin(tensorflow=["SparseReduceSum", "SparseReduceMax"])
def _sparse_reduce(n: Node) -> Results:
    """Rows without an element give zero."""
    shape = n.ints(2, "the shape of the sparse operand")
    axes = n.ints(3, "the axes") or list(range(len(shape)))
    keep = bool(n.attr("keep_dims", False))
    if n.type == "SparseReduceSum":
        return n.op("ReduceSum", _spread(n, 0, 1, shape, 0, "add"), axes=axes, keepdims=keep)
    kind = numpy_dtype(n.desc(1).dtype)
    least = -np.inf if n.desc(1).dtype in FLOATS else np.iinfo(kind).min
    most = n.op("ReduceMax", _spread(n, 0, 1, shape, least), axes=axes, keepdims=keep)
    ones = n.op("BroadcastTo", n.builder.constant(np.float32(1)), shape=n.desc(1).shape)
    blank = n.op("BroadcastTo", n.builder.constant(np.float32(0)), shape=shape)
    hits = n.op(
        "ReduceMax", n.op("ScatterNd", blank, nd_indices(n, 0, shape), ones), axes=axes, keepdims=keep
    )
    return n.op("Select", n.op("Greater", hits, 0.0), most, np.zeros((), kind))


@plugin(tensorflow=["SparseSegmentSumGrad", "SparseSegmentMeanGrad", "SparseSegmentSqrtNGrad"])
def _sparse_segment_gradient(n: Node) -> Results:
    """Each row gets the gradients of its segments, scaled as in the forward operator."""
    rows = n.ints(3, "the number of rows")[0]
    ids = in_range(n.builder, n.op("Cast", n.inputs[2], to="int64"), n.desc().shape[:1], "segment_ids")
    grad: Any = n.inputs[0]
    kind, row = numpy_dtype(n.desc().dtype), list(n.desc().shape[1:])
    if not n.type.startswith("SparseSegmentSum"):
        ones = n.builder.constant(np.ones(n.desc(2).shape, kind))
        zeros = n.builder.constant(np.zeros(n.desc().shape[:1], kind))
        counts = n.op(
            "ScatterNd", zeros, n.op("Reshape", ids, shape=[n.desc(2).size, 1]), ones, reduction="add"
        )
        counts = n.op("Maximum", counts, np.ones((), kind))
        divisor = n.op("Sqrt", counts) if "SqrtN" in n.type else counts
        grad = n.op("Div", grad, n.op("Reshape", divisor, shape=[n.desc().shape[0], *[1] * len(row)]))
    parts = n.op("Gather", grad, ids, axis=0)
    start = n.op("BroadcastTo", n.builder.constant(np.zeros((), kind)), shape=[rows, *row])
    spots = in_range(n.builder, n.op("Cast", n.inputs[1], to="int64"), [rows])
    spots = n.op("Reshape", spots, shape=[n.desc(1).size, 1])
    return n.op("ScatterNd", start, spots, parts, reduction="add")


_IN_PLACE = {"InplaceAdd": "add", "InplaceSub": "add", "InplaceUpdate": "none"}


@plugin(tensorflow=list(_IN_PLACE))
def _in_place_rows(n: Node) -> Results:
    """Rows of x updated by the rows of v."""
    if n.desc().dtype == "bool":
        raise Unsupported(f"{n.type} of bool")
    if not n.desc(1).rank:
        raise Unsupported(f"{n.type} of the whole tensor", "use tf.tensor_scatter_nd_update")
    rows: Any = n.op("Neg", n.inputs[2]) if n.type == "InplaceSub" else n.inputs[2]
    # TensorFlow counts in circles here.
    spots = n.op("Mod", n.op("Cast", n.inputs[1], to="int64"), n.desc().shape[0])
    spots = n.op("Reshape", spots, shape=[n.desc(1).size, 1])
    return n.op("ScatterNd", n.inputs[0], spots, rows, reduction=_IN_PLACE[n.type])
