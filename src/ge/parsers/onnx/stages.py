"""Staged ONNX models (see `ge.hybrid.cuts`): converts the nodes that the values known so far allow.

1. A value that a later stage reads is an output of its stage. Non-numeric values (sequences, text) are recomputed by
   the stage that reads them.
2. An If that cannot be compiled waits until its condition is known; then the taken branch replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper
from onnx.inliner import inline_local_functions

from ge.errors import GeError
from ge.hybrid.cuts import Cut, constants_for
from ge.ir import facts
from ge.ir.facts import OpenShape
from ge.ir.types import dtype_to_ir
from ge.ir.values import desc_of
from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions
from ge.parsers.onnx.convert import Converter, Scope
from ge.parsers.onnx.host_part import HostParts, has_text
from ge.parsers.onnx.model import ModelFile, load, reads_of, subgraphs
from ge.parsers.onnx.narrow import store
from ge.parsers.onnx.ports import Ports
from ge.parsers.onnx.shapes import Shapes

__all__ = ["OnnxStage", "first_stage"]


def first_stage(
    source: Any, options: CompileOptions
) -> tuple[OnnxStage, tuple[str, ...], Mapping[str, OpenShape]]:
    """The whole model, the names of its outputs, and its inputs with -1 for unknown sizes."""
    file = load(source)
    if file.functions:
        proto = inline_local_functions(file.proto)
        file = replace(load(proto), name=file.name, folder=file.folder)
    if has_text(file.proto.graph):
        raise GeError(
            "E10005",
            f"{file.name} computes on text and has sizes that depend on data",
            remedy="divide it where the text ends",
        )
    lists = [p.name for p in file.proto.graph.input if not p.type.HasField("tensor_type")]
    if lists:
        raise GeError(
            "E10005",
            f"{file.name} takes a sequence, optional or map ({lists[0]}) and has sizes that depend on data",
            remedy="give it tensors",
        )
    outputs = tuple(p.name for p in file.proto.graph.output)
    return OnnxStage(file, outputs), outputs, Shapes(file, options.input_shapes, None).declared()


@dataclass(frozen=True)
class OnnxStage:
    """The remaining nodes as a model whose inputs are the known values."""

    file: ModelFile
    wanted: tuple[str, ...]  # outputs of the model that are still unknown
    taken: frozenset[str] = frozenset()  # names of conditions that select a branch of an If

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """The names that the nodes write and read."""
        return (tuple(o for n in self.file.proto.graph.node for o in n.output), self.reads, self.taken)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The known values."""
        graph = self.file.proto.graph
        stored = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
        return tuple(p.name for p in graph.input if p.name not in stored)

    def prepare(self, values: dict[str, Any]) -> None:
        """Nothing runs on the host."""

    def cut(self, values: Mapping[str, Any]) -> Cut:
        """Convert as many nodes as the values' shapes allow; values that determine sizes become constants."""
        branches = {name: values[name] for name in self.taken & values.keys()}
        file = _with_branches(self.file, branches) if branches else self.file
        fixed: dict[str, np.ndarray] = {}
        while True:
            converter, scope = self._converted(file, values, fixed)
            more = constants_for(converter.needed, values, self.reads)
            if more.keys() <= fixed.keys():
                break
            fixed.update(more)
        if converter.refused:
            raise converter.refusals()
        later, crossing = _left(file, converter, scope, self.wanted)
        if len(later) == len(file.proto.graph.node):
            raise converter.refusals()
        for name in crossing:
            scope.builder.output(_tensor(scope, name, file), name)
        rest = None if not later else self._rest(file, later, scope, values)
        inputs = tuple(v.name or "" for v in scope.builder.graph.inputs)
        return Cut(scope.builder.graph, inputs, crossing, frozenset(fixed) | branches.keys(), rest)

    def _converted(
        self, file: ModelFile, values: Mapping[str, Any], fixed: Mapping[str, np.ndarray]
    ) -> tuple[Converter, Scope]:
        builder = GraphBuilder(file.proto.graph.name or file.name)
        converter = Converter(file, in_stages=True)
        scope = Scope(builder, file.opsets)
        shapes = Shapes(file, {n: np.shape(values[n]) for n in self.reads}, None)
        ports = Ports(builder, shapes, converter, HostParts())
        for port in file.proto.graph.input:
            if port.name in fixed:
                scope.values[port.name] = store(builder, fixed[port.name], port.name)
            elif port.name in self.reads:
                scope.values[port.name] = ports.input(port)
        converter.graph(file.proto.graph, scope, file.name)
        return converter, scope

    def _rest(
        self, file: ModelFile, later: Sequence[onnx.NodeProto], scope: Scope, values: Mapping[str, Any]
    ) -> OnnxStage:
        """The nodes of later stages as a model; its inputs have the types of this one's values."""
        graph = file.proto.graph
        made = {o for n in later for o in n.output if o}
        wanted = tuple(name for name in self.wanted if name in made)
        read = {name: None for n in later for name in reads_of(n) if name not in made}
        constants = [t for t in graph.initializer if t.name in read]
        sparse = [t for t in graph.sparse_initializer if t.values.name in read]
        stored = {t.name for t in constants} | {t.values.name for t in sparse}
        kinds = {n: _element_type(n, scope, values) for n in read if n not in stored}
        inputs = [helper.make_tensor_value_info(n, kind, None) for n, kind in kinds.items()]
        outputs = [onnx.ValueInfoProto(name=name) for name in wanted]
        inner = helper.make_graph(later, graph.name, inputs, outputs, constants, sparse_initializer=sparse)
        proto = onnx.ModelProto()
        proto.ir_version = file.proto.ir_version
        proto.opset_import.extend(file.proto.opset_import)
        proto.graph.CopyFrom(inner)
        taken = frozenset(n.input[0] for n in later if n.op_type == "If" and n.input[0] in kinds)
        return OnnxStage(replace(file, proto=proto), wanted, taken)


