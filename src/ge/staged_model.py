"""Models with results whose sizes depend on data: compiled stage by stage, for the sizes of each call."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ge.errors import GeError
from ge.hybrid.cuts import Cut, Remainder
from ge.hybrid.specialise import Specialiser
from ge.model.model import Model
from ge.open_model import MOST_PROGRAMS, OpenModel, Shape
from ge.ops.interpret import interpret

__all__ = ["MOST_GRAPHS", "StagedModel"]

MOST_GRAPHS = 128  # graphs of a stage that are kept, those without a program included

Compiler = Callable[[ir.Graph], Model]
Key = tuple[Hashable, ...]


class StagedModel(OpenModel):
    """Called like a Model. Every stage is a program for the sizes that the stages before it gave.

    A stage whose sizes come from data and which is light (no product, no convolution) is interpreted until the same
    sizes have come a few times, so that new sizes cost no compile. A stage keeps its last 8 programs and 128 graphs.

    light: tells whether a graph may be interpreted.
    """

    def __init__(
        self,
        first: Remainder,
        outputs: Sequence[str],
        sizes: Mapping[str, Shape | None],
        name: str,
        compiled: Compiler,
        light: Callable[[ir.Graph], bool],
    ) -> None:
        super().__init__(lambda shapes: self, sizes, name)
        self.result_names = tuple(outputs)
        self._first_stage = _Stage(first, compiled, lambda graph: False)
        self._stages: dict[Hashable, _Stage] = {first.key: self._first_stage}
        self._compiler, self._light = compiled, light

    @property
    def current(self) -> Model:
        raise GeError(
            "E10020",
            f"model {self.name} runs in stages, because sizes inside of it depend on data: it has no plan of its own",
            remedy="call it; to save it, end the model before the first operator whose result size depends on data",
        )

    @property
    def interface(self) -> None:  # type: ignore[override]
        return None

    @property
    def programs(self) -> int:
        """How many compiled programs all stages hold."""
        return sum(len(stage.programs) for stage in list(self._stages.values()))

    def run(self, arrays: Sequence[Any], into: Sequence[np.ndarray] | None = None) -> list[Any]:
        """Run stage after stage on values in the order of `input_names`."""
        if into is not None:
            raise GeError(
                "E10020", f"the sizes of the results of model {self.name} depend on data: nothing to fill"
            )
        self._check(self._shapes(arrays))
        values: dict[str, Any] = dict(zip(self.sizes, map(np.asarray, arrays), strict=True))
        stage: _Stage | None = self._first_stage
        while stage is not None:
            rest = stage.run(values)
            stage = None if rest is None else self._stage(rest)
        return [values[name] for name in self.result_names]

    def _stage(self, rest: Remainder) -> _Stage:
        found = self._stages.get(rest.key)
        return found or self._stages.setdefault(rest.key, _Stage(rest, self._compiler, self._light))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """A file holds one plan: refused."""
        return self.current.save(path)


class _Stage:
    """One stage at all sizes."""

    def __init__(self, rest: Remainder, compiled: Compiler, light: Callable[[ir.Graph], bool]) -> None:
        self.rest = rest
        self.programs: Specialiser[Key, Model] = Specialiser(MOST_PROGRAMS, free=MOST_PROGRAMS)
        self._cuts: Specialiser[Key, Cut] = Specialiser(MOST_GRAPHS)
        self._compiled, self._light = compiled, light
        self._deciding: tuple[str, ...] = ()

    def run(self, values: dict[str, Any]) -> Remainder | None:
        """Add the results of the stage to `values`; what is left."""
        self.rest.prepare(values)
        key = self._key(values)
        cut = self._cuts.find(key)
        if cut is None:
            key, cut = self._made(values)
        if cut.outputs:
            feeds = [values[name] for name in cut.inputs]
            values.update(zip(cut.outputs, self._results(key, cut, feeds), strict=True))
        return cut.rest

    def _made(self, values: Mapping[str, Any]) -> tuple[Key, Cut]:
        """A new cut, under a key that has all values which are constants of it: no other thread finds it by less."""
        cut = self.rest.cut(values)
        with self._cuts.lock:
            self._deciding = tuple(sorted({*self._deciding, *cut.deciding}))
            key = self._key(values)
            return key, self._cuts.program(key, lambda: cut)

    def _key(self, values: Mapping[str, Any]) -> Key:
        deciding = self._deciding
        decided = (values[n].tobytes() for n in deciding)
        return (deciding, *(np.shape(values[n]) for n in self.rest.reads), *decided)

    def _results(self, key: Key, cut: Cut, feeds: Sequence[Any]) -> list[np.ndarray]:
        program = self.programs.find(key)
        if program is None and self._light(cut.graph) and not self.programs.is_hot(key):
            return interpret(cut.graph, feeds)
        program = program or self.programs.program(key, lambda: self._compiled(cut.graph))
        return program.run_plan(feeds)
