"""Implementations of convolutions and transposed convolutions: Winograd, depthwise, pointwise, scattering, the library.

Operands are in the order of the runtime's task: images (N, C, space) and weights (O, I / groups, kernel); those of a
transposed convolution are in the layout of the convolution whose gradient it is.
"""

from __future__ import annotations

import math
from typing import Any

from ge.implementations.base import Candidate, Library, Operation
from ge.implementations.epilogues import is_like, read_epilogue
from ge.plan import View
from ge.target import CostTable, Target

__all__ = ["CONVOLUTIONS", "TRANSPOSED", "fuses_epilogues", "takes_late_sum"]

_FLOATS = ("float32", "bfloat16")
_ACTIVATIONS = frozenset({"relu", "clip", "swish", "hardswish"})  # of our depthwise and pointwise kernels
_MAX_GRADIENT_KERNEL = 7
_DEPTHWISE = frozenset({(3, 1), (3, 2), (5, 1), (5, 2), (7, 1)})  # compiled kernel sizes and strides


def _first_post(op: Operation) -> int:
    return 2 + op.flag("has_bias") + op.flag("has_gate")


def _has_channels_last(*views: View) -> bool:
    return all(len(v.shape) == 4 and v.strides[1] == 1 for v in views)


def _bias_is_float(op: Operation) -> bool:
    return not op.flag("has_bias") or (op.inputs[2].dtype == "float32" and op.inputs[2].contiguous)


def _all(op: Operation, name: str, value: int) -> bool:
    return all(v == value for v in op.integers(name, (value,)))


# -- Winograd ----------------------------------------------------------------------------------------------------

_TILE = 4  # results of a tile along one axis


def winograd_lanes(target: Target) -> int:
    """Channels per vector register of the target."""
    return 16 if "avx512" in target.features else 8


