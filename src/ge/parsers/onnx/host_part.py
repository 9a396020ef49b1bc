"""Splits off the nodes of an ONNX model that process text or decode images; the host runs them before and after it.

1. Operators that make new strings, or numbers of strings, run on the host (`_runs_on_host`).
2. Such a node runs before the plan if it depends only on inputs, constants and movements of them; these movements, and
   movements of the strings that it creates, run there too.
3. All others run after the plan, as do all their successors, which must be movements or such operators.
4. The shapes that the plan receives from the first part come from a trial run with the inputs' shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from ge.errors import GeError
from ge.interface.host import HostPart
from ge.parsers.onnx import large_tensors
from ge.parsers.onnx.model import ModelFile, reads_of, sorted_nodes

__all__ = ["HostParts", "has_text", "is_text_operator", "split"]

_TEXT_OPERATORS = frozenset(
    {
        ("", "ImageDecoder"),
        ("", "RegexFullMatch"),
        ("", "StringConcat"),
        ("", "StringNormalizer"),
        ("", "StringSplit"),
        ("ai.onnx.ml", "CastMap"),
        ("ai.onnx.ml", "DictVectorizer"),
        ("com.microsoft", "Tokenizer"),
    }
)
_MAKES_TEXT = frozenset({"StringConcat", "StringNormalizer", "StringSplit", "Tokenizer"})
_MOVES = frozenset(
    {
        *("Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze"),
        *("Tile", "Transpose", "Unsqueeze", "Where", "ArrayFeatureExtractor"),
    }
)
_LIGHT = _MOVES | {"Cast", "Constant", "Equal", "LabelEncoder", "Shape", "Size"}


@dataclass
class HostParts:
    """The parts of a model that the host runs."""

    before: onnx.ModelProto | None = None
    after: onnx.ModelProto | None = None
    trial: dict[str, Any] = field(default_factory=dict)  # results of `before` in a trial run
    crossing: tuple[str, ...] = ()  # values that the plan reads from `before`
    leaving: tuple[str, ...] = ()  # values that `after` reads from the plan
    text: frozenset[str] = frozenset()
    alone: tuple[onnx.ValueInfoProto, ...] = ()  # inputs that only the host reads
    inputs: tuple[str, ...] = ()  # the model's own, in order
    outputs: tuple[str, ...] = ()

    @property
    def reads(self) -> set[str]:
        """The model inputs that the host reads."""
        return {p.name for part in (self.before, self.after) if part is not None for p in part.graph.input}

    @property
    def makes(self) -> set[str]:
        """Values that the host computes."""
        return {p.name for part in (self.before, self.after) if part is not None for p in part.graph.output}

    def part(self, which: str, ports: Mapping[str, int]) -> HostPart:
        """A part with the plan's ports that it is connected to."""
        proto, names = (self.before, self.crossing) if which == "before" else (self.after, self.leaving)
        if proto is None:
            return HostPart()
        links = tuple((name, ports[name], name in self.text) for name in names)
        return HostPart(proto.SerializeToString(deterministic=True), links)


def split(file: ModelFile, sample: Callable[[onnx.ValueInfoProto], Any]) -> tuple[ModelFile, HostParts]:
    """Split a model into the plan's part and the host's parts; `sample` makes trial values of inputs."""
    graph = file.proto.graph
    if not has_text(graph):
        return file, HostParts()
    known = {p.name for p in graph.input} | {t.name for t in graph.initializer}
    nodes = sorted_nodes(graph.node, known, file.name)
    text = _text_values(graph, nodes)
    before, after = _assigned(nodes, text)
    if not before and not after:
        return file, HostParts()
    rest = [n for i, n in enumerate(nodes) if i not in before and i not in after]
    parts = [[nodes[i] for i in sorted(side)] for side in (before, after)]
    wanted = {p.name for p in graph.output}
    made = [{o for n in part for o in n.output if o} for part in (*parts, rest)]
    read = [{name for n in part for name in reads_of(n)} for part in (*parts, rest)]
    crossing = tuple(sorted(made[0] & read[2]))
    leaving = tuple(sorted(made[2] & read[1]))
    host = HostParts(
        _extracted(file, parts[0], made[0] & (read[1] | read[2] | wanted), "before"),
        _extracted(file, parts[1], made[1] & wanted, "after"),
        crossing=crossing,
        leaving=leaving,
        text=frozenset(text),
    )
    if crossing:
        host.trial = _trial(host.before, graph, sample)
    proto = _remaining(file, rest, host, made, read[2])
    kept = {p.name for p in proto.graph.input}
    host.alone = tuple(p for p in graph.input if p.name in host.reads - kept)
    host.inputs = tuple(p.name for p in graph.input)
    host.outputs = tuple(p.name for p in graph.output)
    return replace(file, proto=proto), host


def has_text(graph: onnx.GraphProto) -> bool:
    """True if a graph has string inputs or an operator on text."""
    given = any(p.type.tensor_type.elem_type == TensorProto.STRING for p in graph.input)
    return given or any(_runs_on_host(n, set()) for n in graph.node)


def _attribute(node: onnx.NodeProto, name: str) -> Any:
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), None)


def _runs_on_host(node: onnx.NodeProto, text: set[str]) -> bool:
    if node.op_type == "Cast":
        return node.input[0] in text or _attribute(node, "to") == TensorProto.STRING
    if node.op_type == "TfIdfVectorizer":
        return node.input[0] in text
    return is_text_operator(node)


def is_text_operator(node: onnx.NodeProto) -> bool:
    """True if a node runs on the host whatever it reads."""
    return ("" if node.domain == "ai.onnx" else node.domain, node.op_type) in _TEXT_OPERATORS


