"""Lets matrix products broadcast operands that were repeated along batch axes (keys and values shared by heads)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ge.ir.values import constant_of, desc_of
from ge.passes.rewrite import RewritePass, Rewriter, Rules, attrs_of, producer

__all__ = ["BroadcastMatmuls"]


@dataclass(frozen=True)
class _Repeated:
    """A repeated stack of matrices: (…, groups, 1, m, n) broadcast to (…, groups, times, m, n) and reshaped."""

    source: ir.Value
    batch: tuple[int, ...]  # with the repeated axis separate
    swapped: bool  # the last two axes are swapped afterwards


def _repeated(value: ir.Value | None) -> _Repeated | None:
    node = producer(value, "Transpose")
    swapped = False
    if node is not None:
        perm = tuple(attrs_of(node)["perm"])
        rank = len(perm)
        if perm != (*range(rank - 2), rank - 1, rank - 2):
            return None
        value, swapped = node.inputs[0], True
    merged = producer(value, "Reshape")
    repeat = None if merged is None else producer(merged.inputs[0], "BroadcastTo")
    if merged is None or repeat is None or repeat.inputs[0] is None:
        return None
    wide, narrow = desc_of(repeat.outputs[0]).shape, desc_of(repeat.inputs[0]).shape
    target = desc_of(merged.outputs[0]).shape
    if len(wide) != len(target) + 1 or len(narrow) != len(wide) or len(wide) < 4:
        return None
    axis = len(wide) - 3
    if narrow[axis] != 1 or narrow[:axis] + narrow[axis + 1 :] != wide[:axis] + wide[axis + 1 :]:
        return None
    if target != (*wide[: axis - 1], wide[axis - 1] * wide[axis], *wide[axis + 1 :]):
        return None
    return _Repeated(repeat.inputs[0], wide[: axis + 1], swapped)


def _without_repeats(r: Rewriter, node: ir.Node) -> ir.Value | None:
    left, found = node.inputs[0], _repeated(node.inputs[1])
    if left is None or found is None or len(node.inputs) > 2 or constant_of(left) is not None:
        return None
    shape, result = desc_of(left).shape, desc_of(node.outputs[0]).shape
    merged = (*found.batch[:-2], found.batch[-2] * found.batch[-1])
    if shape[:-2] != merged or attrs_of(node)["post_ops"]:
        return None
    right = found.source
    if found.swapped:
        rank = desc_of(right).rank
        right = r.op("Transpose", right, perm=[*range(rank - 2), rank - 1, rank - 2])
    product = r.op_like(node, [r.op("Reshape", left, shape=[*found.batch, *shape[-2:]]), right])
    return r.op("Reshape", product, shape=result)


class BroadcastMatmuls(RewritePass):
    """Use the broadcast of products instead of repeated operands.

    1. A right-hand operand that is a stack of matrices repeated along a new batch axis, which was then merged with the
       preceding axis (and perhaps transposed), is read unrepeated: the left operand's batch axis is split instead, and
       the product broadcasts.
    2. Products with bias or post-ops, and repeats along other axes, are not changed.
    """

    name = "broadcast_matmuls"
    rules: ClassVar[Rules] = {"MatMul": (_without_repeats,)}