def tiles_of(image: View) -> int:
    """The number of 4x4 output tiles in a batch of images."""
    return image.shape[0] * -(-image.shape[2] // _TILE) * -(-image.shape[3] // _TILE)


def cover_of(image: View) -> float:
    """The share of computed tile elements that are real results."""
    pixels = image.shape[0] * image.shape[2] * image.shape[3]
    return pixels / (max(tiles_of(image), 1) * _TILE * _TILE)


def winograd_work(source: View, result: View, weights: int, op: Operation, target: Target) -> float:
    """Modelled seconds of F(4x4, 3x3): 36 products per tile in float32, transforms of source, result and weights."""
    channels, outputs, tiles = source.shape[1], result.shape[1], tiles_of(result)
    products = 2 * 36 * tiles * channels * outputs
    transforms = 36 * (6 * tiles * (channels + outputs) + 9 * weights)
    planes = 4 * 36 * 2 * (tiles * (channels + outputs) + weights)  # written to and read from the caches
    return target.seconds(products + transforms, op.nbytes + planes / 8)


class Winograd(Candidate):
    """3x3 convolutions of stride 1 with 2.25 multiplications per result instead of 9."""

    name = "winograd"
    needs = "avx2"
    rounds_more = True

    def __init__(self, transposed: bool) -> None:
        self.transposed = transposed

    def refuse(self, op: Operation, target: Target) -> str:
        lanes = winograd_lanes(target)
        images = (op.inputs[0], op.outputs[0])
        return super().refuse(op, target) or (
            f"the channels are no multiple of {lanes}" if any(v.shape[1] % lanes for v in images) else ""
        )

    def unfit(self, op: Operation) -> str:
        x, w, y = op.inputs[0], op.inputs[1], op.outputs[0]
        if len(x.shape) != 4 or w.shape[2:] != (3, 3) or op.attrs.get("groups", 1) != 1:
            return "it computes 3x3 convolutions of images in one group"
        if not _all(op, "strides", 1) or not _all(op, "dilations", 1):
            return "it has no strides or dilations"
        if x.dtype != y.dtype or x.dtype not in _FLOATS or w.dtype not in _FLOATS or op.quantised:
            return "it takes float32 or bfloat16"
        if not _bias_is_float(op) or not _has_channels_last(x, y):
            return "it takes channels-last images and a float32 bias"
        channels, outputs = (w.shape[0], w.shape[1]) if self.transposed else (w.shape[1], w.shape[0])
        if (channels, outputs) != (x.shape[1], y.shape[1]):
            return "the weights do not match the images"
        return "it has no gate" if op.flag("has_gate") else self._epilogue(op)

    @staticmethod
    def _epilogue(op: Operation) -> str:
        """Adds one vector over channels and one tensor like the result, then clips."""
        at, y = _first_post(op), op.outputs[0]
        bias, residual, clip = op.flag("has_bias"), False, False
        for text in op.post_ops:
            kind = text.partition(",")[0]
            operand = op.inputs[at] if text == "add" and at < len(op.inputs) else None
            if clip:
                return f"{kind} follows clipping"
            if text == "relu" or (kind == "clip" and text.count(",") == 2):
                clip = True
            elif text == "sum" and not residual:
                residual = True
            elif operand is not None and not bias and _is_channel_vector(operand, y):
                bias, at = True, at + 1
            elif operand is not None and not residual and is_like(operand, y):
                residual, at = True, at + 1
            else:
                return f"it has no epilogue {kind} here"
        return ""

    def measured_gain(self, op: Operation, target: Target, costs: CostTable) -> float:
        x, y = op.inputs[0], op.outputs[0]
        tiles = tiles_of(y)
        constant, narrow = 1 in op.constant, x.dtype == "bfloat16"
        least: float = costs.winograd_tiles_bf16 if narrow else costs.winograd_tiles
        if not constant and narrow:
            least = max(least, y.shape[1] // costs.winograd_outputs_per_tile_bf16)
        elif not constant:
            least = costs.winograd_tiles_variable
        channels = min(x.shape[1], y.shape[1]) / costs.winograd_channels
        bounds = (tiles / least, channels, cover_of(y) / costs.winograd_cover)
        return min(bounds)

    def modelled_gain(self, op: Operation, target: Target) -> float:
        x, w, y = op.inputs[0], op.inputs[1], op.outputs[0]
        weights = 0 if 1 in op.constant else w.shape[0] * w.shape[1]
        return target.seconds(op.flops, op.nbytes, x.dtype) / winograd_work(x, y, weights, op, target)


def _is_channel_vector(view: View, y: View) -> bool:
    return view.dtype == "float32" and view.shape == (1, y.shape[1], 1, 1) and view.strides[1] == 1


# -- depthwise ---------------------------------------------------------------------------------------------------


def _has_plain_operands(op: Operation) -> str:
    x, w, y = op.inputs[0], op.inputs[1], op.outputs[0]
    if not _has_channels_last(x, y) or len(w.shape) != 4:
        return "it takes channels-last images"
    if x.dtype not in _FLOATS or not x.dtype == w.dtype == y.dtype or op.quantised:
        return "it takes float32 or bfloat16 throughout"
    if 1 not in op.constant:
        return "the weights are not constant"
    return "" if _bias_is_float(op) else "it takes a dense float32 bias"


class Depthwise(Candidate):
    """Depthwise convolutions whose activation costs more than the sums: swish is applied in registers."""

    name = "depthwise"
    needs = "avx2"
    needs_bf16 = "avx512_bf16"

    def unfit(self, op: Operation) -> str:
        why = _has_plain_operands(op)
        if why:
            return why
        x, w, y = op.inputs[0], op.inputs[1], op.outputs[0]
        strides = op.integers("strides", (1, 1))
        if not op.attrs.get("groups", 1) == x.shape[1] == y.shape[1] == w.shape[0]:
            return "it computes one result channel for each channel"
        if w.shape[2] != w.shape[3] or len(set(strides)) != 1 or not _all(op, "dilations", 1):
            return "the kernel and its strides are not square, or it is dilated"
        if op.flag("has_gate"):
            return "it has no gate"
        if (w.shape[2], strides[0]) not in _DEPTHWISE or 0 in y.shape:
            return "no kernel of this size and stride is compiled"
        return read_epilogue(op, _first_post(op), _ACTIVATIONS).why_not

    def measured_gain(self, op: Operation, target: Target, costs: CostTable) -> float:
        """The library's kernels are faster unless the activation dominates; strided ones have too few results."""
        swish = read_epilogue(op, _first_post(op), _ACTIVATIONS).activation == "swish"
        dominated = swish and op.integers("strides", (1, 1))[0] == 1
        return costs.depthwise_swish_gain if dominated else costs.depthwise_gain

    def modelled_gain(self, op: Operation, target: Target) -> float:
        return self.measured_gain(op, target, target.measured)


# -- pointwise ---------------------------------------------------------------------------------------------------


def _pixels_are_dense(view: View) -> bool:
    """True if pixels are at a constant distance from each other across rows and images."""
    n, _, height, width = view.shape
    pixel = view.strides[3]
    rows = width == 1 or view.strides[2] == pixel * width
    return rows and (n == 1 or view.strides[0] == pixel * width * height)


def _is_gate(gate: View, x: View) -> bool:
    n, channels = x.shape[:2]
    return (
        len(gate.shape) == 4
        and gate.shape[:2] == (n, channels)
        and math.prod(gate.shape) == n * channels
        and gate.dtype == x.dtype
        and gate.strides[1] == 1
        and (n == 1 or gate.strides[0] == channels)
    )


class Pointwise(Candidate):
    """1x1 convolutions whose time is dominated by the activation, the gate or the stores."""

    name = "pointwise"
    needs = "avx2"
    needs_bf16 = "avx512_bf16"

    def unfit(self, op: Operation) -> str:
        why = _has_plain_operands(op)
        if why:
            return why
        x, w, y = op.inputs[0], op.inputs[1], op.outputs[0]
        borders = all(_all(op, name, 0) for name in ("pads_begin", "pads_end"))
        if (
            w.shape[2:] != (1, 1)
            or op.attrs.get("groups", 1) != 1
            or not _all(op, "strides", 1)
            or not borders
        ):
            return "it computes 1x1 convolutions without strides and borders in one group"
        if not _pixels_are_dense(x) or not _pixels_are_dense(y) or 0 in y.shape:
            return "pixels are not at one distance from each other"
        if op.flag("has_gate") and not _is_gate(op.inputs[_first_post(op) - 1], x):
            return "the gate is not one dense number for each image and channel"
        if x.dtype == "bfloat16" and x.shape[1] % 2:
            return "it multiplies pairs of bfloat16"
        return read_epilogue(op, _first_post(op), _ACTIVATIONS).why_not

    def _is_dominated(self, op: Operation, depth: int) -> bool:
        """True if something other than the product dominates the time."""
        swish = read_epilogue(op, _first_post(op), _ACTIVATIONS).activation == "swish"
        return op.flag("has_gate") or swish or op.inputs[0].shape[1] <= depth

    def measured_gain(self, op: Operation, target: Target, costs: CostTable) -> float:
        y = op.outputs[0]
        rows = y.shape[0] * y.shape[2] * y.shape[3]
        if not self._is_dominated(op, costs.pointwise_depth):
            return costs.pointwise_depth / op.inputs[0].shape[1]
        return costs.gate_gain if op.flag("has_gate") else rows / costs.pointwise_rows

    def modelled_gain(self, op: Operation, target: Target) -> float:
        return target.measured.gate_gain if self._is_dominated(op, 0) else target.measured.pointwise_gain

    def settings(self, op: Operation, target: Target) -> dict[str, Any]:
        y = op.outputs[0]
        rows = y.shape[0] * y.shape[2] * y.shape[3]
        return {"by_rows": rows >= target.measured.pointwise_rows_per_core * target.cores}


# -- strided gradients -------------------------------------------------------------------------------------------


class Spread(Candidate):
    """Transposed 1x1 convolutions with strides: a product for the pixels that receive one, then a scatter."""

    name = "spread"
    needs = "avx2"
    needs_bf16 = "avx512_bf16"

    def unfit(self, op: Operation) -> str:
        x, w, y = op.inputs[0], op.inputs[1], op.outputs[0]
        if len(x.shape) != 4 or w.shape[2:] != (1, 1) or op.attrs.get("groups", 1) != 1 or 0 in x.shape:
            return "it computes 1x1 convolutions of images in one group"
        strides = op.integers("strides", (1, 1))
        if set(strides) == {1} or not _all(op, "pads_begin", 0):
            return "it has strides and no borders"
        if x.dtype not in _FLOATS or not x.dtype == w.dtype == y.dtype or op.quantised or op.flag("has_bias"):
            return "it takes float32 or bfloat16 throughout, and no bias"
        if y.strides[1] != 1:
            return "it writes channels-last images"
        reach = zip(x.shape[2:], strides, y.shape[2:], strict=True)
        if any((n - 1) * step >= size for n, step, size in reach):
            return "the result does not hold all pixels"
        return "" if op.post_ops in ((), ("sum",)) else "it has no epilogue but a sum"

    def measured_gain(self, op: Operation, target: Target, costs: CostTable) -> float:
        return costs.spread_gain

    def modelled_gain(self, op: Operation, target: Target) -> float:
        """The library visits every pixel of the result."""
        return math.prod(op.integers("strides", (1, 1)))


def depthwise_gradient_unfit(op: Operation, x: View, y: View, w: View) -> str:
    """Why our kernels cannot compute a gradient of the depthwise convolution of x to y with weights w."""
    if not all(len(v.shape) == 4 and math.prod(v.shape) for v in (x, y)) or len(w.shape) != 4:
        return "it takes images"
    channels, kernel = x.shape[1], w.shape[2]
    groups = op.attrs.get("groups", 1)
    if not groups == channels == y.shape[1] == w.shape[0] or channels < 2 or w.shape[1] != 1:
        return "it computes one result channel for each channel"
    strides, pads = op.integers("strides", (1, 1)), op.integers("pads_begin", (0, 0))
    square = w.shape[3] == kernel and len(set(strides)) == 1 and _all(op, "dilations", 1)
    if not square or kernel > _MAX_GRADIENT_KERNEL:
        return "the kernel and its strides are not square, it is dilated, or too large"
    if max(pads) >= kernel or min(pads) < 0:
        return "the borders are as wide as the kernel"
    if x.dtype not in _FLOATS or x.dtype != y.dtype or w.dtype not in _FLOATS:
        return "it takes float32 or bfloat16"
    return "" if _has_channels_last(x, y) else "it takes channels-last images"


class DepthwiseSourceGradient(Candidate):
    """The gradient of a depthwise convolution with respect to its source."""

    name = "depthwise_source_gradient"
    needs = "avx2"
    needs_bf16 = "avx512_bf16"

    def unfit(self, op: Operation) -> str:
        if op.post_ops or op.flag("has_bias") or op.quantised or len(op.inputs) != 2:
            return "it has no epilogues"
        return depthwise_gradient_unfit(op, op.outputs[0], op.inputs[0], op.inputs[1])

    def measured_gain(self, op: Operation, target: Target, costs: CostTable) -> float:
        """The library is faster, but has only its reference implementation for strided bfloat16."""
        strided = set(op.integers("strides", (1, 1))) != {1}
        reference = strided and op.inputs[0].dtype == "bfloat16"
        return costs.depthwise_source_gain_bf16 if reference else costs.depthwise_source_gain

    def modelled_gain(self, op: Operation, target: Target) -> float:
        return self.measured_gain(op, target, target.measured)


# -- the library -------------------------------------------------------------------------------------------------


class LibrarySwish(Library):
    """The library's convolution, then swish in place: inside the library's kernels swish is several times slower."""

    name = "onednn_swish"
    needs = "avx2"
    needs_bf16 = "avx512_bf16"

    def unfit(self, op: Operation) -> str:
        y = op.outputs[0]
        if not op.post_ops or op.post_ops[-1].partition(",")[0] != "swish":
            return "swish is not the last epilogue"
        if y.dtype not in _FLOATS:
            return "it activates float32 or bfloat16"
        last = sum((n - 1) * step for n, step in zip(y.shape, y.strides, strict=True))
        return "" if 0 not in y.shape and last + 1 == math.prod(y.shape) else "the result is not dense"

    def measured_gain(self, op: Operation, target: Target, costs: CostTable) -> float:
        return math.prod(op.outputs[0].shape) / costs.swish_elements

    def modelled_gain(self, op: Operation, target: Target) -> float:
        """The library's exponential takes twice the steps; in exchange the result is read and written once more."""
        size = math.prod(op.outputs[0].shape)
        again = target.seconds(10 * size, 2 * op.outputs[0].nbytes)
        return target.seconds(op.flops + 60 * size, op.nbytes) / (target.seconds(op.flops, op.nbytes) + again)


def fuses_epilogues(op: Operation, target: Target) -> bool:
    """True if the library's transposed convolutions apply post-ops to sums in registers.

    Others run as the gradient of a convolution, with every post-op applied element by element.
    """
    x, w, y = op.inputs[0], op.inputs[1], op.outputs[0]
    strides, groups = op.integers("strides", ()), op.attrs.get("groups", 1)
    channels = (x.shape[1] // groups, w.shape[1])
    whole = all(size % step == 0 for size, step in zip(y.shape[2:], strides, strict=False))
    dense = set(strides) <= {1} or _all(op, "dilations", 1)
    if "avx2" not in target.features or x.strides[1] != 1 or not whole or not dense:
        return False
    if groups > 1:
        return x.dtype == "float32" and all(n % 16 == 0 for n in channels)
    return channels[0] >= 8 or set(strides) != {1} or len(strides) == 3 or math.prod(w.shape[2:]) == 1


def takes_late_sum(op: Operation, target: Target) -> bool:
    """True if the library's fast convolutions can add to their result after other post-ops."""
    if op.kind == "deconv":
        return True
    x = op.inputs[0]
    feature = "avx512_bf16" if x.dtype == "bfloat16" else "avx2"
    return feature in target.features and x.strides[1] == 1 and x.shape[1] >= 8


CONVOLUTIONS: tuple[Candidate, ...] = (Winograd(False), Depthwise(), Pointwise(), LibrarySwish(), Library())
TRANSPOSED: tuple[Candidate, ...] = (
    Winograd(True),
    Spread(),
    DepthwiseSourceGradient(),
    LibrarySwish(),
    Library(),
)