def _text_values(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> set[str]:
    """The values that are tensors of strings."""
    text = {p.name for p in graph.input if p.type.tensor_type.elem_type == TensorProto.STRING}
    text |= {t.name for t in graph.initializer if t.data_type == TensorProto.STRING}
    for node in nodes:
        if node.op_type in _MAKES_TEXT or _returns_text(node) or _moves_text(node, text):
            text |= set(node.output[:1] if node.op_type in _MAKES_TEXT else node.output)
    return text


def _returns_text(node: onnx.NodeProto) -> bool:
    if node.op_type == "CastMap":
        return bool(_attribute(node, "cast_to") == b"TO_STRING")
    if node.op_type == "Cast":
        return bool(_attribute(node, "to") == TensorProto.STRING)
    if node.op_type == "Constant":
        value = _attribute(node, "value")
        return (value is not None and value.data_type == TensorProto.STRING) or any(
            a.name.startswith("value_string") for a in node.attribute
        )
    if node.op_type == "LabelEncoder":
        tensor = _attribute(node, "values_tensor")
        return bool(_attribute(node, "values_strings")) or (
            tensor is not None and tensor.data_type == TensorProto.STRING
        )
    return False


def _moves_text(node: onnx.NodeProto, text: set[str]) -> bool:
    place = 1 if node.op_type == "Where" else 0
    return node.op_type in _MOVES and len(node.input) > place and node.input[place] in text


def _assigned(nodes: Sequence[onnx.NodeProto], text: set[str]) -> tuple[set[int], set[int]]:
    """The nodes that run before the plan and after it, by position."""
    maker = {name: i for i, n in enumerate(nodes) for name in n.output if name}
    light: dict[int, bool] = {}  # True if a node and all its predecessors may run before the plan
    before: set[int] = set()
    after: set[int] = set()
    for i, node in enumerate(nodes):
        sources = [maker[name] for name in reads_of(node) if name in maker]
        host = _runs_on_host(node, text)
        light[i] = (host or node.op_type in _LIGHT) and all(light[s] for s in sources)
        if any(s in after for s in sources):
            if not host and node.op_type not in _LIGHT:
                raise GeError(
                    "E10005",
                    "it is computed from strings that the plan's results are turned into",
                    node=node.name or node.output[0],
                    operator=node.op_type,
                    remedy="end the model there, and go on from its output in a second one",
                )
            after.add(i)
        elif host and not light[i]:
            after.add(i)
        elif host or (light[i] and any(s in before and _strings(nodes[s], text) for s in sources)):
            before |= {i, *_ancestors(i, nodes, maker)}
    return before - after, after


def _strings(node: onnx.NodeProto, text: set[str]) -> bool:
    return any(name in text for name in node.output)


def _ancestors(start: int, nodes: Sequence[onnx.NodeProto], maker: Mapping[str, int]) -> set[int]:
    found: set[int] = set()
    stack = [start]
    while stack:
        for name in reads_of(nodes[stack.pop()]):
            source = maker.get(name)
            if source is not None and source not in found:
                found.add(source)
                stack.append(source)
    return found


def _extracted(
    file: ModelFile, nodes: Sequence[onnx.NodeProto], outputs: set[str], name: str
) -> onnx.ModelProto | None:
    """Extract some nodes as a separate model."""
    if not nodes:
        return None
    made = {o for n in nodes for o in n.output}
    read = {r for n in nodes for r in reads_of(n)} - made
    graph = file.proto.graph
    arrays = file.folder.arrays if file.folder else ()
    constants = [large_tensors.restored(t, arrays) for t in graph.initializer if t.name in read]
    stored = {t.name for t in constants}
    inputs = [onnx.ValueInfoProto(name=r) for r in sorted(read - stored)]
    results = [onnx.ValueInfoProto(name=o) for o in sorted(outputs)]
    inner = helper.make_graph(list(nodes), name, inputs, results, constants)
    return helper.make_model(
        inner, opset_imports=list(file.proto.opset_import), ir_version=file.proto.ir_version or 8
    )


def _trial(
    part: onnx.ModelProto | None, graph: onnx.GraphProto, sample: Callable[[onnx.ValueInfoProto], Any]
) -> dict[str, Any]:
    assert part is not None, "values come from it"
    reads = {p.name for p in part.graph.input}
    values = {p.name: sample(p) for p in graph.input if p.name in reads}
    return HostPart(part.SerializeToString()).run(values)


def _remaining(
    file: ModelFile,
    nodes: Sequence[onnx.NodeProto],
    host: HostParts,
    made: Sequence[set[str]],
    read: set[str],
) -> onnx.ModelProto:
    """The model of the plan: without the host's nodes, with ports for values that cross."""
    graph = file.proto.graph
    kept = read | {p.name for p in graph.output if p.name not in made[0] | made[1]}
    inputs = [p for p in graph.input if p.name in kept or p.name not in host.reads]
    for name in host.crossing:
        array = np.asarray(host.trial[name])
        kind = TensorProto.STRING if name in host.text else helper.np_dtype_to_tensor_dtype(array.dtype)
        inputs.append(helper.make_tensor_value_info(name, kind, array.shape))
    outputs = [p for p in graph.output if p.name not in made[0] | made[1]]
    names = {p.name for p in outputs}
    outputs += [onnx.ValueInfoProto(name=n) for n in host.leaving if n not in names]
    constants = [t for t in graph.initializer if t.name in kept]
    rest = helper.make_graph(nodes, graph.name, inputs, outputs, constants)
    rest.sparse_initializer.extend(graph.sparse_initializer)
    made_of = onnx.ModelProto()
    made_of.CopyFrom(file.proto)
    made_of.graph.CopyFrom(rest)
    return made_of
