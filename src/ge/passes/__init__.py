"""The pipeline: named stages of named passes, in the order in which a graph goes through them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ge.options import CompileOptions
from ge.passes.base import Pass, run_passes, to_fixpoint
from ge.passes.dead_code import DeadCode

__all__ = ["STAGES", "Stage", "optimize"]


@dataclass(frozen=True)
class Stage:
    """Passes that run together, once or until none changes anything."""

    name: str
    passes: Sequence[Pass]
    fixpoint: bool = True


STAGES: tuple[Stage, ...] = (Stage("clean", (DeadCode(),)),)


def optimize(graph: ir.Graph, options: CompileOptions) -> None:
    """Take a graph through all stages, in place."""
    for stage in STAGES:
        if stage.fixpoint:
            to_fixpoint(graph, stage.passes, options)
        else:
            run_passes(graph, stage.passes, options)
