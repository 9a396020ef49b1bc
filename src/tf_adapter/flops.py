"""Estimates the arithmetic of a function's nodes from TensorFlow's shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tf_adapter.graphs import ARGUMENT, FlatGraph, FlatNode, Functions, Ref, called_functions, read_function

__all__ = ["estimate"]

Shape = Sequence[int | None] | None
_MOVEMENT = frozenset(
    {"Const", "Identity", "IdentityN", "NoOp", "Reshape", "Shape", "ExpandDims", "Squeeze", "StridedSlice"}
    | {
        "Pack",
        "Unpack",
        "Transpose",
        "ConcatV2",
        "ReadVariableOp",
        "StopGradient",
        "GatherV2",
        "Split",
        "Cast",
    }
    | {"AssignVariableOp", "ResourceGather", "Slice", "Pad", "PadV2", "Tile", "Fill", "Range", "BroadcastTo"}
)
_MOST_DEPTH = 8


def estimate(
    graph: FlatGraph, functions: Functions, shapes: Sequence[Shape], depth: int = 0
) -> dict[str, float]:
    """Floating-point operations by node; bodies of loops count once, unknown sizes as one.

    A multiplication with its addition is two operations; any other real element of a result is one.
    """
    inferred = _Shapes(graph, functions, shapes)
    return {
        node.name: _node(node, inferred, functions, depth)
        for node in graph.nodes.values()
        if node.op != ARGUMENT
    }


class _Shapes:
    """The static shapes of a graph's tensors, as TensorFlow infers them."""

    def __init__(self, graph: FlatGraph, functions: Functions, shapes: Sequence[Shape]) -> None:
        given = dict(zip(graph.args, shapes, strict=True))
        proto = graph.graph_def(functions)
        for node in proto.node:
            shape = given.get(node.name)
            if node.op == "ReadVariableOp" and node.input and given.get(node.input[0]) is not None:
                shape = given[node.input[0]]
                kind = node.attr["dtype"].type
                node.op = "Placeholder"
                del node.input[:]
                node.attr.clear()
                node.attr["dtype"].type = kind
            if node.op == "Placeholder" and shape is not None:
                node.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())
        self.known: dict[Ref, list[int | None] | None] = {}
        made = tf.Graph()
        try:
            with made.as_default():
                tf.graph_util.import_graph_def(proto, name="")
        except (ValueError, tf.errors.OpError):
            return  # nothing is known: every result counts as one element
        for op in made.get_operations():
            for index, output in enumerate(op.outputs):
                dims = None if output.shape.rank is None else output.shape.as_list()
                self.known[op.name, index] = dims

    def dims(self, ref: Ref) -> list[int]:
        return [d or 1 for d in self.known.get(ref) or []]

    def size(self, ref: Ref) -> int:
        return math.prod(self.dims(ref))


def _matmul(node: FlatNode, s: _Shapes) -> float:
    inner = s.dims(node.inputs[0])
    turned = any(node.attr[k].b for k in ("transpose_a", "adj_x") if k in node.attr)
    return 2.0 * s.size((node.name, 0)) * (inner[-2 if turned else -1] if len(inner) > 1 else 1)


def _convolution(node: FlatNode, s: _Shapes) -> float:
    return 2.0 * s.size((node.name, 0)) * math.prod(s.dims(node.inputs[1])[:-1] or [1])


def _depthwise(node: FlatNode, s: _Shapes) -> float:
    return 2.0 * s.size((node.name, 0)) * math.prod(s.dims(node.inputs[1])[:2] or [1])


def _input_gradient(node: FlatNode, s: _Shapes) -> float:
    return 2.0 * s.size(node.inputs[2]) * math.prod(s.dims(node.inputs[1])[:-1] or [1])


def _filter_gradient(node: FlatNode, s: _Shapes) -> float:
    return 2.0 * s.size(node.inputs[2]) * math.prod(s.dims((node.name, 0))[:-1] or [1])


def _einsum(node: FlatNode, s: _Shapes) -> float:
    equation = node.attr["equation"].s.decode().replace(" ", "").split("->")[0]
    sizes: dict[str, int] = {}
    for term, ref in zip(equation.split(","), node.inputs, strict=False):
        dims = s.dims(ref)
        letters = term.replace("...", "." * max(0, len(dims) - len(term.replace("...", ""))))
        sizes.update(zip(letters, dims, strict=False))
    return 2.0 * math.prod(sizes.values())


_RULES: Mapping[str, Callable[[FlatNode, _Shapes], float]] = {
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _matmul),
    **dict.fromkeys(("Conv2D", "Conv3D", "Conv"), _convolution),
    "DepthwiseConv2dNative": _depthwise,
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), _input_gradient),
    **dict.fromkeys(("Conv2DBackpropFilter", "Conv3DBackpropFilterV2"), _filter_gradient),
    "Einsum": _einsum,
}


def _node(node: FlatNode, shapes: _Shapes, functions: Functions, depth: int) -> float:
    if node.op in _MOVEMENT:
        return 0.0
    if node.op in _RULES:
        return _RULES[node.op](node, shapes)
    called = [n for n in called_functions(node.op, node.attr) if functions.find(n) is not None]
    if called and depth < _MOST_DEPTH:
        given = [shapes.known.get(ref) for ref in node.inputs]
        return math.fsum(_called(name, given, functions, depth) for name in called)
    real = [i for i, number in enumerate(node.types) if tf.dtypes.as_dtype(number).is_floating]
    return float(sum(shapes.size((node.name, i)) for i in real))


def _called(name: str, given: Sequence[Shape], functions: Functions, depth: int) -> float:
    body = read_function(name, functions)
    args = given if len(given) == len(body.args) else given[1:]  # a branch's first input is its condition
    args = args if len(args) == len(body.args) else [None for _ in body.args]
    return sum(estimate(body, functions, args, depth + 1).values())
