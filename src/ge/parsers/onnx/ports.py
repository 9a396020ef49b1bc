"""Maps inputs and outputs of an ONNX model (tensors, strings, sequences, optionals, maps) to ports of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ge.errors import GeError
from ge.interface import Interface, Leaf, Tree
from ge.ir import facts
from ge.ir.types import TensorDesc
from ge.ops.builder import GraphBuilder
from ge.ops.plugins import Maps, Sequence_
from ge.parsers.onnx.convert import FAILED, Binding, Converter
from ge.parsers.onnx.host_part import HostParts
from ge.parsers.onnx.model import MAX_BYTES, ModelFile, array_of
from ge.parsers.onnx.narrow import TEXT, plain_dtype
from ge.parsers.onnx.shapes import Shapes

__all__ = ["Ports", "flat_values"]


@dataclass
class Ports:
    """Creates the ports of a graph and records their structure for callers."""

    builder: GraphBuilder
    shapes: Shapes
    converter: Converter
    host: HostParts
    names: list[str] = field(default_factory=list)
    inputs: list[Tree | Leaf] = field(default_factory=list)
    crossing: dict[str, int] = field(default_factory=dict)
    plain: bool = True  # all inputs and outputs are tensors of numbers

    # -- inputs ---------------------------------------------------------------------------------------------

    def input(self, port: onnx.ValueInfoProto) -> Binding:
        """An input of the plan."""
        if port.name in self.host.crossing:
            value = self._tensor(port.name, port.type.tensor_type)
            self.crossing[port.name] = len(self.builder.graph.inputs) - 1
            return value
        value, tree = self._made(port.name, port.type)
        if isinstance(tree, Leaf) and port.name in self.host.reads:
            tree = Leaf(tree.port, port.name, tree.text)
        self.names.append(port.name)
        self.inputs.append(tree)
        return value

    def host_input(self, port: onnx.ValueInfoProto) -> None:
        """An input that only the host reads."""
        self.names.append(port.name)
        self.inputs.append(Leaf(host=port.name))
        self.plain = False

    def _made(self, name: str, kind: onnx.TypeProto) -> tuple[Binding, Tree | Leaf]:
        what = kind.WhichOneof("value")
        if what == "tensor_type":
            value = self._tensor(name, kind.tensor_type)
            text = isinstance(value, ir.Value) and facts.narrow(value) == TEXT
            self.plain = self.plain and not text
            return value, Leaf(len(self.builder.graph.inputs) - 1, text=text)
        self.plain = False
        if what == "sequence_type":
            count = self.shapes.count(name)
            parts = [self._made(f"{name}.{i}", kind.sequence_type.elem_type) for i in range(count)]
            return self._list(parts, optional=False)
        if what == "optional_type":
            absent = self.shapes.absent(name)
            inner = [] if absent else [self._made(name, kind.optional_type.elem_type)]
            return self._list(inner, optional=True)
        label = (what or "unknown").removesuffix("_type")
        self.converter.refused[("Input", f"it is a {label}", "feed tensors")] = [name]
        return FAILED, Leaf()

    @staticmethod
    def _list(parts: Sequence[tuple[Binding, Tree | Leaf]], optional: bool) -> tuple[Binding, Tree]:
        tree = Tree(tuple(tree for _, tree in parts), optional)
        if any(value is FAILED for value, _ in parts):
            return FAILED, tree
        return Sequence_(tuple(value for value, _ in parts), optional), tree

    def _tensor(self, name: str, kind: Any) -> Binding:
        try:
            dtype, narrow = plain_dtype(kind.elem_type)
        except (KeyError, ValueError):
            known = kind.elem_type in onnx.TensorProto.DataType.values()
            label = onnx.TensorProto.DataType.Name(kind.elem_type).lower() if known else kind.elem_type
            self.converter.refused[("Input", f"no engine accepts {label}", "feed numbers or bools")] = [name]
            return FAILED
        shape = self.shapes.of(name, kind)
        desc = TensorDesc(shape, dtype)
        if desc.nbytes > MAX_BYTES:
            raise GeError("E10014", f"input {name} of {desc} is larger than {MAX_BYTES >> 40} TiB")
        value = self.builder.input(name, shape, dtype)
        if narrow:
            facts.set_narrow(value, narrow)
        return value

    # -- outputs --------------------------------------------------------------------------------------------

    def output(self, name: str, value: Binding) -> Tree | Leaf:
        """An output: the tree of ports that it is assembled from."""
        if isinstance(value, Sequence_):
            self.plain = False
            parts = [self.output(f"{name}.{i}", item) for i, item in enumerate(value.items)]
            return Tree(tuple(parts), value.optional)
        if isinstance(value, Maps):
            self.plain = False
            return Leaf(self._port(name, value.value), keys=value.keys)
        if not isinstance(value, ir.Value):
            if value is not FAILED:
                self.converter.refused[("Output", "it has no value", "make it tensors")] = [name]
            return Leaf()
        text = facts.narrow(value) == TEXT
        self.plain = self.plain and not text
        return Leaf(self._port(name, value), text=text)

    def _port(self, name: str, value: ir.Value) -> int:
        made = self.builder.output(value, name)
        if facts.narrow(value):
            facts.set_narrow(made, facts.narrow(value))
        return len(self.builder.graph.outputs) - 1

    def interface(
        self, file: ModelFile, order: Sequence[str], outputs: Mapping[str, Tree | Leaf], wanted: Sequence[str]
    ) -> Interface | None:
        """The record of structured inputs and outputs; None if all are plain tensors."""
        if self.plain and not self.host.makes:
            return None
        trees = {**outputs, **{name: Leaf(host=name) for name in self.host.makes}}
        leaving = {name: tree.port for name, tree in outputs.items() if isinstance(tree, Leaf)}
        place = {name: i for i, name in enumerate(order)}
        sorted_inputs = sorted(zip(self.names, self.inputs, strict=True), key=lambda p: place[p[0]])
        return Interface(
            tuple(name for name, _ in sorted_inputs),
            tuple(tree for _, tree in sorted_inputs),
            tuple(trees[name] for name in wanted),
            _strings(file) if self._needs_strings(outputs) else (),
            self.host.part("before", self.crossing),
            self.host.part("after", leaving),
        )

    def _needs_strings(self, outputs: Mapping[str, Tree | Leaf]) -> bool:
        def has_text(tree: Tree | Leaf) -> bool:
            return tree.text if isinstance(tree, Leaf) else any(map(has_text, tree.items))

        return any(map(has_text, outputs.values()))


def flat_values(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Flatten offered values; elements of sequences get names of their own."""
    found: dict[str, np.ndarray] = {}
    for name, value in values.items():
        if isinstance(value, list | tuple):
            found.update(flat_values({f"{name}.{i}": item for i, item in enumerate(value)}))
        elif value is not None and not isinstance(value, dict):
            found[name] = np.asarray(value)
    return found


def _strings(file: ModelFile) -> tuple[str, ...]:
    """All string constants of a model, in order of appearance."""
    found: dict[str, None] = {}
    graphs = [file.proto.graph]
    nodes = [n for f in file.functions.values() for n in f.node]
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            for tensor in graph.initializer:
                found.update(dict.fromkeys(_texts(tensor, file)))
            nodes += graph.node
            continue
        for attribute in nodes.pop().attribute:
            found.update(
                dict.fromkeys(s.decode("utf-8", "replace") for s in (*attribute.strings, attribute.s))
            )
            found.update(dict.fromkeys(_texts(attribute.t, file)))
            graphs += [attribute.g, *attribute.graphs]
    found.update(dict.fromkeys(("_Unused", "")))
    return tuple(found)


def _texts(tensor: onnx.TensorProto, file: ModelFile) -> list[str]:
    if tensor.data_type != onnx.TensorProto.STRING:
        return []
    items = array_of(tensor, file.folder).reshape(-1).tolist()
    return [i.decode("utf-8", "replace") if isinstance(i, bytes) else str(i) for i in items]
