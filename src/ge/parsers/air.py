"""`.air` files: a GE graph as an ONNX file of domain `ge`, written and read back (Netron opens it)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ge.errors import GeError, UnmappedOperator, UnsupportedOperatorsError
from ge.ir import facts
from ge.ir.types import dtype_from_ir
from ge.ir.values import constant_of
from ge.ops.base import registered
from ge.ops.builder import DOMAIN, GraphBuilder
from ge.ops.custom import search
from ge.options import CompileOptions

__all__ = ["parse", "write"]

IR_VERSION = 10
PRODUCER = "tf_adapter"
MAX_BYTES = (1 << 31) - 1
MAX_DEPTH = 32
_FLOATS = (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS)
_NUMBER = "number"  # the name of a tensor that stands for a number, or several, of an attribute


def write(graph: ir.Graph, path: str | os.PathLike[str]) -> Path:
    """Write a GE graph; returns the path, which ends in `.air`.

    >>> write(graph, "net")      # doctest: +SKIP
    """
    target = Path(path)
    if target.suffix != ".air":
        target = target.with_name(target.name + ".air")
    graph = _exact(graph)
    model = ir.Model(graph, ir_version=IR_VERSION, producer_name=PRODUCER)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(ir.to_proto(model).SerializeToString())
    except (OSError, ValueError) as error:
        raise GeError("E10023", f"{target} cannot be written: {error}") from error
    return target


def _exact(graph: ir.Graph) -> ir.Graph:
    """A copy whose numbers survive the file: an attribute of ONNX holds float32, a tensor float64 as well."""
    copy = graph.clone()
    for node in copy.all_nodes():
        for name, attr in node.attributes.items():
            wide = np.asarray(attr.value) if attr.type in _FLOATS else None
            if wide is not None and np.any((wide.astype(np.float32) != wide) & ~np.isnan(wide)):
                node.attributes[name] = ir.AttrTensor(name, ir.tensor(wide.astype(np.float64), name=_NUMBER))
    return copy


def parse(source: str | os.PathLike[str] | bytes, options: CompileOptions | None = None) -> ir.Graph:
    """Read a GE graph. Every node is checked and inferred anew, so that a damaged file cannot get further."""
    search.refresh()
    name = "the graph in memory" if isinstance(source, bytes) else os.fspath(source)
    proto = _read_proto(source, name)
    try:
        model = ir.from_proto(proto)
        _report_unknown(model.graph, name)
        return _rebuild(model.graph, options.input_shapes if options is not None else {})
    except GeError:
        raise
    except Exception as error:  # whatever a malformed graph makes the libraries raise
        raise _malformed(name, f"{type(error).__name__}: {error}") from error


def _read_proto(source: str | os.PathLike[str] | bytes, name: str) -> onnx.ModelProto:
    if not isinstance(source, bytes):
        try:
            if os.path.getsize(source) > MAX_BYTES:
                raise _malformed(name, "it is larger than 2 GiB")
            source = Path(source).read_bytes()
        except OSError as error:
            raise GeError(
                "E10021", f"{name} cannot be read: {error.strerror}", remedy="check the path"
            ) from error
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(source)
    except Exception as error:
        raise _malformed(name, "it is not a protocol buffer") from error
    if proto.producer_name != PRODUCER or all(o.domain != DOMAIN for o in proto.opset_import):
        raise GeError(
            "E10022",
            f"{name} is not an .air file of this engine",
            remedy="is it an ONNX file? use --framework=5",
        )
    _check_graph(proto.graph, name, 0)
    return proto


def _check_graph(graph: onnx.GraphProto, name: str, depth: int) -> None:
    """Refuse data outside the file and graphs nested without end, before anything is built."""
    if depth > MAX_DEPTH:
        raise _malformed(name, "its graphs nest too deeply")
    for tensor in graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise _malformed(name, f"tensor {tensor.name[:80]} refers to another file")
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _check_graph(attribute.g, name, depth + 1)


def _malformed(name: str, cause: str) -> GeError:
    return GeError("E10022", f"{name} is malformed: {cause[:300]}", remedy="export the graph again")


def _report_unknown(graph: ir.Graph, name: str) -> None:
    known = registered()
    counts: dict[str, list[str]] = {}
    for node in graph.all_nodes():
        if node.domain != DOMAIN or node.op_type not in known:
            counts.setdefault(node.op_type, []).append(node.name or "")
    items = [
        UnmappedOperator(
            type_, len(nodes), tuple(nodes[:10]), "it is not in the operator library", "register it"
        )
        for type_, nodes in sorted(counts.items())
    ]
    if items:
        raise UnsupportedOperatorsError(name, items)


def _rebuild(graph: ir.Graph, shapes: Mapping[str, Sequence[int]]) -> ir.Graph:
    """Rebuild the graph node by node through the builder."""
    builder = GraphBuilder(graph.name or "main")
    values: dict[ir.Value, ir.Value] = {}
    for value in graph.inputs:
        shape = shapes.get(value.name or "", value.shape or ())
        values[value] = builder.input(value.name or "", [int(d) for d in shape], dtype_from_ir(value.dtype))  # type: ignore[arg-type]
    for value in graph.initializers.values():
        array = constant_of(value)
        assert array is not None, f"initializer {value.name} has no value"
        values[value] = builder.constant(np.array(array), value.name or "")
    for node in graph:
        _rebuild_node(builder, node, values)
    for value in graph.outputs:
        builder.output(values[value], value.name or "")
    return builder.graph


def _rebuild_node(builder: GraphBuilder, node: ir.Node, values: dict[ir.Value, ir.Value]) -> None:
    builder.origin = facts.origin(node)
    attrs = {attr.name: _attribute(attr) for attr in node.attributes.values()}
    inputs = [None if v is None else values[v] for v in node.inputs]
    results = builder.ops(node.op_type, inputs, name=node.name or "", **attrs)
    values.update(zip(node.outputs, results, strict=True))
    if facts.keep_dtype(node):
        for maker in _makers(results):
            facts.set_keep_dtype(maker)


def _attribute(attr: Any) -> Any:
    if attr.type == ir.AttributeType.TENSOR and attr.value.name == _NUMBER:
        return attr.value.numpy().tolist()
    return _rebuild(attr.value, {}) if attr.type == ir.AttributeType.GRAPH else attr.value


def _makers(results: Iterable[ir.Value]) -> list[ir.Node]:
    return [node for node in (value.producer() for value in results) if node is not None]
