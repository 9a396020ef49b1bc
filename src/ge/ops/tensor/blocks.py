"""Blocks of an image moved between channels, space and batch."""

from __future__ import annotations

import math
from typing import Any

import tbe
from ge.ops.base import Attr, NodeView, fail, register
from ge.ops.dataflow import Order, Reordered, Rows
from ge.ops.plugins import Node, Results, Unsupported, plugin
from ge.ops.tensor.movement import Movement, concatenated


class Blocks(Rows):
    """Images are independent; transposed channels-last data is processed in its original order."""

    def reorder(self, op: NodeView, order: Order) -> Reordered | None:
        last = tuple(order.perm) == (0, len(order.perm) - 1, *range(1, len(order.perm) - 1))
        return None if op.channels_last or not last else Reordered(order.perm, {"channels_last": True})


class BlockMove(Movement):
    """Blocks of pixels and groups of channels exchanged."""

    dataflow = Blocks()

    block = Attr(int)
    mode = Attr(str, "DCR", choices=("DCR", "CRD"))
    channels_last = Attr(bool, False)


@register
class DepthToSpace(BlockMove):
    """Channels moved into blocks of pixels; mode DCR keeps the block offset outermost in the channels."""

    @staticmethod
    def verify(op: NodeView) -> None:
        desc = op.inputs[0]
        assert desc is not None
        if desc.rank != 4 or op.block < 1 or desc.shape[3 if op.channels_last else 1] % op.block**2:
            raise fail(op, f"{desc} has no groups of {op.block}x{op.block} channels")

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        b = op.block
        n, c, h, w = x.shape if not op.channels_last else tuple(x.shape[i] for i in (0, 3, 1, 2))
        depth = c // (b * b)
        parts = (b, b, depth) if op.mode == "DCR" else (depth, b, b)
        if op.channels_last:
            perm = (0, 1, 3, 2, 4, 5) if op.mode == "DCR" else (0, 1, 4, 2, 5, 3)
            return tbe.reshape(
                tbe.transpose(tbe.reshape(x, (n, h, w, *parts)), perm), (n, h * b, w * b, depth)
            )
        perm = (0, 3, 4, 1, 5, 2) if op.mode == "DCR" else (0, 1, 4, 2, 5, 3)
        return tbe.reshape(tbe.transpose(tbe.reshape(x, (n, *parts, h, w)), perm), (n, depth, h * b, w * b))


