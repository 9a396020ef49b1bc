"""Parses MINDIR into GE graphs: files of `mindspore.export`, and graphs from the MindSpore front door.

Everything that cannot be mapped is reported at once, as UnsupportedOperatorsError.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

import ge.parsers.mindir  # noqa: F401  the plugins
from ge.errors import GeError, UnmappedOperator, UnsupportedOperatorsError
from ge.ir import facts
from ge.ir.types import TENSORS, TensorDesc
from ge.ops.builder import GraphBuilder
from ge.ops.custom import search
from ge.ops.plugins import Unsupported
from ge.options import CompileOptions
from ge.parsers.mindir.convert import Converter, Failed
from ge.parsers.mindir.graph import Library
from ge.parsers.mindir.protos import DTYPE_NAMES, decode, malformed
from ge.parsers.mindir.values import RANDOM, Parameter, array_of, leaves, rebuilt, tensor_desc

__all__ = ["Parsed", "parse", "parse_model"]


@dataclass(frozen=True)
class Returned:
    """A part of what a graph returns: an output of the GE graph, a parameter, or a constant."""

    kind: str
    value: Any


@dataclass(frozen=True)
class Parsed:
    """A parsed graph: names of its inputs and parameters in the order of its ports, and what it returns.

    Outputs are the tensors of `returned` in their order, then the new values of the parameters in `updates`. Where the
    graph draws random numbers, RANDOM is the last parameter and the last update.
    """

    graph: ir.Graph
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    updates: tuple[str, ...]
    returned: Any  # nested tuples of Returned


def parse(source: str | os.PathLike[str] | bytes, options: CompileOptions | None = None) -> ir.Graph:
    """The GE graph of a MINDIR file or its bytes; parameters are constants."""
    parsed = parse_model(source, input_shapes=options.input_shapes if options is not None else {})
    return parsed.graph


def parse_model(
    source: str | os.PathLike[str] | bytes,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    state: bool = False,
    name: str = "",
) -> Parsed:
    """Parse a model. With `state`, parameters are inputs of the graph and those it writes are outputs too."""
    search.refresh()
    data, label, folder = _read(source, name)
    library = Library(decode(data, label), label, folder)
    return _Request(library, label, dict(input_shapes or {}), state).parsed()


def _read(source: str | os.PathLike[str] | bytes, name: str) -> tuple[bytes, str, Path | None]:
    if isinstance(source, bytes):
        return source, name or "the graph in memory", None
    path = Path(source)
    try:
        return path.read_bytes(), name or path.name, path.parent
    except OSError as error:
        raise GeError(
            "E10021", f"{path} cannot be read: {error.strerror}", remedy="check the path of the model"
        ) from error


def plain_name(name: str, graph: str) -> str:
    """A name without the graph that it belongs to.

    >>> plain_name("7_net_1:fc.weight", "7_net_1")
    'fc.weight'
    """
    return name.removeprefix(f"{graph}:")


class _Request:
    """One parse."""

    def __init__(self, library: Library, label: str, shapes: dict[str, Sequence[int]], state: bool) -> None:
        self.library = library
        self.label = label
        self.shapes = shapes
        self.state = state
        self.graph = next(iter(library.messages.values()))
        self.builder = GraphBuilder(self.graph.name)
        self.problems: list[UnmappedOperator] = []

    def parsed(self) -> Parsed:
        inputs = [self._input(i) for i in self.graph.input]
        names = [plain_name(p.name, self.graph.name) for p in self.graph.parameter]
        initial = {n: self._parameter(p, n) for p, n in zip(self.graph.parameter, names, strict=True)}
        if self.problems:
            raise UnsupportedOperatorsError(self.label, self.problems)
        if self.state:
            initial[RANDOM.name] = self.builder.input(RANDOM.name, [2], "int64")
        converter = Converter(self.library, self.builder, initial)
        body = self.library.body(self.graph.name)
        result = converter.evaluate(body, [*inputs, *(Parameter(n) for n in names)])
        refusals = converter.refusals.items()
        if refusals:
            raise UnsupportedOperatorsError(self.label, refusals)
        assert not any(isinstance(v, Failed) for v in leaves(result)), "a failed node was not reported"
        returned = self._outputs(converter, result)
        if self.state and RANDOM.name in converter.updates():
            names.append(RANDOM.name)
        elif self.state:
            self.builder.graph.inputs.remove(initial[RANDOM.name])
        updates = self._updates(converter, names)
        shown = [plain_name(i.name, self.graph.name) for i in self.graph.input]
        return Parsed(self.builder.graph, tuple(shown), tuple(names if self.state else ()), updates, returned)

    def _input(self, port: Any) -> Any:
        name = plain_name(port.name, self.graph.name)
        try:
            if not len(port.tensor):
                raise Unsupported("it is not a tensor", "pass tensors")
            message = port.tensor[0]
            if name in self.shapes:
                dtype = DTYPE_NAMES.get(message.data_type, "")
                if dtype not in TENSORS:
                    raise Unsupported(f"no engine accepts {dtype}")
                desc = TensorDesc(tuple(int(d) for d in self.shapes[name]), dtype)
            else:
                desc = tensor_desc(message)
        except Unsupported as error:
            self.problems.append(UnmappedOperator("input", 1, (name,), error.reason, error.remedy))
            return None
        return self.builder.input(name, desc.shape, desc.dtype)

    def _parameter(self, message: Any, name: str) -> Any:
        try:
            if self.state:
                desc = tensor_desc(message)
                return self.builder.input(name, desc.shape, desc.dtype)
            array = array_of(message, self.library.folder, self.label)
        except Unsupported as error:
            self.problems.append(UnmappedOperator("parameter", 1, (name,), error.reason, error.remedy))
            return None
        if array is None:
            raise malformed(self.label, f"parameter {name} has no data")
        return self.builder.constant(np.asarray(array, order="C"), name)

    def _outputs(self, converter: Converter, result: Any) -> Any:
        """Declare outputs for the tensors of a result."""
        parts: list[Any] = []
        for leaf in leaves(result):
            value = converter.resolved(leaf)
            if isinstance(leaf, Parameter) and self.state and leaf.name not in converter.updates():
                parts.append(Returned("parameter", leaf.name))
            elif isinstance(value, ir.Value):
                index = len(self.builder.graph.outputs)
                self.builder.output(value, f"output{index}" if index else "output")
                parts.append(Returned("result", index))
            else:
                plain = value if isinstance(value, (bool, int, float, str)) else None
                parts.append(Returned("constant", plain))
        return rebuilt(result, parts)

    def _updates(self, converter: Converter, names: Sequence[str]) -> tuple[str, ...]:
        written = converter.updates()
        if not self.state:
            if written:
                facts.add_note(
                    self.builder.graph,
                    f"the graph updates {len(written)} parameters, which are constants here",
                )
            return ()
        updates = tuple(n for n in names if n in written)
        for name in updates:
            self.builder.output(written[name], f"new:{name}")
        return updates
