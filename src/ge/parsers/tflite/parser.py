"""Parses TensorFlow Lite files into GE graphs, without TensorFlow.

    graph = parse("mobilenet.tflite", options)

The operators are read as TensorFlow's and converted by its parser.
"""

from __future__ import annotations

import os
from pathlib import Path

import onnx_ir as ir

from ge.errors import GeError
from ge.options import CompileOptions
from ge.parsers.tensorflow.files import Signature, TensorSpec
from ge.parsers.tensorflow.graph import Body
from ge.parsers.tensorflow.parser import parse_body
from ge.parsers.tensorflow.stages import Sizes, TensorflowStage, stage_of_body
from ge.parsers.tflite.flatbuffer import Table, root
from ge.parsers.tflite.subgraph import Reader

__all__ = ["first_stage", "parse"]


def parse(source: str | os.PathLike[str] | bytes, options: CompileOptions | None = None) -> ir.Graph:
    """The GE graph of a file, or of its content. Inputs and outputs have the names of the chosen signature, which by
    default is the first; a file without signatures has its tensors' names."""
    options = options or CompileOptions()
    name, body, signature = _read(source, options)
    return parse_body(
        name, body, signature, input_shapes=options.input_shapes, out_nodes=options.output_nodes
    ).graph


def first_stage(
    source: str | os.PathLike[str], options: CompileOptions
) -> tuple[TensorflowStage, tuple[str, ...], Sizes]:
    """The file to be taken in stages, where sizes depend on data."""
    name, body, signature = _read(source, options)
    return stage_of_body(name, body, None if options.output_nodes else signature, options)


def _read(source: str | os.PathLike[str] | bytes, options: CompileOptions) -> tuple[str, Body, Signature]:
    """The name of a model, its operators as TensorFlow's, and the signature that was chosen."""
    where = "the model in memory" if isinstance(source, bytes) else os.fspath(source)
    model = root(source if isinstance(source, bytes) else _content(where), where)
    index, named = _chosen(model, options.signature or None, where)
    reader = Reader(model, index, where)
    for i in reader.table.inputs:
        tensor = reader.tensor(int(i))
        attrs = {"shape": tensor.signature, "dtype": tensor.dtype}
        reader.values[int(i)] = reader.add(tensor.name, "Placeholder", [], attrs)
    reader.read()
    signature = _signature(reader, named)
    return Path(where).stem, Body(reader.name, reader.nodes), signature


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise GeError(
            "E10100",
            f"the file cannot be read ({error.strerror or error})",
            location=path,
            remedy="check the path",
        ) from error


def _chosen(model: Table, name: str | None, where: str) -> tuple[int, Table | None]:
    """The subgraph to compile and the signature that names its inputs and outputs."""
    found = {s.key: s for s in model.signature_defs}
    if name is not None and name not in found:
        remedy = f"use one of {', '.join(found)}" if found else "leave the signature out"
        raise GeError("E10107", f"the model has no signature '{name}'", location=where, remedy=remedy)
    chosen = found[name] if name is not None else next(iter(found.values()), None)
    return (int(chosen.subgraph) if chosen is not None else 0), chosen


def _signature(reader: Reader, named: Table | None) -> Signature:
    """Inputs and outputs in the order of the subgraph. A tensor may be several outputs, each with a name of its own."""

    def specs(numbers: list[int], maps: list[Table]) -> dict[str, TensorSpec]:
        names: dict[int, list[str]] = {}
        for each in maps:
            names.setdefault(int(each.tensor), []).append(each.name)
        found: dict[str, TensorSpec] = {}
        for i in numbers:
            tensor = reader.tensors[i]
            node, index = reader.value(i)
            left = [n for n in names.get(i, ()) if n not in found]
            name = next(iter(left), tensor.name)
            while name in found:
                name += "_1"
            found[name] = TensorSpec(f"{node}:{index}", tensor.signature, tensor.dtype)
        return found

    inputs, outputs = ([int(i) for i in n] for n in (reader.table.inputs, reader.table.outputs))
    return Signature(
        specs(inputs, named.inputs if named is not None else []),
        specs(outputs, named.outputs if named is not None else []),
    )
