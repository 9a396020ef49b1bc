"""What a pass is, and how a list of them runs: named, switchable, each reporting whether it changed anything."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar

import onnx_ir as ir

from ge.ir.graphs import subgraphs_of
from ge.options import CompileOptions

__all__ = ["Pass", "run_passes", "to_fixpoint"]

FIXPOINT_LIMIT = 20
_log = logging.getLogger(__name__)


class Pass:
    """One transformation of a graph. The docstring of a pass is its contract, as numbered rules.

    `run` handles one graph level; `apply` visits nested graphs first.
    """

    name: ClassVar[str] = ""

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        """Transform the graph in place; True when anything changed."""
        raise NotImplementedError

    def apply(self, graph: ir.Graph, options: CompileOptions) -> bool:
        """Run on nested graphs, then on the graph itself."""
        if self.name in options.disabled_passes:
            return False
        changed = False
        for inner in subgraphs_of(graph):
            changed |= self.apply(inner, options)
        return self.run(graph, options) or changed


def run_passes(graph: ir.Graph, passes: Sequence[Pass], options: CompileOptions) -> bool:
    """Run each pass once, in order."""
    changed = False
    for item in passes:
        if item.apply(graph, options):
            _log.debug("pass %s changed the graph, %d nodes now", item.name, len(graph))
            changed = True
    return changed


def to_fixpoint(graph: ir.Graph, passes: Sequence[Pass], options: CompileOptions) -> None:
    """Run the passes again and again until none changes anything (bounded)."""
    for _ in range(FIXPOINT_LIMIT):
        if not run_passes(graph, passes, options):
            return
