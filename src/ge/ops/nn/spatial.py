"""Common parts of convolutions and poolings: windows over space, padding, and axis orders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import tbe
from ge.ops.base import NodeView
from ge.ops.dataflow import Dataflow, Order, Part, Reordered, Sliced, Stack, Stacked, joined_rows
from ge.ops.plugins import Node, Unsupported
from ge.plan import View

__all__ = [
    "Images",
    "Window",
    "aligned",
    "array_windows",
    "channels_first_perm",
    "expression_windows",
    "fused_activation",
    "onnx_window",
    "per_axis",
    "post_operands",
    "tf_format",
    "tf_window",
    "weight_perm",
]

LAST = "channels_last"
FORMATS = ("channels_first", LAST)
WEIGHT_FORMATS = ("OI", "IO", "OKI")  # (O, I, kernel…), (kernel…, I, O), (O, kernel…, I)


@dataclass(frozen=True)
class Window:
    """A window moved over space: each field has one entry per spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads_begin: tuple[int, ...]
    pads_end: tuple[int, ...]

    @classmethod
    def of(cls, kernel: Sequence[int], op: object) -> Window:
        """The window of an operator, including defaults (stride 1, dense, no padding)."""
        rank = len(kernel)
        ones, zeros = (1,) * rank, (0,) * rank
        found = {name: getattr(op, name, None) for name in ("strides", "dilations", "pads_begin", "pads_end")}
        return cls(
            tuple(kernel),
            tuple(found["strides"] or ones),
            tuple(found["dilations"] or ones),
            tuple(found["pads_begin"] or zeros),
            tuple(found["pads_end"] or zeros),
        )

    @property
    def attrs(self) -> dict[str, list[int]]:
        """The attributes of an operator over this window, apart from its kernel."""
        return {
            "strides": list(self.strides),
            "dilations": list(self.dilations),
            "pads_begin": list(self.pads_begin),
            "pads_end": list(self.pads_end),
        }

    def problem(self, sizes: Sequence[int]) -> str:
        """Why the window does not fit a space of these sizes, "" if it does."""
        fields = (self.strides, self.dilations, self.pads_begin, self.pads_end)
        if any(len(f) != len(self.kernel) for f in fields) or len(sizes) != len(self.kernel):
            return f"a window of {len(self.kernel)} axes needs as many strides, dilations, borders and sizes"
        if min((*self.kernel, *self.strides, *self.dilations), default=1) < 1:
            return "kernel, strides and dilations must be positive"
        if any(s < 0 for s in (*self.pads_begin, *self.pads_end)):
            return "borders must not be negative"
        if any(s < 1 for s in self.outputs(sizes)):
            return f"the window {list(self.extents)} is larger than the space {list(sizes)} with its borders"
        return ""

    @property
    def extents(self) -> tuple[int, ...]:
        """The extent of the window, including dilation."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    def outputs(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The number of window positions."""
        rows = zip(sizes, self.extents, self.strides, self.pads_begin, self.pads_end, strict=True)
        return tuple((size + low + high - extent) // stride + 1 for size, extent, stride, low, high in rows)

    def ceiled(self, sizes: Sequence[int]) -> Window:
        """The window with its end padding enlarged so that a last, partial window fits (if it starts inside)."""
        ends = []
        rows = zip(sizes, self.extents, self.strides, self.pads_begin, self.pads_end, strict=True)
        for size, extent, stride, low, high in rows:
            count = -(-(size + low + high - extent) // stride) + 1
            if (count - 1) * stride >= size + low:
                count -= 1
            ends.append(max((count - 1) * stride + extent - size - low, high if count < 1 else 0))
        return replace(self, pads_end=tuple(ends))


def channels_first_perm(rank: int, data_format: str) -> tuple[int, ...]:
    """The permutation from a data format to N, C, space.

    >>> channels_first_perm(4, "channels_last")
    (0, 3, 1, 2)
    """
    return tuple(range(rank)) if data_format != LAST else (0, rank - 1, *range(1, rank - 1))


@dataclass(frozen=True)
class Images(Dataflow):
    """The images of a batch are independent; operands of post-ops are broadcast against the output.

    Channels-first data that was transposed from channels-last is worked on as it was, where nothing is fused in.
    """

    slices: bool = True

    def slice(self, op: NodeView, part: Part) -> Sliced | None:
        if not self.slices or part.axis:
            return None
        rank, extent = op.outputs[0].rank, op.outputs[0].shape[0]
        parts = {0: part}
        for index, desc in enumerate(op.inputs[3:], 3):
            if desc is None or desc.rank != rank or desc.shape[0] == 1:
                continue
            if desc.shape[0] != extent:
                return None
            parts[index] = part
        return Sliced(parts)

    def reorder(self, op: NodeView, order: Order) -> Reordered | None:
        fused = op.attrs.get("post_ops") or op.attrs.get("gated")
        if op.data_format != "channels_first" or fused:
            return None
        if order.perm != channels_first_perm(len(order.perm), "channels_last"):
            return None
        return Reordered(order.perm, {"data_format": "channels_last"}, first_only=True)

    def stack(self, op: NodeView, stack: Stack) -> Stacked | None:
        return joined_rows(op, stack) if self.slices else None


def channels_last_perm(rank: int, data_format: str) -> tuple[int, ...]:
    """The inverse of `channels_first_perm`."""
    return tuple(int(i) for i in np.argsort(channels_first_perm(rank, data_format)))


def weight_perm(rank: int, weight_format: str) -> tuple[int, ...]:
    """The permutation from a weight format to O, I, space.

    >>> weight_perm(4, "IO")
    (3, 2, 0, 1)
    """
    if weight_format == "OKI":
        return (0, rank - 1, *range(1, rank - 1))
    return tuple(range(rank)) if weight_format == "OI" else (rank - 1, rank - 2, *range(rank - 2))


def aligned(view: View, rank: int) -> View:
    """A view with leading axes of one element added up to a rank."""
    missing = rank - len(view.shape)
    if missing <= 0:
        return view
    outer = math.prod(view.shape) or 1
    return replace(view, shape=(1,) * missing + view.shape, strides=(outer,) * missing + view.strides)


def post_operands(inputs: Sequence[View | None], first: int, rank: int, perm: Sequence[int]) -> list[View]:
    """The operands of post-ops, aligned and permuted like the output."""
    return [aligned(v, rank).permute(perm) for v in inputs[first:] if v is not None]


def array_windows(x: np.ndarray, window: Window, fill: float) -> np.ndarray:
    """All windows of an array (N, C, space) as (N, C, positions, kernel); a view if there is no padding."""
    if any((*window.pads_begin, *window.pads_end)):
        border = [(0, 0), (0, 0), *zip(window.pads_begin, window.pads_end, strict=True)]
        x = np.pad(x, border, constant_values=np.asarray(fill).astype(x.dtype))
    axes = tuple(range(2, x.ndim))
    views = np.lib.stride_tricks.sliding_window_view(x, window.extents, axis=axes)
    moves = tuple(slice(None, None, s) for s in window.strides)
    holes = tuple(slice(None, None, d) for d in window.dilations)
    return views[(slice(None), slice(None), *moves, *holes)]


def expression_windows(x: tbe.Tensor, window: Window, fill: float) -> tbe.Tensor:
    """The same as an expression."""
    rank = len(window.kernel)
    padded = tbe.pad(x, (0, 0, *window.pads_begin), (0, 0, *window.pads_end), fill)
    shape = (*x.shape[:2], *window.outputs(x.shape[2:]), *window.kernel)

    def element(n: tbe.Scalar, c: tbe.Scalar, *i: tbe.Scalar) -> tbe.Scalar:
        moves = zip(i[:rank], window.strides, i[rank:], window.dilations, strict=True)
        return padded[(n, c, *(p * stride + k * hole for p, stride, k, hole in moves))]

    return tbe.compute(shape, element)


def onnx_window(n: Node, kernel: Sequence[int], sizes: Sequence[int]) -> Window:
    """The window of an ONNX node, with auto_pad resolved for a space of these sizes."""
    rank = len(kernel)
    strides = tuple(n.attr("strides") or (1,) * rank)
    dilations = tuple(n.attr("dilations") or (1,) * rank)
    auto, pads = n.attr("auto_pad", "NOTSET"), n.attr("pads")
    if auto in ("NOTSET", "") and pads is None:
        auto = "VALID"
    if auto in ("NOTSET", ""):
        begin, end = tuple(pads[:rank]), tuple(pads[rank:])
        return Window(tuple(kernel), strides, dilations, begin, end)
    if auto == "VALID":
        return Window(tuple(kernel), strides, dilations, (0,) * rank, (0,) * rank)
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        raise Unsupported(f"auto_pad {auto!r} of {n.type} is unknown")
    begin, end = same_pads(kernel, sizes, strides, dilations, lower=auto == "SAME_LOWER")
    return Window(tuple(kernel), strides, dilations, begin, end)


def same_pads(
    kernel: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    lower: bool = False,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding that gives ceil(size / stride) positions; an odd remainder goes to the end unless `lower`.

    >>> same_pads([3], [5], [2], [1])
    ((1,), (1,))
    """
    begin, end = [], []
    for k, size, stride, hole in zip(kernel, sizes, strides, dilations, strict=True):
        total = max((-(-size // stride) - 1) * stride + (k - 1) * hole + 1 - size, 0)
        small, large = total // 2, total - total // 2
        begin.append(large if lower else small)
        end.append(small if lower else large)
    return tuple(begin), tuple(end)


# -- TensorFlow --------------------------------------------------------------------------------------------


def tf_format(n: Node, rank: int) -> tuple[str, list[int]]:
    """The data format of a node over N, C and space, and the positions of its spatial axes."""
    text = str(n.attr("data_format", ""))
    if text in ("", "NHWC", "NDHWC", "NWC", "CHANNELS_LAST"):
        return LAST, list(range(1, rank - 1))
    if text in ("NCHW", "NCDHW", "NCW", "CHANNELS_FIRST"):
        return FORMATS[0], list(range(2, rank))
    raise Unsupported(f"the data format {text} of {n.type} is not supported", "use NHWC or NCHW")


def tf_window(
    n: Node,
    kernel: Sequence[int],
    sizes: Sequence[int],
    axes: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Window:
    """The window of a TensorFlow node for a space of these sizes; `axes` are the spatial axes."""
    rank = len(kernel)
    given = list(n.attr("strides", []) if strides is None else strides)
    holes = list(n.attr("dilations", []) or [])
    moves = _spatial_entries(n, given, axes, rank, "strides")
    dilations = _spatial_entries(n, holes, axes, rank, "dilations")
    padding = n.attr("padding", "VALID")
    if padding == "EXPLICIT":
        begin, end = _explicit_pads(n, kernel, axes)
    elif padding == "SAME":
        begin, end = same_pads(kernel, sizes, moves, dilations)
    elif padding == "VALID":
        begin, end = (0,) * rank, (0,) * rank
    else:
        raise Unsupported(f"the padding {padding!r} of {n.type} is unknown")
    return Window(tuple(kernel), moves, dilations, begin, end)


def _explicit_pads(
    n: Node, kernel: Sequence[int], axes: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The given borders, where TensorFlow takes them: none of batch or channels, for maxima less than a window."""
    pads = list(n.attr("explicit_paddings", []))
    if len(pads) != 2 * (len(kernel) + 2):
        raise Unsupported(f"explicit_paddings {pads} of {n.type} need two numbers for each axis")
    if any(pad for i, pad in enumerate(pads) if i // 2 not in axes):
        raise Unsupported(f"explicit_paddings {pads} of {n.type} reach over batch or channels")
    begin, end = tuple(pads[2 * a] for a in axes), tuple(pads[2 * a + 1] for a in axes)
    if n.type.startswith("MaxPool") and any(max(b) >= k for k, *b in zip(kernel, begin, end, strict=True)):
        raise Unsupported(
            f"explicit_paddings {pads} of {n.type} are not smaller than its window {list(kernel)}"
        )
    return begin, end


def _spatial_entries(
    n: Node, given: Sequence[int], axes: Sequence[int], rank: int, what: str
) -> tuple[int, ...]:
    """The spatial entries of a per-axis list; those of batch and channels must be neutral."""
    if not given:
        return (1,) * rank
    if len(given) == rank:
        return tuple(given)
    if len(given) != rank + 2 or any(v != 1 for i, v in enumerate(given) if i not in axes):
        raise Unsupported(f"{what} {list(given)} of {n.type} reach over batch or channels")
    return tuple(given[a] for a in axes)


_FUSED_ACTIVATIONS: dict[str, tuple[str, dict[str, float]]] = {
    "Relu": ("Relu", {}),
    "Relu6": ("Clip", {"min": 0.0, "max": 6.0}),
    "Elu": ("Elu", {}),
    "Tanh": ("Tanh", {}),
    "Sigmoid": ("Sigmoid", {}),
    "_MklSwish": ("Swish", {}),
}


def fused_activation(n: Node, y: Any, names: Sequence[str], extra: Sequence[Any]) -> Any:
    """The epilogue that TensorFlow's optimiser appends to a product or convolution: sums, then an activation."""
    operands = list(extra)
    for name in names:
        if name == "Add":
            y = n.op("Add", y, operands.pop(0))
        elif name == "LeakyRelu":
            y = n.op("LeakyRelu", y, alpha=float(n.attr("leakyrelu_alpha", 0.2)))
        elif name in ("GeluApproximate", "GeluExact"):
            y = n.op("Gelu", y, approximate="tanh" if name == "GeluApproximate" else "none")
        elif name in _FUSED_ACTIVATIONS:
            type_, attrs = _FUSED_ACTIVATIONS[name]
            y = n.op(type_, y, **attrs)
        else:
            raise Unsupported(f"the fused operation {name} of {n.type} is unknown")
    return y


def per_axis(value: Any, count: int) -> list[int]:
    """An argument of ATen with one number for each spatial axis, or one for all."""
    found = [int(v) for v in value]
    return found * count if len(found) == 1 else found
