"""Views: how a movement operator's output aliases its input's memory, or its inputs alias its output's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import tbe
from ge.plan import View, contiguous_strides

if TYPE_CHECKING:
    from ge.ops.base import NodeView

__all__ = [
    "Same",
    "Views",
    "box_view",
    "has_wide_rows",
    "is_matrix",
    "is_row_major",
    "piece_view",
    "reshape_view",
]


class Views:
    """How an operator's outputs are views of its first input's memory, and its inputs views of its output's."""

    permutes = False  # the order of elements changes: kernels read outputs faster from memory of their own

    @property
    def looks_ahead(self) -> bool:
        """True if outputs can be views of the input."""
        return type(self).forward is not Views.forward

    @property
    def looks_back(self) -> bool:
        """True if inputs can be views of the output."""
        return type(self).backward is not Views.backward

    def forward(self, op: NodeView, index: int, view: View) -> View | None:
        """Output `index` if the first input is a given view; None if that cannot be expressed."""
        return None

    def backward(self, op: NodeView, index: int, view: View) -> View | None:
        """Input `index` if the output is a given view; None if that cannot be expressed."""
        return None

    def part(self, op: NodeView, index: int, whole: tbe.Tensor) -> tbe.Tensor:
        """Input `index` as an expression of the output: the counterpart of `backward`."""
        raise NotImplementedError(f"the inputs of {op.type} are not parts of its output")


class Same(Views):
    """The output is the input."""

    def forward(self, op: NodeView, index: int, view: View) -> View | None:
        return view

    def backward(self, op: NodeView, index: int, view: View) -> View | None:
        return view

    def part(self, op: NodeView, index: int, whole: tbe.Tensor) -> tbe.Tensor:
        return whole


def reshape_view(view: View, shape: Sequence[int]) -> View | None:
    """The view in another shape without moving data, None if its strides do not allow that.

    >>> reshape_view(View(0, "float32", (2, 6), (12, 1)), (2, 2, 3)).strides
    (12, 3, 1)
    >>> reshape_view(View(0, "float32", (2, 6), (12, 1)), (12,)) is None
    True
    """
    shape = tuple(shape)
    if view.contiguous or 0 in shape:
        return replace(view, shape=shape, strides=contiguous_strides(shape))
    runs = _runs(view)
    strides: list[int] = []
    room, stride = 1, 1
    for extent in reversed(shape):
        if room == 1 and extent != 1:
            room, stride = runs.pop()
        if extent != 1 and room % extent:
            return None
        strides.append(stride)
        room, stride = room // extent if extent != 1 else room, stride * extent
    return replace(view, shape=shape, strides=tuple(reversed(strides)))


def _runs(view: View) -> list[tuple[int, int]]:
    """Dimensions of more than one element, with adjacent ones merged if they are contiguous."""
    runs: list[tuple[int, int]] = []
    for extent, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if extent == 1:
            continue
        if runs and stride == runs[-1][0] * runs[-1][1]:
            runs[-1] = (runs[-1][0] * extent, runs[-1][1])
        else:
            runs.append((extent, stride))
    return runs[::-1]


def box_view(view: View, starts: Sequence[int], steps: Sequence[int], shape: Sequence[int]) -> View:
    """A box of a view, by its starts, steps and shape."""
    offset = view.offset + sum(b * s for b, s in zip(starts, view.strides, strict=True))
    strides = tuple(s * k for s, k in zip(view.strides, steps, strict=True))
    return replace(view, shape=tuple(shape), strides=strides, offset=offset)


def piece_view(view: View, axis: int, sizes: Sequence[int], index: int) -> View:
    """One of several pieces along an axis."""
    axis %= len(view.shape)
    starts = [0] * len(view.shape)
    starts[axis] = sum(sizes[:index])
    shape = [*view.shape[:axis], sizes[index], *view.shape[axis + 1 :]]
    return box_view(view, starts, [1] * len(shape), shape)


def is_matrix(view: View) -> bool:
    """True for a matrix (or a stack of them) with a unit stride in one of its last two dimensions and no overlap."""
    if len(view.shape) < 2:
        return view.contiguous
    rows, cols = view.shape[-2:]
    down, across = view.strides[-2:]
    if across == 1 or cols == 1:
        return rows == 1 or down >= cols
    return down == 1 and across >= rows


def is_row_major(view: View) -> bool:
    """True for a matrix (or a stack of them) with contiguous rows."""
    return is_matrix(view) and (view.strides[-1] == 1 or view.shape[-1] == 1)


def has_wide_rows(view: View) -> bool:
    """True for channels-last data inside wider rows: dense except for the distance between rows of channels."""
    if len(view.shape) < 3 or view.strides[-1] != 1:
        return False
    step = view.strides[-2]
    for extent, stride in zip(reversed(view.shape[1:-1]), reversed(view.strides[1:-1]), strict=True):
        if extent != 1 and stride != step:
            return False
        step = stride * extent
    return view.shape[0] == 1 or view.strides[0] == step
