"""Space-to-depth for strided convolutions of images with few channels, for tensor cores of GPUs."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ge.ir.values import constant_of, desc_of
from ge.options import CompileOptions
from ge.passes.base import Pass
from ge.passes.rewrite import Rewriter, attrs_of, replace_node

__all__ = ["FoldStrides"]

_MOST_CHANNELS = 4  # of pictures: more fill the vectors that tensor cores read
_ELEMENTS = 8  # 16-bit elements that tensor cores read at once


@dataclass(frozen=True)
class _Windows:
    """Windows over images: their taps along both axes in `groups` of stride taps each."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int]  # before the images
    places: tuple[int, int]  # of the result
    channels: int

    @property
    def groups(self) -> tuple[int, int]:
        return -(-self.kernel[0] // self.strides[0]), -(-self.kernel[1] // self.strides[1])

    @property
    def whole(self) -> tuple[int, int, int]:
        """Taps along both axes and channels, after zero padding."""
        down, across = (g * s for g, s in zip(self.groups, self.strides, strict=True))
        width = self.strides[0] * self.strides[1]
        padded = next(c for c in range(self.channels, _ELEMENTS + 1) if width * c % _ELEMENTS == 0)
        return down, across, padded

    def picture(self, r: Rewriter, x: ir.Value) -> ir.Value:
        """(N, H, W, C) to stride-sized squares of pixels, whose channels are concatenated."""
        images, *sizes, channels = desc_of(x).shape
        down, across = self.strides
        rows, columns = (p - 1 + g for p, g in zip(self.places, self.groups, strict=True))
        ends = rows * down - sizes[0] - self.pads[0], columns * across - sizes[1] - self.pads[1]
        wide = self.whole[2]
        kept = [size + min(end, 0) for size, end in zip(sizes, ends, strict=True)]
        if kept != sizes:  # the last pixels are in no window
            x = r.op("Slice", x, starts=[0] * 4, ends=[images, *kept, channels])
        x = r.op("Pad", x, low=[0, *self.pads, 0], high=[0, *(max(e, 0) for e in ends), wide - channels])
        x = r.op("Reshape", x, shape=[images, rows, down, columns, across, wide])
        x = r.op("Transpose", x, perm=[0, 1, 3, 2, 4, 5])
        return r.op("Reshape", x, shape=[images, rows, columns, down * across * wide])

    def weight(self, r: Rewriter, w: ir.Value) -> ir.Value:
        """(O, kernel, C) to the same squares."""
        outputs = desc_of(w).shape[0]
        down, across, wide = self.whole
        high = [down - self.kernel[0], across - self.kernel[1], wide - self.channels]
        w = r.op("Pad", w, low=[0] * 4, high=[0, *high])
        (tall, broad), (s, t) = self.groups, self.strides
        w = r.op("Reshape", w, shape=[outputs, tall, s, broad, t, wide])
        w = r.op("Transpose", w, perm=[0, 1, 3, 2, 4, 5])
        return r.op("Reshape", w, shape=[outputs, tall, broad, s * t * wide])

    def plain_weight(self, r: Rewriter, w: ir.Value) -> ir.Value:
        """The inverse of `weight`."""
        outputs = desc_of(w).shape[0]
        (tall, broad), (s, t) = self.groups, self.strides
        down, across, wide = self.whole
        w = r.op("Reshape", w, shape=[outputs, tall, broad, s, t, wide])
        w = r.op("Transpose", w, perm=[0, 1, 3, 2, 4, 5])
        w = r.op("Reshape", w, shape=[outputs, down, across, wide])
        return r.op("Slice", w, starts=[0] * 4, ends=[outputs, *self.kernel, self.channels])


def _windows(node: ir.Node, least: int) -> _Windows | None:
    """The windows of a convolution, or of its weight gradient, that is worth rewriting, else None."""
    attrs = attrs_of(node)
    x, other, y = desc_of(node.inputs[0]), desc_of(node.inputs[1]), desc_of(node.outputs[0])  # type: ignore[arg-type]
    last = attrs["data_format"] == "channels_last" and attrs["weight_format"] == "OKI"
    if not last or x.rank != 4 or x.dtype not in ("float16", "bfloat16") or other.dtype != x.dtype:
        return None
    gradient = node.op_type == "ConvGradWeight"
    kernel, result = (attrs["kernel"], other) if gradient else (other.shape[1:3], y)
    strides, pads = attrs["strides"] or [1, 1], attrs["pads_begin"] or [0, 0]
    if attrs["groups"] != 1 or x.shape[3] > _MOST_CHANNELS or any(d != 1 for d in attrs["dilations"] or ()):
        return None
    if any(s < 2 or k <= s for s, k in zip(strides, kernel, strict=True)):
        return None
    if strides[0] * strides[1] * x.shape[3] > 2 * _ELEMENTS or result.size // result.shape[3] < least:
        return None
    if not gradient and constant_of(node.inputs[1]) is not None:  # these have faster implementations
        return None
    down, across = result.shape[1:3]
    return _Windows(
        (kernel[0], kernel[1]), (strides[0], strides[1]), (pads[0], pads[1]), (down, across), x.shape[3]
    )


class FoldStrides(Pass):
    """Let tensor cores of GPUs read whole squares of pixels of images with few channels.

    1. A convolution with windows larger than its stride s x t, over at most 4 channels, becomes one of stride 1: the s
       x t pixels of a square become the channels of one pixel, zero-padded to a multiple of 8.
    2. So does its weight gradient, over the same squares.
    3. Small ones and those with constant weights stay.
    """

    name = "fold_strides"

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        if options.target.kind != "cuda":
            return False
        least = options.target.measured.folded_places
        nodes = [
            (node, windows)
            for node in graph
            if node.op_type in ("Conv", "ConvGradWeight") and (windows := _windows(node, least))
        ]
        made: dict[tuple[ir.Value, _Windows], ir.Value] = {}
        for node, windows in nodes:
            _fold(Rewriter(graph, node, options), graph, node, windows, made)
        return bool(nodes)


def _fold(
    r: Rewriter,
    graph: ir.Graph,
    node: ir.Node,
    windows: _Windows,
    made: dict[tuple[ir.Value, _Windows], ir.Value],
) -> None:
    x, other, *rest = node.inputs
    assert x is not None and other is not None
    if (x, windows) not in made:  # the forward pass comes first
        made[x, windows] = windows.picture(r, x)
    plain = {"strides": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0]}
    if node.op_type == "ConvGradWeight":
        found = r.op_like(node, [made[x, windows], other, *rest], kernel=list(windows.groups), **plain)
        found = windows.plain_weight(r, found)
    else:
        found = r.op_like(node, [made[x, windows], windows.weight(r, other), *rest], **plain)
    replace_node(graph, node, [found])
