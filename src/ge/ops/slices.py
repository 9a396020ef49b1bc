"""TensorFlow's slices: boxes at known or computed places, with strides and masks, and their gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ge.ops.movement import reshaped
from ge.parsers.plugin import Node, Results, Unsupported, plugin

@plugin(tensorflow="Slice")
def _slice_tf(n: Node) -> Results:
    """A box of known size; where it starts may be computed, then the starts are kept inside the tensor."""
    shape, sizes = n.desc().shape, n.ints(2, "the size of a slice")
    begins = n.maybe_const(1)
    if begins is None:
        return _moving_box(n, n.inputs[1], [d if s == -1 else s for s, d in zip(sizes, shape, strict=True)])
    starts = [int(b) for b in begins.reshape(-1)]
    ends = [d if s == -1 else b + s for b, s, d in zip(starts, sizes, shape, strict=True)]
    if any(b < 0 or e > d or e < b for b, e, d in zip(starts, ends, shape, strict=True)):
        raise Unsupported(f"a slice from {starts} to {ends} leaves {n.desc()}")
    if tuple(ends) == shape and not any(starts):
        return n.inputs[0]  # type: ignore[return-value]
    return n.op("Slice", n.inputs[0], starts=starts, ends=ends)


def _moving_box(n: Node, begins: Any, sizes: Sequence[int]) -> Any:
    """A box whose starts are computed: one gather an axis that it does not fill."""
    y: Any = n.inputs[0]
    shape = n.desc().shape
    for axis, (size, extent) in enumerate(zip(sizes, shape, strict=True)):
        if size == extent:
            continue
        start = n.op("Cast", n.op("Slice", begins, starts=[axis], ends=[axis + 1]), to="int64")
        start = n.op("Minimum", n.op("Maximum", start, 0), extent - size)
        y = n.op("Gather", y, n.op("Add", start, n.builder.constant(np.arange(size, dtype=np.int64))), axis=axis)
    return y


@dataclass(frozen=True)
class _StridedEntry:
    """One entry of a strided slice: an axis of the input (-1 for a new one) and what is done along it."""

    axis: int
    position: int  # in begin, end and strides; -1 for an axis that an ellipsis covers
    shrink: bool = False
    open_begin: bool = False
    open_end: bool = False


def _strided_entries(n: Node, count: int, rank: int) -> list[_StridedEntry]:
    """The entries of a strided slice of a tensor of some rank, ellipsis and masks resolved."""
    masks = {
        name: int(n.attr(f"{name}_mask", 0)) for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }

    def has(name: str, position: int) -> bool:
        return bool(masks[name] >> position & 1)

    ellipsis = next((i for i in range(count) if has("ellipsis", i)), None)
    after = 0 if ellipsis is None else sum(not has("new_axis", i) for i in range(ellipsis + 1, count))
    entries: list[_StridedEntry] = []
    axis = 0
    for i in range(count):
        if i == ellipsis:
            covered = rank - axis - after
            entries += [_StridedEntry(axis + k, -1) for k in range(covered)]
            axis += covered
        elif has("new_axis", i):
            entries.append(_StridedEntry(-1, i))
        else:
            entries.append(_StridedEntry(axis, i, has("shrink_axis", i), has("begin", i), has("end", i)))
            axis += 1
    entries += [_StridedEntry(a, -1) for a in range(axis, rank)]
    if [e.axis for e in entries if e.axis >= 0] != list(range(rank)):
        raise Unsupported(f"a strided slice of {count} entries does not fit {rank} axes")
    return entries


@plugin(tensorflow="StridedSlice")
def _strided_slice(n: Node) -> Results:
    shape = n.desc().shape
    count = n.desc(1).size
    entries = _strided_entries(n, count, len(shape))
    begins, ends = n.maybe_const(1), n.maybe_const(2)
    if begins is None or ends is None:
        return _moving_strided_slice(n, entries)
    strides = n.ints(3, "the strides")
    found = [_strided_range(e, shape, begins, ends, strides) for e in entries if e.axis >= 0]
    return _boxed(n, entries, found)


def _strided_range(
    e: _StridedEntry, shape: Sequence[int], begins: Any, ends: Any, strides: Sequence[int]
) -> tuple[int, int, int]:
    """Start, end and step along an axis."""
    extent = shape[e.axis]
    if e.position < 0:
        return 0, extent, 1
    begin, end, step = int(begins[e.position]), int(ends[e.position]), strides[e.position]
    if not step:
        raise Unsupported("a stride is 0")
    if e.shrink:
        start = begin + extent if begin < 0 else begin
        if not 0 <= start < extent:
            raise Unsupported(f"index {begin} is out of range for axis {e.axis} of {list(shape)}")
        return start, start + 1, 1
    return slice(None if e.open_begin else begin, None if e.open_end else end, step).indices(extent)


def _boxed(n: Node, entries: Sequence[_StridedEntry], found: Sequence[tuple[int, int, int]]) -> Any:
    """The slice, then axes taken away and added."""
    shape = n.desc().shape
    y: Any = n.inputs[0]
    if any(f != (0, d, 1) for f, d in zip(found, shape, strict=True)):
        starts, stops, steps = ([f[i] for f in found] for i in range(3))
        y = n.op("Slice", y, starts=starts, ends=stops, steps=steps)
    sizes = [len(range(*f)) for f in found]
    target = [1 if e.axis < 0 else sizes[e.axis] for e in entries if not e.shrink]
    return reshaped(n, y, target)


def _moving_strided_slice(n: Node, entries: Sequence[_StridedEntry]) -> Any:
    """A slice at computed positions: single elements are gathered, all other axes must be taken whole."""
    y: Any = n.inputs[0]
    steps = n.ints(3, "the strides")
    begins = n.maybe_const(1)
    shape = n.desc().shape
    target = []
    for e in entries:
        if e.axis < 0:
            target.append(1)
        elif e.shrink:
            at = n.op("Slice", n.inputs[1], starts=[e.position], ends=[e.position + 1])
            y = n.op("Gather", y, at if n.desc(1).dtype in ("int32", "int64") else n.op("Cast", at, to="int64"), axis=e.axis)
        elif e.position < 0 or (steps[e.position] == 1 and _whole(e, begins)):
            target.append(shape[e.axis])
        else:
            raise Unsupported("a slice from or to a computed position has no known size", "use tf.slice or tf.gather")
    return reshaped(n, y, target)


def _whole(e: _StridedEntry, begins: Any) -> bool:
    starts_at_zero = e.open_begin or (begins is not None and int(begins[e.position]) == 0)
    return starts_at_zero and e.open_end


@plugin(tensorflow="StridedSliceGrad")
def _strided_slice_grad(n: Node) -> Results:
    """The gradient of a strided slice: zeros but for the box it had taken."""
    shape = n.ints(0, "the shape")
    begins, ends, strides = (n.ints(i, "a position of a slice") for i in (1, 2, 3))
    entries = _strided_entries(n, len(begins), len(shape))
    found = [_strided_range(e, shape, begins, ends, strides) for e in entries if e.axis >= 0]
    sizes = [len(range(*f)) for f in found]
    y = reshaped(n, n.inputs[4], sizes)
    turned = [axis for axis, f in enumerate(found) if f[2] < 0]
    y = n.op("Reverse", y, axes=turned) if turned else y
    starts = [f[0] + (s - 1) * f[2] if f[2] < 0 else f[0] for f, s in zip(found, sizes, strict=True)]
    return _spread_out(n, y, starts, [abs(f[2]) for f in found], shape)


def _spread_out(n: Node, x: Any, starts: Sequence[int], steps: Sequence[int], shape: Sequence[int]) -> Any:
    """x at every steps-th place from starts on, in a tensor of zeros."""
    sizes = [int(d) for d in x.shape]
    if any(s != 1 for s in steps):
        apart = reshaped(n, x, [d for s in sizes for d in (s, 1)])
        rank = len(sizes)
        low, high = [0] * (2 * rank), [v for s in steps for v in (0, s - 1)]
        padded = n.op("Pad", apart, low=low, high=high)
        whole = reshaped(n, padded, [s * step for s, step in zip(sizes, steps, strict=True)])
        ends = [max((s - 1) * step + 1, 0) for s, step in zip(sizes, steps, strict=True)]
        x = n.op("Slice", whole, starts=[0] * rank, ends=ends)
        sizes = ends
    high = [d - a - s for d, a, s in zip(shape, starts, sizes, strict=True)]
    return n.op("Pad", x, low=list(starts), high=high)