@register
class SpaceToDepth(BlockMove):
    """Blocks of pixels moved into channels."""

    @staticmethod
    def verify(op: NodeView) -> None:
        desc = op.inputs[0]
        assert desc is not None
        sizes = desc.shape[1:3] if op.channels_last else desc.shape[2:4]
        if desc.rank != 4 or op.block < 1 or any(s % op.block for s in sizes):
            raise fail(op, f"{desc} does not divide into blocks of {op.block}x{op.block}")

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        b = op.block
        if op.channels_last:
            n, h, w, c = x.shape
            split = tbe.reshape(x, (n, h // b, b, w // b, b, c))
            perm = (0, 1, 3, 2, 4, 5) if op.mode == "DCR" else (0, 1, 3, 5, 2, 4)
            return tbe.reshape(tbe.transpose(split, perm), (n, h // b, w // b, b * b * c))
        n, c, h, w = x.shape
        split = tbe.reshape(x, (n, c, h // b, b, w // b, b))
        perm = (0, 3, 5, 1, 2, 4) if op.mode == "DCR" else (0, 1, 3, 5, 2, 4)
        return tbe.reshape(tbe.transpose(split, perm), (n, b * b * c, h // b, w // b))


@plugin(onnx="DepthToSpace")
def _depth_to_space(n: Node) -> Results:
    return n.op("DepthToSpace", n.inputs[0], block=int(n.attr("blocksize")), mode=n.attr("mode", "DCR"))


@plugin(onnx="SpaceToDepth")
def _space_to_depth(n: Node) -> Results:
    return n.op("SpaceToDepth", n.inputs[0], block=int(n.attr("blocksize")), mode=n.attr("mode", "DCR"))


@plugin(tensorflow="DepthToSpace")
def _depth_to_space_tf(n: Node) -> Results:
    last = str(n.attr("data_format", "NHWC")) == "NHWC"
    return n.op("DepthToSpace", n.inputs[0], block=int(n.attr("block_size")), mode="DCR", channels_last=last)


@plugin(tensorflow="SpaceToDepth")
def _space_to_depth_tf(n: Node) -> Results:
    last = str(n.attr("data_format", "NHWC")) == "NHWC"
    return n.op("SpaceToDepth", n.inputs[0], block=int(n.attr("block_size")), mode="DCR", channels_last=last)


def _blocks_and_borders(n: Node) -> tuple[list[int], list[int], list[int]]:
    """Block sizes and padding of the operators that exchange space and batch."""
    if n.type in ("SpaceToBatch", "BatchToSpace"):
        block, pads = int(n.attr("block_size")), n.ints(1, "the borders")
        return [block, block], pads[0::2], pads[1::2]
    pads = n.ints(2, "the borders")
    return n.ints(1, "the block shape"), pads[0::2], pads[1::2]


@plugin(tensorflow=["SpaceToBatchND", "SpaceToBatch"])
def _space_to_batch(n: Node) -> Results:
    """Blocks of space become batch entries, the block offset outermost."""
    blocks, low, high = _blocks_and_borders(n)
    rank, m = n.desc().rank, len(blocks)
    x: Any = n.inputs[0]
    if any((*low, *high)):
        rest = [0] * (rank - m - 1)
        x = n.op("Pad", x, low=[0, *low, *rest], high=[0, *high, *rest])
    shape = [int(d) for d in x.shape]
    if any(b < 1 or d % b for b, d in zip(blocks, shape[1:], strict=False)):
        raise Unsupported(f"{shape} does not divide into blocks of {blocks}")
    split = [v for b, d in zip(blocks, shape[1 : m + 1], strict=True) for v in (d // b, b)]
    x = n.op("Reshape", x, shape=[shape[0], *split, *shape[m + 1 :]])
    perm = [*range(2, 2 * m + 1, 2), 0, *range(1, 2 * m, 2), *range(2 * m + 1, rank + m)]
    x = n.op("Transpose", x, perm=perm)
    inner = [d // b for b, d in zip(blocks, shape[1 : m + 1], strict=True)]
    return n.op("Reshape", x, shape=[shape[0] * math.prod(blocks), *inner, *shape[m + 1 :]])


@plugin(tensorflow=["BatchToSpaceND", "BatchToSpace"])
def _batch_to_space(n: Node) -> Results:
    """The inverse: batch entries become blocks of space, then the result is cropped."""
    blocks, low, high = _blocks_and_borders(n)
    shape, m = n.desc().shape, len(blocks)
    rank, batch = len(shape), shape[0] // max(math.prod(blocks), 1)
    x = n.op("Reshape", n.inputs[0], shape=[*blocks, batch, *shape[1:]])
    pairs = [v for i in range(m) for v in (m + 1 + i, i)]
    x = n.op("Transpose", x, perm=[m, *pairs, *range(2 * m + 1, rank + m)])
    inner = [d * b for b, d in zip(blocks, shape[1 : m + 1], strict=True)]
    x = n.op("Reshape", x, shape=[batch, *inner, *shape[m + 1 :]])
    if not any((*low, *high)):
        return x
    ends = [batch, *(d - h for d, h in zip(inner, high, strict=True)), *shape[m + 1 :]]
    return n.op("Slice", x, starts=[0, *low, *([0] * (rank - m - 1))], ends=ends)


@plugin(tensorflow="ExtractImagePatches")
def _extract_image_patches(n: Node) -> Results:
    """Every window of an image as one long channel, row by row."""
    batch, height, width, channels = n.desc().shape
    kernel = list(n.attr("ksizes"))[1:3]
    strides, rates = list(n.attr("strides"))[1:3], list(n.attr("rates"))[1:3]
    extents = [(k - 1) * r + 1 for k, r in zip(kernel, rates, strict=True)]
    low, high = [0, 0], [0, 0]
    if n.attr("padding", "VALID") == "SAME":
        for i, size in enumerate((height, width)):
            total = max((-(-size // strides[i]) - 1) * strides[i] + extents[i] - size, 0)
            low[i], high[i] = total // 2, total - total // 2
    x: Any = n.inputs[0]
    if any((*low, *high)):
        x = n.op("Pad", x, low=[0, *low, 0], high=[0, *high, 0])
    sizes = [
        (d + a + b - e) // s + 1
        for d, a, b, e, s in zip((height, width), low, high, extents, strides, strict=True)
    ]
    pieces = []
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            starts = [0, i * rates[0], j * rates[1], 0]
            ends = [
                batch,
                *(a + (c - 1) * s + 1 for a, c, s in zip(starts[1:3], sizes, strides, strict=True)),
                channels,
            ]
            pieces.append(n.op("Slice", x, starts=starts, ends=ends, steps=[1, *strides, 1]))
    return concatenated(n, pieces, 3)
