"""TensorFlow's questions about shapes and arithmetic with them; shapes are static, so all become constants."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge.ir.types import numpy_dtype
from ge.parsers.plugin import Node, Results, plugin


def _integers(n: Node, values: Any, attr: str = "out_type") -> Any:
    """A constant of integers, of the type the node asks for."""
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
    return n.builder.constant(np.argsort(n.const(0, "the permutation")).astype(numpy_dtype(n.desc().dtype)))


@plugin(tensorflow="ConcatOffset")
def _concat_offset(n: Node) -> Results:
    """Where each part starts in a concatenation."""
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
    """The axes that a gradient of a broadcast operand is summed over, for both operands."""
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
