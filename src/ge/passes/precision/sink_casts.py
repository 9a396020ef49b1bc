"""Cast sinking: moves widening casts down through movements, which then work on the narrow type, until casts cancel."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ge.ir.values import desc_of
from ge.ops.base import lookup, takes
from ge.passes.cleanup.merge_movements import holds_exactly
from ge.passes.rewrite import Replacement, RewritePass, Rewriter, Rule, producer

__all__ = ["SinkCasts"]


def _sink(r: Rewriter, node: ir.Node) -> Replacement:
    casts = [producer(v, "Cast") for v in node.inputs]
    sources = [c.inputs[0] for c in casts if c is not None and c.inputs[0] is not None]
    if len(sources) != len(node.inputs):
        return None
    narrow, wide = {desc_of(v).dtype for v in sources}, desc_of(node.outputs[0]).dtype
    if len(narrow) != 1 or not holds_exactly(next(iter(narrow)), wide) or not takes(node, *narrow):
        return None
    moved = r.op_like(node, sources)
    results = moved if isinstance(moved, tuple) else (moved,)
    wider = [r.op("Cast", v, to=wide) for v in results]
    return wider if len(wider) > 1 else wider[0]


class SinkCasts(RewritePass):
    """Move widening casts behind movements.

    1. A movement (an operator that declares `moves`: Reshape, Transpose, Slice, Split, Concat, …) whose inputs are all
       widened from one narrower type that the wide type represents exactly works on the narrow values, if it accepts
       them; its results are widened instead.
    2. Narrowing casts stay where they are.
    """

    name = "sink_casts"

    def rules_of(self, node: ir.Node) -> Sequence[Rule]:
        return (_sink,) if lookup(node.op_type).moves else ()
