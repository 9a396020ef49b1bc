"""Models with data-dependent result sizes: compiled stage by stage, for the sizes of each call."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from ge.errors import GeError, typed
from ge.hybrid.cuts import Cut, Halves, Remainder
from ge.hybrid.specialise import Specialiser
from ge.ir.facts import OpenShape
from ge.ir.values import desc_of
from ge.model.model import Model
from ge.model.one_kernel import run_kernel
from ge.open_model import MOST_PROGRAMS, OpenModel, Shape
from ge.ops.interpret import interpret

__all__ = ["MOST_GRAPHS", "StagedModel"]

_KERNELS = {"NonMaxSuppression": run_kernel}  # operators that are slow in NumPy
MOST_GRAPHS = 128  # cached graphs of a stage, including those without a program

Compiler = Callable[[ir.Graph], Model]
Key = tuple[Hashable, ...]


class Judge(Protocol):
    """The compiler's knowledge about the graphs of stages."""

    def light(self, graph: ir.Graph) -> bool:
        """True if a graph may be interpreted."""

    def halves(self, graph: ir.Graph) -> Halves:
        """A graph cut after its last heavy operator (product, convolution, …)."""

    def covers(
        self, whole: ir.Graph, part: ir.Graph, rows: tuple[int, int], carriers: Collection[int]
    ) -> bool:
        """True if `part` computes the first rows of `whole`'s results, from the first rows of these inputs."""


class StagedModel(OpenModel):
    """Called like a Model. Every stage is a program for the sizes computed by the stages before it.

    A stage caches its last 8 programs and 128 graphs. Data-dependent sizes seldom recur, so a program is compiled for
    one of them only after a few calls. Until then:
    1. A light stage (no product, no convolution) is interpreted; the kernel runs non-maximum suppression.
    2. In another stage, the part up to the last product runs as a program for a power of two of rows, and the rest is
       interpreted; this needs a proof that the first rows of its results depend only on the first rows of its inputs.
    3. If neither is possible, the stage is compiled.
    """

    def __init__(
        self,
        first: Remainder,
        outputs: Sequence[str],
        sizes: Mapping[str, OpenShape],
        name: str,
        compiled: Compiler,
        judge: Judge,
    ) -> None:
        super().__init__(lambda shapes: self, sizes, name)
        self.result_names = tuple(outputs)
        self._first_stage = _Stage(first, compiled, None)
        self._stages: dict[Hashable, _Stage] = {first.key: self._first_stage}
        self._compiler, self._judge = compiled, judge

    @property
    def current(self) -> Model:
        raise GeError(
            "E10020",
            f"model {self.name} runs in stages, because sizes inside of it depend on data: it has no plan of its own",
            remedy="call it; to save it, end the model before the first operator whose result size depends on data",
        )

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed weights of all programs."""
        return sum(p.packed_bytes for stage in list(self._stages.values()) for p in stage.programs.values())

    @property
    def interface(self) -> None:  # type: ignore[override]
        return None

    @property
    def programs(self) -> int:
        """The number of compiled programs of all stages."""
        return sum(len(stage.programs) for stage in list(self._stages.values()))

    @typed
    def run(self, arrays: Sequence[Any], into: Sequence[np.ndarray] | None = None) -> list[Any]:
        """Run stage by stage on values in the order of `input_names`."""
        if into is not None:
            raise GeError(
                "E10020", f"the sizes of the results of model {self.name} depend on data: nothing to fill"
            )
        self._check(self._forms(arrays))
        values: dict[str, Any] = dict(zip(self.sizes, map(np.asarray, arrays), strict=True))
        stage: _Stage | None = self._first_stage
        while stage is not None:
            rest = stage.run(values)
            stage = None if rest is None else self._stage(rest)
        return [values[name] for name in self.result_names]

    def _stage(self, rest: Remainder) -> _Stage:
        found = self._stages.get(rest.key)
        return found or self._stages.setdefault(rest.key, _Stage(rest, self._compiler, self._judge))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Refused: a file holds one plan."""
        return self.current.save(path)


