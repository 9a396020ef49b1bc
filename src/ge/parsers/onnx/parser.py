"""ONNX models into GE graphs.

    graph = parse("model.onnx")
    graph = parse(model_proto, input_shapes={"x": (1, 3, 224, 224)})

Everything that cannot be mapped is reported at once, as UnsupportedOperatorsError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

import ge.ops  # noqa: F401  (declares the plugins)
from ge.errors import GeError, UnsupportedOperatorsError
from ge.ir import facts
from ge.ir.types import TensorDesc
from ge.ops.builder import GraphBuilder
from ge.ops.custom import search
from ge.options import CompileOptions
from ge.parsers.onnx import sequences as onnx_sequences  # noqa: F401  (declares the plugins)
from ge.parsers.onnx.convert import FAILED, Binding, Converter, Scope, Sequence_
from ge.parsers.onnx.model import MAX_BYTES, ModelFile, load
from ge.parsers.onnx.narrow import plain_dtype, store
from ge.parsers.onnx.scan import check_size, unmapped

__all__ = ["parse"]


def parse(
    source: Any,
    options: CompileOptions | None = None,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
    values: Mapping[str, np.ndarray] | None = None,
    output_names: Sequence[str] = (),
) -> ir.Graph:
    """The GE graph of an ONNX model: a path, bytes, a ModelProto or an onnx_ir.Model.

    `input_shapes` gives the shapes of inputs whose dimensions the model leaves open; an open first dimension
    alone is taken as `batch` (1 when not given, with a note). `values` offers values for inputs: one that
    decides a shape (the target of a Reshape, the axes of a reduction) becomes a constant and is no input of
    the graph any more; `facts.specialised(graph)` names them.
    """
    options = options or CompileOptions()
    search.refresh()
    file = load(source)
    check_size(file)
    missing = unmapped(file)
    if missing:
        raise UnsupportedOperatorsError(file.name, missing)
    shapes = _Shapes(file, {**options.input_shapes, **(input_shapes or {})}, batch)
    fixed: dict[str, np.ndarray] = {}
    wanted = tuple(output_names) or options.output_nodes
    while True:
        graph, converter = _convert(file, shapes, fixed, wanted)
        if not converter.refused:
            break
        more = _deciding(converter.needed, graph, values or {})
        if not more:
            raise UnsupportedOperatorsError(file.name, converter.refusals())
        fixed.update(more)
    for text in (*file.notes, *shapes.notes):
        facts.add_note(graph, text)
    facts.set_specialised(graph, fixed)
    return graph


def _convert(
    file: ModelFile, shapes: _Shapes, fixed: Mapping[str, np.ndarray], wanted: Sequence[str]
) -> tuple[ir.Graph, Converter]:
    proto = file.proto.graph
    builder = GraphBuilder(proto.name or file.name)
    converter = Converter(file)
    scope = Scope(builder, file.opsets)
    stored = {t.name for t in proto.initializer} | {t.values.name for t in proto.sparse_initializer}
    for port in proto.input:
        if port.name in scope.values:
            raise GeError("E10016", f"the input {port.name} is declared twice")
        if port.name in fixed:
            scope.values[port.name] = store(builder, fixed[port.name], port.name)
        elif port.name not in stored:
            scope.values[port.name] = _input(port, builder, shapes, converter)
    results = converter.graph(proto, scope, file.name)
    ports = list(zip((v.name for v in proto.output), results, strict=True))
    chosen = list(_chosen(ports, wanted, scope, file))
    for name, value in chosen:
        _output(name, value, builder, converter)
    facts.set_output_names(builder.graph, (_names_of(name, file) for name, _ in chosen))
    return builder.graph, converter


def _input(
    port: onnx.ValueInfoProto, builder: GraphBuilder, shapes: _Shapes, converter: Converter
) -> Binding:
    kind = port.type.WhichOneof("value")
    if kind != "tensor_type":
        label = (kind or "unknown").removesuffix("_type")
        converter.refused[("Input", f"it is a {label}", "feed tensors")] = [port.name]
        return FAILED
    try:
        dtype, narrow = plain_dtype(port.type.tensor_type.elem_type)
    except (KeyError, ValueError):
        code = port.type.tensor_type.elem_type
        name = (
            onnx.TensorProto.DataType.Name(code).lower()
            if code in onnx.TensorProto.DataType.values()
            else code
        )
        converter.refused[("Input", f"no engine accepts {name}", "feed numbers or bools")] = [port.name]
        return FAILED
    shape = shapes.of(port)
    desc = TensorDesc(shape, dtype)
    if desc.nbytes > MAX_BYTES:
        raise GeError("E10014", f"input {port.name} of {desc} is larger than {MAX_BYTES >> 40} TiB")
    value = builder.input(port.name, shape, dtype)
    if narrow:
        facts.set_narrow(value, narrow)
    return value


def _output(name: str, value: Binding, builder: GraphBuilder, converter: Converter) -> None:
    if value is FAILED:
        return
    if isinstance(value, Sequence_) or value is None:
        reason = "it is a sequence or an optional" if value is not None else "it has no value"
        converter.refused[("Output", reason, "make it tensors")] = [name]
        return
    assert isinstance(value, ir.Value)
    made = builder.output(value, name)
    if facts.narrow(value):
        facts.set_narrow(made, facts.narrow(value))


def _chosen(
    ports: Sequence[tuple[str, Binding]], wanted: Sequence[str], scope: Scope, file: ModelFile
) -> Iterable[tuple[str, Binding]]:
    """The outputs of the model, or those asked for by tensor or node name ("node", "node:1")."""
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


def _deciding(
    needed: Iterable[ir.Value], graph: ir.Graph, values: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The offered inputs from which the values that decide shapes are computed."""
    found: dict[str, np.ndarray] = {}
    stack, seen = list(needed), set()
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        if value.is_graph_input() and value.name is not None and value.name in values:
            found[value.name] = np.asarray(values[value.name])
        maker = value.producer()
        if maker is not None:
            stack.extend(v for v in maker.inputs if v is not None)
    return found


