"""Pad folding: zero padding becomes the padding of the convolution or pooling that reads it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import onnx_ir as ir

from ge.ir.values import desc_of
from ge.passes.cleanup.simplify_algebra import non_negative
from ge.passes.rewrite import RewritePass, Rewriter, Rules, attrs_of, producer

__all__ = ["FoldPads"]


def _spatial(pad: ir.Node, data_format: str) -> tuple[list[int], list[int]] | None:
    """The padding along the spatial axes, None if the Pad also pads batch or channels."""
    attrs = attrs_of(pad)
    low, high = list(attrs["low"]), list(attrs["high"])
    rank = len(low)
    space = list(range(1, rank - 1)) if data_format == "channels_last" else list(range(2, rank))
    if any(low[i] or high[i] for i in range(rank) if i not in space):
        return None
    return [low[i] for i in space], [high[i] for i in space]


def _sum(a: Sequence[int] | None, b: Sequence[int]) -> list[int]:
    return [x + y for x, y in zip(a or [0] * len(b), b, strict=True)]


def _into_conv(r: Rewriter, node: ir.Node) -> ir.Value | None:
    return _fold(r, node, accepts=lambda pad: attrs_of(pad)["value"] == 0)


def _into_max_pool(r: Rewriter, node: ir.Node) -> ir.Value | None:
    def accepts(pad: ir.Node) -> bool:
        value = attrs_of(pad)["value"]
        return value == -math.inf or (value == 0 and non_negative(pad.inputs[0]))

    return _fold(r, node, accepts, inside_only=True)


def _into_avg_pool(r: Rewriter, node: ir.Node) -> ir.Value | None:
    attrs = attrs_of(node)
    bordered = any((*(attrs["pads_begin"] or ()), *(attrs["pads_end"] or ())))
    if bordered and not attrs["count_include_pad"]:
        return None
    return _fold(r, node, lambda pad: attrs_of(pad)["value"] == 0, inside_only=True, count_include_pad=True)


def _fold(
    r: Rewriter,
    node: ir.Node,
    accepts: Callable[[ir.Node], bool],
    inside_only: bool = False,
    **changes: object,
) -> ir.Value | None:
    pad = producer(node.inputs[0], "Pad")
    if pad is None or attrs_of(pad)["mode"] != "constant" or not accepts(pad):
        return None
    attrs = attrs_of(node)
    widths = _spatial(pad, attrs["data_format"])
    if widths is None or any(w < 0 for side in widths for w in side):
        return None
    begin, end = _sum(attrs["pads_begin"], widths[0]), _sum(attrs["pads_end"], widths[1])
    if inside_only and not _reaches_data(attrs["kernel"], attrs["dilations"], begin, end):
        return None
    r.stands_for(pad)
    source = pad.inputs[0]
    assert source is not None and desc_of(source).rank == len(begin) + 2
    return r.op_like(node, [source, *node.inputs[1:]], pads_begin=begin, pads_end=end, **changes)


def _reaches_data(
    kernel: Sequence[int], holes: Sequence[int] | None, begin: Sequence[int], end: Sequence[int]
) -> bool:
    """True if every window covers at least one element that is not padding."""
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, holes or [1] * len(kernel), strict=True)]
    return all(max(a, b) < e for a, b, e in zip(begin, end, extents, strict=True))


class FoldPads(RewritePass):
    """Fold Pads into the padding of convolutions and poolings.

    1. A zero Pad along spatial axes before a Conv becomes part of its padding.
    2. Before a MaxPool it does if it pads with -inf, or pads a value known to be non-negative with zeros.
    3. Before an AvgPool without padding it does; the zeros are counted in the mean.
    4. A Pad of batch or channels, or in another mode, stays.
    """

    name = "fold_pads"
    rules: ClassVar[Rules] = {
        "Conv": (_into_conv,),
        "MaxPool": (_into_max_pool,),
        "AvgPool": (_into_avg_pool,),
    }