class _Stage:
    """One stage at all sizes; without a judge every size has a program."""

    def __init__(self, rest: Remainder, compiled: Compiler, judge: Judge | None) -> None:
        self.rest = rest
        self.programs: Specialiser[Key, Model] = Specialiser(
            MOST_PROGRAMS, free=MOST_PROGRAMS, weigh=lambda model: model.packed_bytes
        )
        self._cuts: Specialiser[Key, Cut] = Specialiser(MOST_GRAPHS)
        self._fits: Specialiser[Key, _Fit | None] = Specialiser(MOST_GRAPHS)
        self._compiled, self._judge = compiled, judge
        self._deciding: tuple[str, ...] = ()
        self._first_shapes: dict[str, Shape] = {}

    def run(self, values: dict[str, Any]) -> Remainder | None:
        """Add the results of the stage to `values`; return the remainder."""
        self.rest.prepare(values)
        key = self._key(values)
        cut = self._cuts.find(key)
        if cut is None:
            key, cut = self._made(values)
        if cut.outputs:
            values.update(zip(cut.outputs, self._results(key, cut, values), strict=True))
        return cut.rest

    def _made(self, values: Mapping[str, Any]) -> tuple[Key, Cut]:
        """A new cut, under a key with all its constant values, so that no other thread finds it under a shorter key."""
        cut = self.rest.cut(values)
        with self._cuts.lock:
            self._deciding = tuple(sorted({*self._deciding, *cut.deciding}))
            key = self._key(values)
            return key, self._cuts.program(key, lambda: cut)

    def _key(self, values: Mapping[str, Any]) -> Key:
        deciding = self._deciding
        decided = (values[n].tobytes() for n in deciding)
        return (deciding, *(np.shape(values[n]) for n in self.rest.reads), *decided)

    def _results(self, key: Key, cut: Cut, values: Mapping[str, Any]) -> list[np.ndarray]:
        feeds = [values[name] for name in cut.inputs]
        program = self.programs.find(key)
        if program is None and self._judge is not None and not self.programs.is_hot(key):
            if self._judge.light(cut.graph):
                return interpret(cut.graph, feeds, _KERNELS)
            fit = self._fits.program(key, lambda: self._fit(cut, values))
            if fit is not None:
                return fit.run(self.programs.program(fit.key, lambda: self._compiled(fit.whole)), feeds)
        program = program or self.programs.program(key, lambda: self._compiled(cut.graph))
        return program.run_plan(feeds)

    # -- programs for padded rows -------------------------------------------------------------------------------

    def _fit(self, cut: Cut, values: Mapping[str, Any]) -> _Fit | None:
        """How a program for a power of two of rows serves these values; None if that is not proven."""
        shapes = {name: np.shape(values[name]) for name in cut.inputs}
        first = self._first_shapes = self._first_shapes or shapes
        carriers = [i for i, name in enumerate(cut.inputs) if first.get(name) != shapes[name]]
        counts = {shapes[cut.inputs[i]][:1] for i in carriers}
        if len(counts) != 1 or counts <= {(), (0,)}:
            return None
        ((count,),) = counts
        rows = 1 << (count - 1).bit_length()
        padded = {**values, **{cut.inputs[i]: _padded(values[cut.inputs[i]], rows) for i in carriers}}
        try:
            key, whole = self._made(padded)
        except GeError:
            return None
        assert self._judge is not None
        if (whole.inputs, whole.outputs) != (cut.inputs, cut.outputs):
            return None
        theirs, ours = (self._judge.halves(graph) for graph in (whole.graph, cut.graph))
        if not self._judge.light(ours.second) or not self._judge.covers(
            theirs.first, ours.first, (rows, count), carriers
        ):
            return None
        return _Fit(("first half", *key), theirs.first, ours, frozenset(carriers), rows)


@dataclass(frozen=True)
class _Fit:
    """A stage whose first half runs on padded rows."""

    key: Key  # of the program
    whole: ir.Graph  # the first half with padded rows
    halves: Halves  # at the actual sizes
    carriers: frozenset[int]
    rows: int

    def run(self, program: Model, feeds: Sequence[Any]) -> list[np.ndarray]:
        wide = [_padded(f, self.rows) if i in self.carriers else f for i, f in enumerate(feeds)]
        descs = [desc_of(v) for v in self.halves.first.outputs]
        early = [r[: d.shape[0]] for r, d in zip(program.run_plan(wide), descs, strict=True)]
        late = interpret(self.halves.second, [*feeds, *(early[i] for i in self.halves.passed)], _KERNELS)
        return [late[place] if second else early[place] for second, place in self.halves.outputs]


def _padded(array: np.ndarray, rows: int) -> np.ndarray:
    """Pad with copies of the last row: any valid row may be repeated."""
    missing = rows - len(array)
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) if missing else array
