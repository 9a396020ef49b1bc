"""TensorFlow's shape queries and shape arithmetic; shapes are static, so all become constants."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge.ir.types import numpy_dtype
from ge.ops.math.checks import in_range
from ge.ops.plugins import Node, Results, plugin


def _integers(n: Node, values: Any, attr: str = "out_type") -> Any:
    """A constant of integers, of the type that the node requests."""
    return n.builder.constant(np.asarray(values, numpy_dtype(str(n.attr(attr, "int32")))), n.name)


@plugin(tensorflow=["Shape", "ShapeN"])
def _shape_tf(n: Node) -> Results:
    return [_integers(n, n.desc(i).shape) for i in range(len(n.inputs))]


@plugin(tensorflow="Size")
def _size_tf(n: Node) -> Results:
    return _integers(n, n.desc().size)


@plugin(tensorflow="Rank")
def _rank_tf(n: Node) -> Results:
    return _integers(n, n.desc().rank)


@plugin(tensorflow="InvertPermutation")
def _invert_permutation(n: Node) -> Results:
    size, dtype = n.desc().size, numpy_dtype(n.desc().dtype)
    known = n.maybe_const(0)
    if known is not None and np.array_equal(np.sort(known), np.arange(size)):
        return n.builder.constant(np.argsort(known).astype(dtype))
    spots = in_range(n.builder, n.op("Cast", n.inputs[0], to="int64"), [size], "x")
    spots = n.op("Reshape", spots, shape=[size, 1])
    zeros, ones = (n.builder.constant(np.full(size, v, dtype)) for v in (0, 1))
    hits = n.op("ScatterNd", zeros, spots, ones, reduction="add")
    hits = in_range(n.builder, hits, [2], message="{place} is duplicated in the input")
    inverse = n.op("ScatterNd", zeros, spots, n.builder.constant(np.arange(size, dtype=dtype)))
    return n.op(
        "Sub", n.op("Add", inverse, hits), ones
    )  # the number of hits is one, once the check has passed


@plugin(tensorflow="ConcatOffset")
def _concat_offset(n: Node) -> Results:
    """The offset of each part in a concatenation."""
    axis, total = n.ints(0, "the axis")[0], 0
    results = []
    for i in range(1, len(n.inputs)):
        shape = n.const(i, "a shape")
        offset = np.zeros_like(shape)
        offset[axis] = total
        total += int(shape[axis])
        results.append(n.builder.constant(offset))
    return results


@plugin(tensorflow="BroadcastArgs")
def _broadcast_args(n: Node) -> Results:
    shape = np.broadcast_shapes(tuple(n.ints(0, "a shape")), tuple(n.ints(1, "a shape")))
    return n.builder.constant(np.asarray(shape, numpy_dtype(n.desc().dtype)))


@plugin(tensorflow="BroadcastGradientArgs")
def _broadcast_gradient_args(n: Node) -> Results:
    """The axes over which the gradient of a broadcast operand is summed, for both operands."""
    shapes = [n.ints(0, "a shape"), n.ints(1, "a shape")]
    rank = max(len(s) for s in shapes)
    full = [[1] * (rank - len(s)) + s for s in shapes]
    results = []
    for i, mine in enumerate(full):
        other = full[1 - i]
        missing = rank - len(shapes[i])
        axes = [a for a in range(rank) if a < missing or (mine[a] == 1 and other[a] != 1)]
        both_one = [a for a in range(rank) if mine[a] == 1 and other[a] == 1]
        results.append(
            n.builder.constant(np.asarray(sorted({*axes, *both_one}), numpy_dtype(n.desc().dtype)))
        )
    return results


@plugin(tensorflow="UnravelIndex")
def _unravel_index(n: Node) -> Results:
    """Positions in a flattened tensor as indices along its axes."""
    dims = n.ints(1, "the shape")
    kind = numpy_dtype(n.desc().dtype)
    strides = np.cumprod([1, *dims[:0:-1]], dtype=np.int64)[::-1]
    rest, parts = n.inputs[0], []
    for stride in strides:
        step = np.asarray(stride, kind)
        parts.append(n.op("Reshape", n.op("FloorDiv", rest, step), shape=[1, *n.desc().shape]))
        rest = n.op("Mod", rest, step)
    return n.op("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]


@plugin(tensorflow=["DataFormatDimMap", "DataFormatVecPermute"])
def _data_format(n: Node) -> Results:
    """Axes, or sizes along axes, of one data format converted to another."""
    source, target = (str(n.attr(k, v)) for k, v in (("src_format", "NHWC"), ("dst_format", "NCHW")))
    if n.type == "DataFormatDimMap":
        table = n.builder.constant(np.asarray([target.index(c) for c in source], numpy_dtype(n.desc().dtype)))
        rank = np.asarray(len(source), numpy_dtype(n.desc().dtype))
        return n.op("Gather", table, n.op("Mod", n.inputs[0], rank), axis=0)
    if n.desc().shape[0] != len(source):  # only the spatial axes
        source, target = ("".join(c for c in text if c not in "NC") for text in (source, target))
    order = np.asarray([source.index(c) for c in target], np.int64)
    return n.op("Gather", n.inputs[0], n.builder.constant(order), axis=0)
