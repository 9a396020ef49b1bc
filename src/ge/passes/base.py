"""The pass interface and pass manager: passes are named, can be disabled, and report whether they changed anything."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar

import onnx_ir as ir

from ge.ir.graphs import subgraphs_of
from ge.options import CompileOptions

__all__ = ["History", "Pass", "run_passes", "to_fixpoint"]

FIXPOINT_LIMIT = 20
_log = logging.getLogger(__name__)


class Pass:
    """One transformation of a graph. The docstring of a pass is its contract, as numbered rules.

    `run` handles one graph level; `apply` visits nested graphs first.
    """

    name: ClassVar[str] = ""
    visits_nested: ClassVar[bool] = True

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        """Transform the graph in place; return True if anything changed."""
        raise NotImplementedError

    def apply(
        self, graph: ir.Graph, options: CompileOptions, nested: Sequence[ir.Graph] | None = None
    ) -> bool:
        """Run on nested graphs (collected here if `nested` is None), then on the graph itself."""
        if self.name in options.disabled_passes:
            return False
        changed = False
        if self.visits_nested:
            for inner in subgraphs_of(graph) if nested is None else nested:
                changed |= self.apply(inner, options)
        return self.run(graph, options) or changed


class History:
    """The passes run on one graph: a pass that changed nothing is skipped until another pass changes the graph."""

    def __init__(self) -> None:
        self._changes = 0
        self._idle: dict[Pass, int] = {}  # pass -> number of changes so far when it last changed nothing
        self._nested: tuple[int, list[ir.Graph]] = (-1, [])

    def has_work(self, item: Pass) -> bool:
        """True if the graph has changed since the pass last changed nothing."""
        return self._idle.get(item) != self._changes

    def ran(self, item: Pass, changed: bool) -> None:
        """Record a run."""
        if changed:
            self._changes += 1
        else:
            self._idle[item] = self._changes

    def nested(self, graph: ir.Graph) -> list[ir.Graph]:
        """The graphs nested in a graph's nodes."""
        if self._nested[0] != self._changes:
            self._nested = self._changes, subgraphs_of(graph)
        return self._nested[1]


def run_passes(
    graph: ir.Graph, passes: Sequence[Pass], options: CompileOptions, history: History | None = None
) -> bool:
    """Run each pass that has work to do once, in order; `history` is the history of the graph."""
    history = history if history is not None else History()
    anything = False
    for item in passes:
        if not history.has_work(item):
            continue
        changed = item.apply(graph, options, history.nested(graph))
        history.ran(item, changed)
        if changed:
            _log.debug("pass %s changed the graph, %d nodes now", item.name, len(graph))
            anything = True
    return anything


def to_fixpoint(
    graph: ir.Graph, passes: Sequence[Pass], options: CompileOptions, history: History | None = None
) -> None:
    """Run the passes until none changes anything (bounded)."""
    history = history if history is not None else History()
    for _ in range(FIXPOINT_LIMIT):
        if not run_passes(graph, passes, options, history):
            return
