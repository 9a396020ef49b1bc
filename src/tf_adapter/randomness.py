"""Stateful random operators of a function as stateless ones whose counter is handed in.

TensorFlow's RandomUniform and its kin keep a Philox generator in the kernel: its key is the attribute `seed`,
the upper half of its counter `seed2`, and every call moves the counter on by 256 for each number drawn. Here the
counter is an argument of the function; whoever calls it does the moving, so that the numbers are the same.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from ge.ir.values import desc_of
from ge.parsers.plugin import Node, find, plugin
from tf_adapter.graphs import ARGUMENT, FlatGraph, FlatNode

__all__ = ["COUNTED", "Counter", "steps_of", "with_counters"]

_PER_NUMBER = 256
_PREFIX = "NpuCounted"
_PHILOX = 1
_STATELESS = {
    "RandomUniform": "StatelessRandomUniformV2",
    "RandomStandardNormal": "StatelessRandomNormalV2",
    "TruncatedNormal": "StatelessTruncatedNormalV2",
    "RandomUniformInt": "StatelessRandomUniformIntV2",
}
COUNTED = frozenset(_STATELESS)
"""The stateful operators that can be replaced."""
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Counter:
    """A generator: the argument that stands for its counter, its key, and the counter before the first call."""

    argument: str
    key: int
    high: int


def with_counters(graph: FlatGraph) -> tuple[FlatGraph, list[Counter]]:
    """The function with its stateful random operators replaced, and their generators.

    The counters are no arguments in the graph's list: they follow it.
    """
    if not any(n.op in _STATELESS for n in graph.nodes.values()):
        return graph, []
    counters: list[Counter] = []
    nodes: dict[str, FlatNode] = {}
    for node in graph.nodes.values():
        if node.op in _STATELESS:
            counter = _counter(node, f"{node.name}.counter")
            counters.append(counter)
            nodes[counter.argument] = FlatNode(
                counter.argument, ARGUMENT, [], [], {}, (tf.uint64.as_datatype_enum,)
            )
            node = _counted(node, counter)
        nodes[node.name] = node
    return replace(graph, nodes=nodes), counters


def _counter(node: FlatNode, argument: str) -> Counter:
    seeds = [int(node.attr[name].i) if name in node.attr else 0 for name in ("seed", "seed2")]
    if not any(seeds):
        seeds = [secrets.randbits(63), secrets.randbits(63)]
    return Counter(argument, seeds[0] & _MASK, seeds[1] & _MASK)


def _counted(node: FlatNode, counter: Counter) -> FlatNode:
    attr = {k: v for k, v in node.attr.items() if not k.startswith("seed")}
    key = attr_value_pb2.AttrValue()
    key.s = str(counter.key).encode()
    inputs = [node.inputs[0], (counter.argument, 0), *node.inputs[1:]]
    return replace(node, op=_PREFIX + node.op, inputs=inputs, attr={**attr, "key": key})


def _declare(op: str, stateless: str) -> None:
    @plugin(tensorflow=_PREFIX + op)
    def counted(n: Node) -> ir.Value:
        shape, counter, *limits = n.inputs
        assert shape is not None and counter is not None
        key = n.builder.constant(np.asarray([int(_text(n.attr("key")))], np.uint64))
        algorithm = n.builder.constant(np.int32(_PHILOX))
        attrs = dict(n.attrs)
        attrs["dtype"] = n.attr("Tout", n.attr("dtype", "float32"))
        made = find("tensorflow", stateless)
        assert made is not None
        node = replace(n, type=stateless, inputs=[shape, key, counter, algorithm, *limits], attrs=attrs)
        result = made.function(node)
        assert isinstance(result, ir.Value)
        drawn = _PER_NUMBER * math.prod(desc_of(result).shape)
        n.builder.graph.metadata_props[f"drawn:{counter.name}"] = str(drawn)
        return result


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


for _op, _stateless in _STATELESS.items():
    _declare(_op, _stateless)


def steps_of(graph: ir.Graph, counters: Sequence[Counter]) -> list[int]:
    """How far each counter moves on at a call of a parsed function."""
    return [int(graph.metadata_props.pop(f"drawn:{c.argument}", "0")) for c in counters]
