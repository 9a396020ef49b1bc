"""Parses ONNX models into GE graphs.

    graph = parse("model.onnx")
    graph = parse(model_proto, input_shapes={"x": (1, 3, 224, 224)})

All unmapped operators are reported together, as UnsupportedOperatorsError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

import ge.ops  # noqa: F401  (declares the plugins)
from ge.errors import GeError, UnsupportedOperatorsError
from ge.hybrid.cuts import required_inputs
from ge.interface import Interface, structure
from ge.ir import facts
from ge.ops.builder import GraphBuilder
from ge.ops.custom import search
from ge.options import CompileOptions
from ge.parsers.onnx import sequences as onnx_sequences  # noqa: F401  (declares the plugins)
from ge.parsers.onnx.convert import Binding, Converter, Scope
from ge.parsers.onnx.host_part import HostParts, split
from ge.parsers.onnx.model import ModelFile, load
from ge.parsers.onnx.narrow import store
from ge.parsers.onnx.ports import Ports, flat_values
from ge.parsers.onnx.scan import check_size, unmapped
from ge.parsers.onnx.shapes import Shapes

__all__ = ["parse"]


def parse(
    source: Any,
    options: CompileOptions | None = None,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
    values: Mapping[str, Any] | None = None,
    output_names: Sequence[str] = (),
) -> ir.Graph:
    """The GE graph of an ONNX model: a path, bytes, a ModelProto or an onnx_ir.Model.

    `input_shapes` gives the shapes of inputs whose dimensions the model leaves open; an open first dimension
    alone is taken as `batch` (1 when not given, with a note). `values` offers values for inputs: one that
    decides a shape (the target of a Reshape, the axes of a reduction) becomes a constant and is no input of
    the graph any more; `facts.specialised(graph)` names them. Values also tell the lengths of sequences and whether
    optionals are there; `input_shapes` does with "x.0", "x.1", … and "x.absent".
    """
    options = options or CompileOptions()
    search.refresh()
    file = load(source)
    check_size(file)
    offered = flat_values(values or {})
    known = {k: s for name, v in (values or {}).items() for k, s in structure(name, v).items()}
    shapes = Shapes(file, {**known, **options.input_shapes, **(input_shapes or {})}, batch)
    missing = unmapped(file)
    if missing:
        raise UnsupportedOperatorsError(file.name, missing)
    file, host = split(file, lambda port: _sample(port, shapes, values or {}))
    fixed: dict[str, np.ndarray] = {}
    wanted = tuple(output_names) or options.output_nodes
    while True:
        graph, converter, interface = _convert(file, shapes, fixed, wanted, host)
        if not converter.refused:
            break
        more = required_inputs(converter.needed, offered)
        if not more:
            raise converter.refusals()
        fixed.update({name: offered[name] for name in more})
    for text in (*file.notes, *shapes.notes):
        facts.add_note(graph, text)
    facts.set_specialised(graph, fixed)
    facts.set_open_inputs(graph, shapes.declared())
    if interface is not None:
        facts.set_interface(graph, interface.to_json())
    return graph


def _sample(port: onnx.ValueInfoProto, shapes: Shapes, values: Mapping[str, Any]) -> Any:
    """Input value for a trial run of the host's part: the offered one, or zeros and sample words."""
    if port.name in values:
        return values[port.name]
    if not port.type.HasField("tensor_type"):
        return {}
    kind = port.type.tensor_type
    shape = shapes.of(port.name, kind)
    if kind.elem_type == onnx.TensorProto.STRING:
        return np.full(shape, "two words", object)
    return np.zeros(shape, onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))


def _convert(
    file: ModelFile, shapes: Shapes, fixed: Mapping[str, np.ndarray], wanted: Sequence[str], host: HostParts
) -> tuple[ir.Graph, Converter, Interface | None]:
    proto = file.proto.graph
    builder = GraphBuilder(proto.name or file.name)
    converter = Converter(file)
    scope = Scope(builder, file.opsets)
    ports = Ports(builder, shapes, converter, host)
    stored = {t.name for t in proto.initializer} | {t.values.name for t in proto.sparse_initializer}
    for port in proto.input:
        if port.name in scope.values:
            raise GeError("E10016", f"the input {port.name} is declared twice")
        if port.name in fixed:
            scope.values[port.name] = store(builder, fixed[port.name], port.name)
        elif port.name not in stored:
            scope.values[port.name] = ports.input(port)
    for port in host.alone:
        ports.host_input(port)
    results = converter.graph(proto, scope, file.name)
    named = list(zip((v.name for v in proto.output), results, strict=True))
    chosen = list(_chosen(named, wanted, scope, file))
    trees = {name: ports.output(name, value) for name, value in chosen}
    facts.set_output_names(builder.graph, (_names_of(v.name or "", file) for v in builder.graph.outputs))
    asked = list(trees) if wanted else host.outputs or list(trees)
    return builder.graph, converter, ports.interface(file, host.inputs or ports.names, trees, asked)


def _chosen(
    ports: Sequence[tuple[str, Binding]], wanted: Sequence[str], scope: Scope, file: ModelFile
) -> Iterable[tuple[str, Binding]]:
    """The outputs of the model, or those requested by tensor or node name ("node", "node:1")."""
    if not wanted:
        return ports
    nodes = {n.name: list(n.output) for n in file.proto.graph.node if n.name}
    found = []
    for name in wanted:
        label, _, index = name.rpartition(":")
        if name in scope.values:
            found.append((name, scope.values[name]))
        elif name in nodes:
            found.append((nodes[name][0], scope.find(nodes[name][0])))
        elif label in nodes and index.isdigit() and int(index) < len(nodes[label]):
            found.append((nodes[label][int(index)], scope.find(nodes[label][int(index)])))
        else:
            raise GeError("E10019", f"the model has no output, tensor or node {name}")
    return found


def _names_of(tensor: str, file: ModelFile) -> Iterable[str]:
    """The names of an output: of the tensor, and of the node that makes it ("node:0", and "node" for its first)."""
    yield tensor
    for node in file.proto.graph.node:
        if node.name and tensor in node.output:
            index = list(node.output).index(tensor)
            yield f"{node.name}:{index}"
            if index == 0:
                yield node.name
