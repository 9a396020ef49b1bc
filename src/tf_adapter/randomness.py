"""Rewrites the stateful random operators of a function as stateless ones with an explicit counter.

TensorFlow's RandomUniform and its kin keep a Philox generator in the kernel: its key is the attribute `seed`,
the upper half of its counter `seed2`, and every call moves the counter on by 256 for each number drawn. Here the
counter is an argument of the function; the caller advances it, so that the numbers are the same. Operators
in branches of version-1 graphs draw only when their branch is taken: there the counter is a variable that the program
itself moves.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from ge.ir.values import desc_of
from ge.ops.plugins import Node, Unsupported, find, plugin
from ge.parsers.tensorflow.convert import Context, Outputs, handler
from ge.parsers.tensorflow.values import Missing, Variable
from tf_adapter.graphs import ARGUMENT, FlatGraph, FlatNode

__all__ = ["COUNTED", "Counter", "steps_of", "with_counters"]

_PER_NUMBER = 256
_ONE_THREAD = 100_000  # cycles up to which TensorFlow does not divide a batch among its threads
_PREFIX = "NpuCounted"
_PHILOX = 1
_SWITCH = ("Switch", "RefSwitch")
_STATELESS = {
    "RandomUniform": "StatelessRandomUniformV2",
    "RandomStandardNormal": "StatelessRandomNormalV2",
    "TruncatedNormal": "StatelessTruncatedNormalV2",
    "RandomUniformInt": "StatelessRandomUniformIntV2",
}
COUNTED = frozenset({*_STATELESS, "Multinomial"})
"""The stateful operators that can be replaced."""
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Counter:
    """A generator: the argument that stands for its counter, its key, and the counter before the first call.

    Without a seed, `high` is None: each session or function draws its own when it begins.
    """

    argument: str
    key: int
    high: int | None
    moved: bool = False  # by the program, which knows whether its operator runs


def with_counters(graph: FlatGraph) -> tuple[FlatGraph, list[Counter]]:
    """The function with its stateful random operators replaced, and their generators.

    The counters are no arguments in the graph's list: they follow it.
    """
    if not any(n.op in COUNTED for n in graph.nodes.values()):
        return graph, []
    conditional = _in_branches(graph)
    counters: list[Counter] = []
    nodes: dict[str, FlatNode] = {}
    for node in graph.nodes.values():
        if node.op in COUNTED:
            counter = _counter(node, f"{node.name}.counter", node.name in conditional)
            counters.append(counter)
            nodes[counter.argument] = FlatNode(
                counter.argument, ARGUMENT, [], [], {}, (tf.uint64.as_datatype_enum,)
            )
            node = _counted(node, counter)
        nodes[node.name] = node
    return replace(graph, nodes=nodes), counters


def _in_branches(graph: FlatGraph) -> set[str]:
    """Nodes that may belong to a branch of version 1: those that depend on a Switch."""
    todo = [n.name for n in graph.nodes.values() if n.op in _SWITCH]
    if not todo:
        return set()
    readers: dict[str, list[str]] = defaultdict(list)
    for node in graph.nodes.values():
        for name in (*(i for i, _ in node.inputs), *node.controls):
            readers[name].append(node.name)
    found = set(todo)
    while todo:
        new = [name for name in readers[todo.pop()] if name not in found]
        found.update(new)
        todo += new
    return found


def _counter(node: FlatNode, argument: str, moved: bool) -> Counter:
    seeds = [int(node.attr[name].i) if name in node.attr else 0 for name in ("seed", "seed2")]
    return Counter(argument, seeds[0] & _MASK, seeds[1] & _MASK if any(seeds) else None, moved)


def _counted(node: FlatNode, counter: Counter) -> FlatNode:
    attr = {k: v for k, v in node.attr.items() if not k.startswith("seed")}
    key = attr_value_pb2.AttrValue()
    key.s = str(counter.key).encode()
    inputs = [node.inputs[0], (counter.argument, 0), *node.inputs[1:]]
    return replace(node, op=_PREFIX + node.op, inputs=inputs, attr={**attr, "key": key})


def _declare(op: str, stateless: str) -> None:
    handler(_PREFIX + op)(_drawn)

    @plugin(tensorflow=_PREFIX + op)
    def counted(n: Node) -> ir.Value:
        shape, counter, *limits = n.inputs
        result = _numbers(n, stateless, shape, counter, limits, n.attr("Tout", n.attr("dtype", "float32")))
        return _counts(n, counter, result, math.prod(desc_of(result).shape))


def _numbers(n: Node, type_: str, shape: Any, counter: Any, limits: Sequence[Any], dtype: str) -> ir.Value:
    """The numbers that a generator gives from a counter on."""
    key = n.builder.constant(np.asarray([int(_text(n.attr("key")))], np.uint64))
    algorithm = n.builder.constant(np.int32(_PHILOX))
    made = find("tensorflow", type_)
    assert made is not None
    inputs = [shape, key, counter, algorithm, *limits]
    result = made.function(replace(n, type=type_, inputs=inputs, attrs={**n.attrs, "dtype": dtype}))
    assert isinstance(result, ir.Value)
    return result


def _counts(n: Node, counter: Any, result: ir.Value, numbers: int) -> ir.Value:
    """Note how far a call moves the counter on."""
    n.builder.graph.metadata_props[f"drawn:{counter.name}"] = str(_PER_NUMBER * numbers)
    n.builder.graph.metadata_props[f"step:{result.name}"] = str(_PER_NUMBER * numbers)
    return result


handler(_PREFIX + "Multinomial")(lambda c: _drawn(c))


@plugin(tensorflow=_PREFIX + "Multinomial")
def _multinomial(n: Node) -> ir.Value:
    """The class at which the sum of the probabilities passes a number of double precision.

    TensorFlow divides large batches among its threads, each of which begins elsewhere in the sequence: their numbers
    depend on the machine, and stay the host's.
    """
    logits, counter = n.inputs[:2]
    (samples,) = n.ints(2, "the number of samples")
    batch, classes = n.desc().shape
    if batch * 50 * (samples * math.log2(max(classes, 2)) + classes) > _ONE_THREAD:
        raise Unsupported(
            "its numbers depend on how TensorFlow divides the batch among its threads",
            "draw with tf.random.stateless_categorical, or smaller batches",
        )
    wide = n.op("Cast", logits, to="float64")
    finite = n.op("IsFinite", wide)
    top = n.op("ReduceMax", n.op("Select", finite, wide, float("-inf")), axes=[1], keepdims=True)
    shares = n.op("Select", finite, n.op("Exp", n.op("Sub", wide, top)), 0.0)
    sums = n.op("CumSum", shares, axis=1)
    total = n.op("Slice", sums, starts=[0, classes - 1], ends=[batch, classes])
    shape = n.builder.constant(np.asarray([batch, samples], np.int64))
    found = n.op("Mul", _numbers(n, "StatelessRandomUniformV2", shape, counter, (), "float64"), total)
    passed = n.op(
        "LessEqual",
        n.op("Reshape", sums, shape=[batch, 1, classes]),
        n.op("Reshape", found, shape=[batch, samples, 1]),
    )
    dtype = str(n.attr("output_dtype", "int64"))
    result = n.op("ReduceSum", n.op("Cast", passed, to=dtype), axes=[2], keepdims=False)
    return _counts(n, counter, result, batch * 2 * (-(-samples // 4) * 4))


def _drawn(c: Context) -> Outputs:
    """A random operator; where its counter is a variable, that is moved on here."""
    counter = c.binding(1)
    if not isinstance(counter, Variable):
        return c.converter.by_plugin(c)
    before = c.converter.read(counter)
    if before.producer() is None:
        c.converter.drawn[counter.name] = before
    else:  # the same draw again, in a branch of the gradient
        before = c.converter.drawn[counter.name]
    found = c.converter.by_plugin(replace(c, inputs=[c.inputs[0], before, *c.inputs[2:]]))
    result = found[0] if not isinstance(found, Missing) else None
    if isinstance(result, ir.Value):
        moved = int(c.builder.graph.metadata_props[f"step:{result.name}"])
        step = np.asarray([moved, 0], np.uint64)  # the caller carries to the upper half
        c.converter.write(counter, c.builder.op("Add", before, step))
    return found


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


for _op, _stateless in _STATELESS.items():
    _declare(_op, _stateless)


def steps_of(graph: ir.Graph, counters: Sequence[Counter]) -> list[int]:
    """How far a caller moves each counter on at a call of a parsed function."""
    drawn = [int(graph.metadata_props.pop(f"drawn:{c.argument}", "0")) for c in counters]
    return [0 if c.moved else step for c, step in zip(counters, drawn, strict=True)]