def _left(
    file: ModelFile, converter: Converter, scope: Scope, wanted: Sequence[str]
) -> tuple[list[onnx.NodeProto], tuple[str, ...]]:
    """The nodes of later stages in order, and the values of this stage that they or the caller need (rule 1)."""
    graph = file.proto.graph
    maker = {o: node for node in graph.node for o in node.output if o}
    later = {id(node) for node in converter.later}
    outputs = {o for node in converter.later for o in node.output}
    todo = list(converter.later)
    crossing: dict[str, None] = {}
    for name in wanted:
        if name not in outputs:
            crossing[name] = None
    while todo:
        for name in reads_of(todo.pop()):
            node = maker.get(name)
            if node is None or id(node) in later:
                continue
            if _is_tensor(scope.values.get(name)):
                crossing[name] = None
            else:
                later.add(id(node))
                todo.append(node)
    return [node for node in graph.node if id(node) in later], tuple(crossing)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, ir.Value) and not facts.narrow(value)


def _tensor(scope: Scope, name: str, file: ModelFile) -> ir.Value:
    value = scope.find(name)
    if not _is_tensor(value):
        raise GeError(
            "E10005",
            f"the output {name} of {file.name} is not a tensor of numbers, and the model runs in stages",
            remedy="make its outputs tensors of numbers",
        )
    assert isinstance(value, ir.Value), "it is a tensor"
    return value


def _element_type(name: str, scope: Scope, values: Mapping[str, Any]) -> int:
    made = scope.values.get(name)
    if isinstance(made, ir.Value):
        return int(dtype_to_ir(desc_of(made).dtype))
    return int(helper.np_dtype_to_tensor_dtype(values[name].dtype))


# -- branches --------------------------------------------------------------------------------------------------


def _with_branches(file: ModelFile, conditions: Mapping[str, np.ndarray]) -> ModelFile:
    """Replace each If with a known condition by the taken branch."""
    graph = onnx.GraphProto()
    graph.CopyFrom(file.proto.graph)
    del graph.node[:]
    for node in file.proto.graph.node:
        if node.op_type != "If" or node.input[0] not in conditions:
            graph.node.append(node)
            continue
        name = "then_branch" if conditions[node.input[0]].reshape(-1)[0] else "else_branch"
        branch = next(a.g for a in node.attribute if a.name == name)
        names = _inner_names(branch, node.name or node.output[0])
        for tensor in branch.initializer:
            graph.initializer.add().CopyFrom(tensor)
            graph.initializer[-1].name = names[tensor.name]
        graph.node.extend(_renamed(inner, names) for inner in branch.node)
        for result, wanted in zip(branch.output, node.output, strict=True):
            found = names.get(result.name, result.name)
            graph.node.append(helper.make_node("Identity", [found], [wanted]))
    proto = onnx.ModelProto()
    proto.ir_version = file.proto.ir_version
    proto.opset_import.extend(file.proto.opset_import)
    proto.graph.CopyFrom(graph)
    return replace(file, proto=proto)


def _inner_names(branch: onnx.GraphProto, prefix: str) -> dict[str, str]:
    made = [*(t.name for t in branch.initializer), *(o for n in branch.node for o in n.output if o)]
    return {name: f"{prefix}/{name}" for name in made}


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """Rename a branch's node to the names outside the branch."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.input[:] = [names.get(n, n) for n in node.input]
    made.output[:] = [names.get(n, n) for n in node.output]
    for inner in subgraphs(made):
        nodes = [_renamed(child, names) for child in inner.node]
        del inner.node[:]
        inner.node.extend(nodes)
        for port in inner.output:
            port.name = names.get(port.name, port.name)
    return made
