"""Splits large reductions with few results into two steps, so that all cores take part."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from ge.ir.types import FLOATS, widened
from ge.ir.values import desc_of
from ge.ops.base import lookup
from ge.passes.rewrite import RewritePass, Rewriter, Rule, attrs_of
from ge.target import CostTable

__all__ = ["SplitReductions"]

_LANE = 8  # vectors run along the last kept axis


def _two_steps(r: Rewriter, node: ir.Node) -> ir.Value | None:
    source = node.inputs[0]
    assert source is not None
    desc, attrs = desc_of(source), attrs_of(node)
    if desc.size < r.options.target.reduction_elements or attrs["axes"] is None or desc.dtype not in FLOATS:
        return None
    axes = sorted(a % desc.rank for a in attrs["axes"] if desc.shape[a] != 1)
    if not axes or axes[-1] == desc.rank - 1 or desc.shape[-1] < _LANE:
        return None
    kept = math.prod(n for i, n in enumerate(desc.shape[:-1]) if i not in axes)
    enough = r.options.target.rows
    if r.options.target.kind == "cuda":  # every column has its own threads
        kept *= desc.shape[-1]
        enough = r.options.target.columns
    if kept >= enough:
        return None
    if len(axes) == 1:
        outer = (
            _outer_extent(desc.shape[axes[0]], -(-enough // kept), r.options.target.measured)
            if r.options.target.kind == "cuda"
            else 0
        )
        inner = [axes[0] + 1] if outer else None
    else:
        outer = 0
        counts = (enough, r.options.target.rows)
        inner = next(filter(None, (_inner_axes(desc.shape, axes, kept, n) for n in counts)), None)
    if inner is None:
        return None
    wide = widened(desc.dtype)  # the pieces' type
    values = source if wide == desc.dtype else r.op("Cast", source, to=wide)
    if outer:
        left, extent, *right = desc.shape[: axes[0]], desc.shape[axes[0]], *desc.shape[axes[0] + 1 :]
        values = r.op("Reshape", values, shape=[*left, outer, extent // outer, *right])
    partial = r.op_like(node, [values], axes=inner, keepdims=not outer)
    total = r.op_like(node, [partial])
    return total if wide == desc.dtype else r.op("Cast", total, to=desc.dtype)


def _outer_extent(extent: int, pieces: int, costs: CostTable) -> int:
    """The number of pieces to split an axis into, a multiple of `pieces`; 0 if they would be short.

    >>> table = CostTable(pieces_per_thread=4, piece_elements=8)
    >>> [_outer_extent(extent, pieces, table) for extent, pieces in ((4096, 11), (4096, 300), (101, 2))]
    [64, 512, 0]
    """
    possible = [n for n in range(pieces, extent // costs.piece_elements + 1) if extent % n == 0]
    return next((n for n in possible if n >= costs.pieces_per_thread * pieces), max(possible, default=0))


def _inner_axes(shape: tuple[int, ...], axes: list[int], kept: int, rows: int) -> list[int] | None:
    """The last axes to reduce first, so that the remaining axes give enough pieces."""
    pieces = kept
    for split in range(1, len(axes)):
        pieces *= shape[axes[split - 1]]
        if pieces >= rows:
            return axes[split:]
    return None


class SplitReductions(RewritePass):
    """Parallelise large reductions.

    1. A reduction that may run axis by axis (its operator `nests`) of a large float tensor over two or more axes, not
       including the last one, that leaves few rows runs over the inner axes first, then over the others.
    2. On a GPU a long axis is split in two first; there, as many columns as have their own threads are enough.
    3. Reductions along the last axis, small ones, and those that leave enough rows stay as they are.
    """

    name = "split_reductions"

    def rules_of(self, node: ir.Node) -> Sequence[Rule]:
        return (_two_steps,) if lookup(node.op_type).nests else ()
