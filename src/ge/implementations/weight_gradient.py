"""Implementations of a convolution's weight gradient: Winograd, channel products, depthwise, the library."""

from __future__ import annotations

import math
from typing import Any

from ge.implementations.base import LIBRARY, Candidate, Library, Operation, is_small
from ge.implementations.convolution import (
    cover_of,
    depthwise_gradient_unfit,
    tiles_of,
    winograd_lanes,
    winograd_work,
)
from ge.plan import View
from ge.target import CostTable, Target

__all__ = ["CANDIDATES"]

_FLOATS = ("float32", "bfloat16")
_VECTOR = 16  # channels per vector, as in the kernel, native/convolution/weight_gradient.h
_MAX_WIDTH = 4096
_DEPTHWISE = frozenset({(3, 1), (3, 2), (5, 1), (5, 2)})  # compiled kernel sizes and strides
_LIBRARY_KERNEL = 3  # largest depthwise kernel whose weight gradient the library optimises


def _sides(op: Operation) -> tuple[View, View, View]:
    """The source, the gradient of the result, and the gradient of the weights."""
    return op.inputs[0], op.inputs[1], op.outputs[0]


def _one_group_of_images(op: Operation) -> str:
    x, dy, dw = _sides(op)
    if not len(x.shape) == len(dy.shape) == len(dw.shape) == 4 or op.attrs.get("groups", 1) != 1:
        return "it takes images in one group"
    if len(op.outputs) != 1:
        return "it has no gradient of a bias"
    if x.dtype != dy.dtype or x.dtype not in _FLOATS or dw.dtype not in _FLOATS:
        return "it takes float32 or bfloat16"
    return "" if x.strides[1] == 1 and dy.strides[1] == 1 else "it takes channels-last images"