class _Shapes:
    """Static shapes of inputs: declared, given, or a default for a batch dimension left open."""

    def __init__(self, file: ModelFile, given: Mapping[str, Sequence[int]], batch: int | None) -> None:
        self.given = {name: tuple(int(d) for d in shape) for name, shape in given.items()}
        self.batch = batch
        self.notes: list[str] = []
        self.named: dict[str, int] = {}  # symbolic dimensions that given shapes decide
        ports = {v.name: v for v in file.proto.graph.input}
        for name, shape in self.given.items():
            if name not in ports:
                valid = ", ".join(ports) or "none"
                raise GeError("E10020", f"the model has no input {name}", remedy=f"its inputs are {valid}")
            self._learn(ports[name], shape)

    def _learn(self, port: onnx.ValueInfoProto, shape: tuple[int, ...]) -> None:
        declared = port.type.tensor_type
        if not declared.HasField("shape"):
            return
        dims = declared.shape.dim
        if len(dims) != len(shape):
            raise GeError("E10020", f"input {port.name} has {len(dims)} dimensions, {list(shape)} was given")
        for dim, size in zip(dims, shape, strict=True):
            if dim.HasField("dim_value") and dim.dim_value >= 0 and dim.dim_value != size:
                raise GeError(
                    "E10020", f"input {port.name} has a dimension of {dim.dim_value} where {size} was given"
                )
            if dim.dim_param and size >= 0:
                self.named[dim.dim_param] = size

    def of(self, port: onnx.ValueInfoProto) -> tuple[int, ...]:
        """The shape of an input."""
        declared = port.type.tensor_type
        given = self.given.get(port.name)
        if given is not None and all(d >= 0 for d in given):
            return given
        if not declared.HasField("shape"):
            raise self._open(port.name, "no shape at all")
        sizes = [self._size(dim) for dim in declared.shape.dim]
        if given is not None:
            sizes = [g if g >= 0 else s for g, s in zip(given, sizes, strict=True)]
        if sizes and sizes[0] is None and None not in sizes[1:]:
            sizes[0] = self._batch(port.name)
        if None in sizes:
            text = ", ".join("?" if s is None else str(s) for s in sizes)
            raise self._open(port.name, f"open dimensions ({text})")
        return tuple(s for s in sizes if s is not None)

    def _size(self, dim: Any) -> int | None:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            return int(dim.dim_value)
        return self.named.get(dim.dim_param) if dim.dim_param else None

    def _batch(self, name: str) -> int:
        if self.batch is None:
            note = f"the open first dimension of input {name} was taken as 1"
            self.notes += [note] if note not in self.notes else []
            return 1
        return self.batch

    @staticmethod
    def _open(name: str, what: str) -> GeError:
        return GeError(
            "E10020",
            f"input {name} has {what}",
            remedy=f'give its shape, for example input_shapes={{"{name}": (1, …)}}',
        )
