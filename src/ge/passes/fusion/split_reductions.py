"""Large reductions with few results, done in two steps so that all cores take part."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from ge.ir.types import FLOATS
from ge.ir.values import desc_of
from ge.ops.base import lookup
from ge.passes.rewrite import RewritePass, Rewriter, Rule, attrs_of

__all__ = ["SplitReductions"]

_LANE = 8  # the last kept axis is what vectors run along


def _two_steps(r: Rewriter, node: ir.Node) -> ir.Value | None:
    source = node.inputs[0]
    assert source is not None
    desc, attrs = desc_of(source), attrs_of(node)
    if desc.size < r.options.target.reduction_elements or attrs["axes"] is None or desc.dtype not in FLOATS:
        return None
    axes = sorted(a % desc.rank for a in attrs["axes"] if desc.shape[a] != 1)
    if len(axes) < 2 or axes[-1] == desc.rank - 1 or desc.shape[-1] < _LANE:
        return None
    kept = math.prod(n for i, n in enumerate(desc.shape[:-1]) if i not in axes)
    if r.options.target.kind == "cuda":  # every column has threads of its own
        kept *= desc.shape[-1]
    if kept >= r.options.target.rows:
        return None
    inner = _inner_axes(desc.shape, axes, kept, r.options.target.rows)
    if inner is None:
        return None
    partial = r.op_like(node, [source], axes=inner, keepdims=True)
    return r.op_like(node, [partial])


def _inner_axes(shape: tuple[int, ...], axes: list[int], kept: int, rows: int) -> list[int] | None:
    """The last axes to reduce first, so that what is left gives enough pieces."""
    pieces = kept
    for split in range(1, len(axes)):
        pieces *= shape[axes[split - 1]]
        if pieces >= rows:
            return axes[split:]
    return None


class SplitReductions(RewritePass):
    """Let all cores take part in large reductions.

    1. A reduction that may be done axis by axis (its operator `nests`) of a large float tensor over two or more axes,
       not the last one, that leaves few rows is done over the inner axes first and over the others then.
    2. Reductions along the last axis, small ones, and those that leave enough rows stay as they are.
    """

    name = "split_reductions"

    def rules_of(self, node: ir.Node) -> Sequence[Rule]:
        return (_two_steps,) if lookup(node.op_type).nests else ()