class WinogradGradient(Candidate):
    """Gradients of 3x3 kernels of stride 1 with less arithmetic."""

    name = "winograd"
    needs = "avx2"
    rounds_more = True

    def refuse(self, op: Operation, target: Target) -> str:
        x, dy, dw = _sides(op)
        lanes = winograd_lanes(target)
        if dw.dtype == "bfloat16" and "avx512_bf16" not in target.features:  # which rounds the sums
            return "the target has no AVX512_BF16"
        return super().refuse(op, target) or (
            f"the channels are no multiple of {lanes}" if x.shape[1] % lanes or dy.shape[1] % lanes else ""
        )

    def unfit(self, op: Operation) -> str:
        ones = set(op.integers("strides", (1,))) | set(op.integers("dilations", (1,)))
        if op.outputs[0].shape[2:] != (3, 3) or ones != {1}:
            return "it computes gradients of 3x3 kernels without strides and dilations"
        return _one_group_of_images(op)

    def measured_gain(self, op: Operation, target: Target, costs: CostTable) -> float:
        x, dy, _ = _sides(op)
        channels = (x.shape[1], dy.shape[1])
        least: float = costs.winograd_gradient_tiles
        if (
            x.dtype == "bfloat16"
        ):  # direct products are twice as fast: many weights pay off only with many tiles
            least = max(least, max(channels) // costs.winograd_outputs_per_tile_bf16)
        bounds = (
            tiles_of(dy) / least,
            min(channels) / costs.winograd_channels,
            cover_of(dy) / costs.winograd_cover,
        )
        return min(bounds)

    def modelled_gain(self, op: Operation, target: Target) -> float:
        x, dy, dw = _sides(op)
        weights = dw.shape[0] * dw.shape[1]
        return target.seconds(op.flops, op.nbytes, x.dtype) / winograd_work(x, dy, weights, op, target)


class ChannelProducts(Candidate):
    """For each tap, a product of channels by channels over all pixels."""

    name = "weight_gradient"
    needs = "avx2"
    needs_bf16 = "avx512_bf16"

    def unfit(self, op: Operation) -> str:
        x, dy, _ = _sides(op)
        why = _one_group_of_images(op)
        if why:
            return why
        if any(v.shape[1] % _VECTOR or not math.prod(v.shape) for v in (x, dy)):
            return f"the channels are no multiple of {_VECTOR}"
        return "images are too wide" if dy.shape[3] > _MAX_WIDTH else ""

    def measured_gain(self, op: Operation, target: Target, costs: CostTable) -> float:
        """With few channels packing dominates; the library's float32 products keep up for twice as many."""
        x, dy, _ = _sides(op)
        fewest, most = sorted((x.shape[1], dy.shape[1]))
        enough = costs.weight_gradient_channels
        return min(fewest / (enough if x.dtype == "float32" else enough / 2), most / enough)

    def modelled_gain(self, op: Operation, target: Target) -> float:
        """Both sides are packed once per tap, which pays off if the other side has many channels."""
        x, dy, dw = _sides(op)
        packing = 2 * (x.nbytes + dy.nbytes) * math.prod(dw.shape[2:]) / 8
        return target.seconds(op.flops, op.nbytes) / target.seconds(op.flops / 1.1, op.nbytes + packing)

    def settings(self, op: Operation, target: Target) -> dict[str, Any]:
        """Many pixels are divided at the price of adding the cores' sums; else the longer side of the product is."""
        x, dy, _ = _sides(op)
        pixels = dy.shape[0] * dy.shape[2] * dy.shape[3]
        costs, depth = target.measured, 2 if x.dtype == "bfloat16" else 1  # pixels of a multiplication
        return {
            "by_pixels": pixels > costs.weight_gradient_pixels * max(x.shape[1], dy.shape[1]),
            "block_pixels": max(target.l2_bytes // costs.weight_gradient_step_bytes, 1) * depth,
        }


class DepthwiseWeightGradient(Candidate):
    """The gradient of a depthwise convolution's weights."""

    name = "depthwise_weight_gradient"
    needs = "avx2"
    needs_bf16 = "avx512_bf16"

    def unfit(self, op: Operation) -> str:
        x, dy, dw = _sides(op)
        if len(op.outputs) != 1:
            return "it has no gradient of a bias"
        why = depthwise_gradient_unfit(op, x, dy, dw)
        if why:
            return why
        size = (dw.shape[2], op.integers("strides", (1, 1))[0])
        return "" if size in _DEPTHWISE else "no kernel of this size and stride is compiled"

    def measured_gain(self, op: Operation, target: Target, costs: CostTable) -> float:
        return self._gain(op, costs, costs.depthwise_gradient_bytes)

    def modelled_gain(self, op: Operation, target: Target) -> float:
        return self._gain(op, target.measured, target.cache_bytes // 2)

    @staticmethod
    def _gain(op: Operation, costs: CostTable, least: int) -> float:
        """The library has kernels for few taps only, which read a source that the caches do not hold more than once."""
        x, dy, dw = _sides(op)
        large = dw.shape[2] > _LIBRARY_KERNEL
        return costs.depthwise_weight_gain if large else (x.nbytes + dy.nbytes) / least


class LibraryGradient(Library):
    """One primitive on all cores, whose threads spin at its barriers, or on one."""

    def is_serial(self, op: Operation, target: Target) -> bool:
        return op.flops < target.measured.gradient_flops or super().is_serial(op, target)


class LibraryShares(Library):
    """A primitive of its own for each core's images; the partial sums are added. No core waits at barriers."""

    name = f"{LIBRARY}_shares"

    def refuse(self, op: Operation, target: Target) -> str:
        if target.cores < 2 or op.inputs[0].shape[0] < 2:
            return "there are no images for several cores"
        why = super().refuse(op, target)
        small = is_small(target, op.flops, op.moved_bytes)
        return why or ("waking other cores costs more than they save" if small else "")

    def measured_gain(self, op: Operation, target: Target, costs: CostTable) -> float:
        return self._evenness(op, target) / costs.gradient_evenness

    def modelled_gain(self, op: Operation, target: Target) -> float:
        return self._evenness(op, target)

    @staticmethod
    def _evenness(op: Operation, target: Target) -> float:
        """The share of the cores' time that they compute; the rest waits for the core with the most images."""
        images: int = op.inputs[0].shape[0]
        return images / (-(-images // target.cores) * target.cores)

    def is_serial(self, op: Operation, target: Target) -> bool:
        return False


CANDIDATES: tuple[Candidate, ...] = (
    WinogradGradient(),
    ChannelProducts(),
    DepthwiseWeightGradient(),
    LibraryShares(),
    LibraryGradient(),
)
