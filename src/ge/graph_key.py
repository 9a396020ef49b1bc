"""The key of a graph: a digest of its content that is stable across processes."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ge.ir.types import TensorDesc

__all__ = ["graph_key"]

_SERIAL = re.compile(r"(?<=\.)\d+$|(?<=^v)\d+$")  # as ge.ops.builder numbers constants, nodes and values


class _NoText(Exception):
    """A value without a stable text."""


def graph_key(graph: ir.Graph, facts: Sequence[object] = (), *, named: bool = False) -> str | None:
    """A digest of a graph's content and of facts; None if the graph has values without a stable text.

    The serial numbers at the end of names count only if options refer to nodes by name (`named`): the graph builder
    numbers nodes and values throughout a process. A cached model takes the names of the graph's inputs and outputs.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"ge": 1}, name="net")
    >>> graph_key(graph) == graph_key(graph.clone()), graph_key(graph) == graph_key(graph, ["other"])
    (True, False)
    """
    content = _Content(named)
    try:
        content.add("facts", repr(facts))
        content.graph(graph)
    except _NoText:
        return None
    return content.hasher.hexdigest()


class _Content:
    """Feeds a graph to a hash; values are numbered in visiting order."""

    def __init__(self, named: bool) -> None:
        self.named = named
        self.hasher = hashlib.blake2b(digest_size=24)
        self.numbers: dict[int, int] = {}

    def add(self, *parts: object) -> None:
        self.hasher.update(repr(parts).encode())

    def name(self, text: str | None) -> str | None:
        return text if self.named or text is None else _SERIAL.sub("", text)

    def graph(self, graph: ir.Graph) -> None:
        self.add(
            "graph", graph.name, sorted(graph.opset_imports.items()), sorted(graph.metadata_props.items())
        )
        self.plain(dict(graph.meta))
        for value in graph.inputs:
            self.value(value)
        for value in graph.initializers.values():
            self.value(value)
            self.tensor(value.const_value)
        for node in graph:
            self.node(node)
        self.add("outputs", [self.numbers.get(id(value)) for value in graph.outputs])

    def node(self, node: ir.Node) -> None:
        inputs = [None if value is None else self.numbers.get(id(value), -1) for value in node.inputs]
        if -1 in inputs:
            raise _NoText  # a value of an enclosing graph that was not visited
        named = (node.domain, node.op_type, node.overload, node.version, self.name(node.name))
        self.add("node", named, inputs, sorted(node.metadata_props.items()), len(node.outputs))
        self.plain(dict(node.meta))
        for name, attr in sorted(node.attributes.items()):
            self.add(name)
            self.attribute(attr)
        for value in node.outputs:
            self.value(value)
            if value.const_value is not None:
                self.tensor(value.const_value)

    def value(self, value: ir.Value) -> None:
        self.numbers[id(value)] = len(self.numbers)
        self.add(
            self.name(value.name), repr(value.type), repr(value.shape), sorted(value.metadata_props.items())
        )
        self.plain(dict(value.meta))

    def attribute(self, attr: Any) -> None:
        if attr.type == ir.AttributeType.GRAPH:
            self.graph(attr.value)
        elif attr.type == ir.AttributeType.GRAPHS:
            for graph in attr.value:
                self.graph(graph)
        elif attr.type == ir.AttributeType.TENSOR:
            self.tensor(attr.value)
        else:
            self.add(str(attr.type))
            self.plain(attr.value)

    def tensor(self, tensor: Any) -> None:
        if tensor is None:
            self.add(None)
            return
        self.add("tensor", str(tensor.dtype), tuple(map(str, tensor.shape)))
        self.plain(tensor.numpy())

    def plain(self, value: object) -> None:
        """Hash a value made of plain data."""
        if value is None or isinstance(
            value, (bool, int, float, complex, str, bytes, TensorDesc, os.PathLike)
        ):
            self.add(value)
        elif isinstance(value, (np.ndarray, np.generic)):
            array = np.asarray(value, order="C")
            self.add(str(array.dtype), array.shape)
            if array.dtype.hasobject:
                self.plain(array.reshape(-1).tolist())
            else:
                self.hasher.update(array.reshape(-1).view(np.uint8).data)
        elif isinstance(value, Mapping):
            self.add("mapping", len(value))
            for key in sorted(value, key=repr):
                self.plain(key)
                self.plain(value[key])
        elif isinstance(value, (frozenset, set)):
            self.plain(sorted(value, key=repr))
        elif isinstance(value, (tuple, list)):
            self.add("sequence", len(value))
            for item in value:
                self.plain(item)
        else:
            raise _NoText
