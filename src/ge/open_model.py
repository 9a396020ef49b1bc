"""Models with open input sizes: compiled for the sizes of each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ge.errors import GeError, typed
from ge.hybrid.specialise import Specialiser
from ge.interface import ANY_FORM, Interface, structure
from ge.ir.facts import OpenShape
from ge.model.model import Model
from ge.plan import Plan

__all__ = ["MOST_PROGRAMS", "OpenModel", "Shape"]

MOST_PROGRAMS = 8

Shape = tuple[int, ...]
Form = Shape | tuple[tuple[str, Shape], ...]  # of a tensor, or of the elements of a sequence or an optional


class OpenModel(Model):
    """Called like a Model, with any sizes for the open dimensions; the most recent programs are cached.

    sizes: all inputs with -1 for open dimensions; a sequence or optional has any form. `plan`, `profile` and `save`
    refer to the sizes known at compile time (an open batch is 1), or to those of the last call if there were none.

    >>> model = ge.compile("classifier.onnx")             # doctest: +SKIP
    >>> model(np.zeros((4, 128), np.int64))               # doctest: +SKIP
    """

    def __init__(
        self,
        compiled: Callable[[Mapping[str, Shape]], Model],
        sizes: Mapping[str, OpenShape],
        name: str,
        first: Model | None = None,
    ) -> None:
        self.sizes = dict(sizes)
        self._compiled = compiled
        self._name = name
        self._programs: Specialiser[tuple[Form, ...], Model] = Specialiser(
            MOST_PROGRAMS, weigh=lambda model: model.packed_bytes
        )
        self._first = first
        self._last: Model | None = None
        self._announce = False
        if first is not None and len(first.inputs) == len(sizes) and ANY_FORM not in sizes.values():
            self._programs.program(tuple(p.desc.shape for p in first.inputs), lambda: first)

    @property
    def current(self) -> Model:
        """The program for the sizes known at compile time, or for those of the last call."""
        found = self._first or self._last
        if found is None:
            raise GeError(
                "E10020",
                f"model {self.name} has no program yet: sizes of its inputs are open ({self._declared()})",
                remedy="call it once, or give input_shapes",
            )
        return found

    @property
    def name(self) -> str:
        return self._name

    @property
    def plan(self) -> Plan:  # type: ignore[override]
        return self.current.plan

    @property
    def program(self) -> Any:
        return self.current.program

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed weights of all programs."""
        return sum(self._programs.weigh(m) for m in self._programs.values())

    @property
    def interface(self) -> Interface | None:  # type: ignore[override]
        return None if self._first is None and self._last is None else self.current.interface

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(self.sizes)

    @typed
    def run(self, arrays: Sequence[Any], into: Sequence[np.ndarray] | None = None) -> list[Any]:
        """Run on values in the order of `input_names`; compiles first if these sizes are new."""
        key = self._forms(arrays)
        model = self._programs.find(key)
        if model is None:
            self._check(key)
            model = self._programs.program(key, lambda: self._compiled(self._named_shapes(key)))
        self._last = model
        if model.input_names == self.input_names:
            return model.run(arrays, into)
        named = dict(zip(self.sizes, arrays, strict=True))
        return model.run([named[name] for name in model.input_names], into)

    def _forms(self, arrays: Sequence[Any]) -> tuple[Form, ...]:
        if not isinstance(arrays, list | tuple) or len(arrays) != len(self.sizes):
            got = len(arrays) if isinstance(arrays, list | tuple) else f"a {type(arrays).__name__}"
            raise GeError("E10020", f"model {self.name} takes {len(self.sizes)} inputs, got {got}")
        try:
            return tuple(
                tuple(structure(name, a).items()) if sizes == ANY_FORM else np.shape(a)
                for (name, sizes), a in zip(self.sizes.items(), arrays, strict=True)
            )
        except ValueError as error:
            raise GeError("E10020", f"an input of model {self.name} is not an array: {error}") from error

    def _named_shapes(self, key: Sequence[Form]) -> dict[str, Shape]:
        """The shapes of inputs, and of the elements of sequences and optionals, by name."""
        shapes: dict[str, Any] = {}
        for (name, sizes), form in zip(self.sizes.items(), key, strict=True):
            shapes.update(form if sizes == ANY_FORM else {name: form})  # type: ignore[arg-type]
        return shapes

    def _check(self, key: Sequence[Form]) -> None:
        """Reject sizes that contradict the model's fixed dimensions."""
        for (name, sizes), shape in zip(self.sizes.items(), key, strict=True):
            fits = not isinstance(sizes, tuple) or (
                len(sizes) == len(shape) and all(s in (-1, d) for s, d in zip(sizes, shape, strict=True))
            )
            if not fits:
                raise GeError(
                    "E10020",
                    f"input '{name}' has the shape {list(shape)}, the model takes {list(sizes or ())}",
                    remedy="-1 stands for any size",
                )

    def _declared(self) -> str:
        words = {
            n: "any shape" if s is None else s if isinstance(s, str) else list(s)
            for n, s in self.sizes.items()
        }
        return ", ".join(f"{name}: {sizes}" for name, sizes in words.items())

    def __repr__(self) -> str:
        return f"OpenModel({self.name}: {self._declared()}; {len(self._programs)} programs)"
