"""Static shapes of the inputs of an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from ge.errors import GeError, OpenSizesError
from ge.interface import ANY_FORM
from ge.ir.facts import OpenShape
from ge.parsers.onnx.model import ModelFile

__all__ = ["Shapes"]


def _element_of(name: str, ports: Mapping[str, onnx.ValueInfoProto]) -> bool:
    """True if a name is that of an element of a sequence or optional ("xs.0", "x.absent")."""
    while name not in ports and "." in name:
        name = name.rpartition(".")[0]
        if name in ports and not ports[name].type.HasField("tensor_type"):
            return True
    return False


class Shapes:
    """Static shapes of inputs: declared, given, or a default for an unknown batch dimension."""

    def __init__(self, file: ModelFile, given: Mapping[str, Sequence[int]], batch: int | None) -> None:
        ports = {v.name: v for v in file.proto.graph.input}
        self._file = file
        self.elements = {k: tuple(map(int, s)) for k, s in given.items() if _element_of(k, ports)}
        self.given = {k: tuple(map(int, s)) for k, s in given.items() if k not in self.elements}
        self.batch = batch
        self.notes: list[str] = []
        self.named: dict[str, int] = {}  # values of symbolic dimensions, from given shapes
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

    def of(self, name: str, declared: Any) -> tuple[int, ...]:
        """The shape of an input of a declared tensor type."""
        given = self.elements.get(name, self.given.get(name))
        if given is not None and all(d >= 0 for d in given):
            return given
        if not declared.HasField("shape"):
            raise self._open(name, "no shape")
        sizes = [self._size(dim) for dim in declared.shape.dim]
        if given is not None:
            sizes = [g if g >= 0 else s for g, s in zip(given, sizes, strict=True)]
        if sizes and sizes[0] is None and None not in sizes[1:]:
            sizes[0] = self._batch(name)
        if None in sizes:
            text = ", ".join("?" if s is None else str(s) for s in sizes)
            raise self._open(name, f"open dimensions ({text})")
        return tuple(s for s in sizes if s is not None)

    def declared(self) -> dict[str, OpenShape]:
        """All inputs with -1 for sizes that neither the model nor the options define.

        Sequences and optionals have any form if none is given. Empty if an input is something else.
        """
        graph = self._file.proto.graph
        stored = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
        ports = [p for p in graph.input if p.name not in stored]
        lists = {p.name for p in ports if not p.type.HasField("tensor_type")}
        given = any(k == p or k.startswith(f"{p}.") for p in lists for k in (*self.given, *self.elements))
        if given or any(p.type.HasField("map_type") for p in ports):
            return {}
        return {
            p.name: ANY_FORM if p.name in lists else self._known(p.name, p.type.tensor_type) for p in ports
        }

    def _known(self, name: str, declared: Any) -> tuple[int, ...] | None:
        given = self.given.get(name)
        if not declared.HasField("shape"):
            return given
        sizes = [-1 if (s := self._size(dim)) is None else s for dim in declared.shape.dim]
        return tuple(s if g < 0 else g for g, s in zip(given or [-1] * len(sizes), sizes, strict=True))

    def count(self, name: str) -> int:
        """The number of elements of a sequence, from the shapes given for them."""
        if f"{name}.empty" in self.elements:
            return 0
        count = 0
        while any(k == f"{name}.{count}" or k.startswith(f"{name}.{count}.") for k in self.elements):
            count += 1
        if not count:
            raise OpenSizesError(
                "E10020",
                f"input {name} is a sequence of unknown length",
                remedy=f'give the shapes of its elements: input_shapes={{"{name}.0": (…), "{name}.1": (…)}}, '
                f'or {{"{name}.empty": ()}}',
                inputs=self.declared(),
            )
        return count

    def absent(self, name: str) -> bool:
        """True if an optional input is compiled as absent."""
        return f"{name}.absent" in self.elements

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

    def _open(self, name: str, what: str) -> GeError:
        return OpenSizesError(
            "E10020",
            f"input {name} has {what}",
            remedy=f'give its shape, for example input_shapes={{"{name}": (1, …)}}',
            inputs=self.declared(),
        )
