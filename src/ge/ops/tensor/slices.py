"""TensorFlow's slices: boxes at constant or computed positions, with strides and masks, and their gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ge.ir.values import constant_of, desc_of
from ge.ops.base import is_whole_view
from ge.ops.plugins import Node, Results, Unsupported, plugin
from ge.ops.tensor.movement import reshaped


@plugin(tensorflow="Slice")
def _slice_tf(n: Node) -> Results:
    """A box of known size; computed starts are clamped to the tensor."""
    shape, sizes = n.desc().shape, n.ints(2, "the size of a slice")
    begins = n.maybe_const(1)
    if begins is None and -1 not in sizes:
        return _moving_box(n, n.inputs[1], sizes)
    starts = n.ints(1, "the start of a slice to the end")
    ends = [d if s == -1 else b + s for b, s, d in zip(starts, sizes, shape, strict=True)]
    if any(b < 0 or e > d or e < b for b, e, d in zip(starts, ends, shape, strict=True)):
        raise Unsupported(f"a slice from {starts} to {ends} leaves {n.desc()}")
    if tuple(ends) == shape and not any(starts):
        return n.inputs[0]  # type: ignore[return-value]
    return n.op("Slice", n.inputs[0], starts=starts, ends=ends)


def _moving_box(n: Node, begins: Any, sizes: Sequence[int]) -> Any:
    """A box with computed starts: one gather per axis that it does not fill."""
    y: Any = n.inputs[0]
    shape = n.desc().shape
    for axis, (size, extent) in enumerate(zip(sizes, shape, strict=True)):
        if size == extent:
            continue
        start = n.op("Cast", n.op("Slice", begins, starts=[axis], ends=[axis + 1]), to="int64")
        start = n.op("Minimum", n.op("Maximum", start, 0), extent - size)
        y = n.op(
            "Gather", y, n.op("Add", start, n.builder.constant(np.arange(size, dtype=np.int64))), axis=axis
        )
    return y


@dataclass(frozen=True)
class _StridedEntry:
    """One entry of a strided slice: an axis of the input (-1 for a new one) and its operation."""

    axis: int
    position: int  # in begin, end and strides; -1 for an axis that an ellipsis covers
    shrink: bool = False
    open_begin: bool = False
    open_end: bool = False


def _strided_entries(n: Node, count: int, rank: int) -> list[_StridedEntry]:
    """The entries of a strided slice of a tensor of some rank, with ellipsis and masks resolved."""
    masks = {
        name: int(n.attr(f"{name}_mask", 0))
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
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
    """The slice, then axes removed and added."""
    shape = n.desc().shape
    y: Any = n.inputs[0]
    if any(f != (0, d, 1) for f, d in zip(found, shape, strict=True)):
        starts, stops, steps = ([f[i] for f in found] for i in range(3))
        y = n.op("Slice", y, starts=starts, ends=stops, steps=steps)
    return reshaped(n, y, _boxed_shape(entries, found))


def _moving_strided_slice(n: Node, entries: Sequence[_StridedEntry]) -> Any:
    """A slice at computed positions: each axis whole, at constant positions, or from a position for a known size."""
    y: Any = n.inputs[0]
    steps = n.ints(3, "the strides")
    target = []
    for e in entries:
        if e.axis < 0:
            target.append(1)
            continue
        extent = n.desc().shape[e.axis]
        places = None if e.position < 0 else _places(n, e, steps[e.position], extent)
        if places is not None:
            y = n.op("Gather", y, places, axis=e.axis)
        if not e.shrink:
            target.append(extent if places is None else desc_of(places).size)
    return reshaped(n, y, target)


def _places(n: Node, e: _StridedEntry, step: int, extent: int) -> Any:
    """The positions along an axis that an entry selects; None for all."""
    first = _offset(n.inputs[1], e.position)
    last = _offset(n.inputs[2], e.position)
    if not e.shrink and (e.open_begin or not first[0]) and (e.open_end or not last[0]):
        known = slice(None if e.open_begin else first[1], None if e.open_end else last[1], step).indices(
            extent
        )
        return None if known == (0, extent, 1) else n.builder.constant(np.arange(*known, dtype=np.int64))
    if not e.shrink and (e.open_begin or e.open_end or first[0] != last[0]):
        raise Unsupported(
            "a slice from or to a computed position has no known size", "use tf.slice or tf.gather"
        )
    size = 1 if e.shrink else len(range(0, last[1] - first[1], step))
    start = n.op("Cast", n.op("Slice", n.inputs[1], starts=[e.position], ends=[e.position + 1]), to="int64")
    start = n.op("Select", n.op("Less", start, 0), n.op("Add", start, extent), start)
    return n.op("Add", start, n.builder.constant(np.arange(size, dtype=np.int64) * step))


def _offset(value: Any, position: int) -> tuple[str, int]:
    """An element of an integer vector as a computed value (by name, "" for none) plus a constant."""
    known, added = constant_of(value), 0
    while known is None:
        node = value.producer()
        if node is None:
            return f"{value.name}[{position}]", added
        left, right = [*node.inputs, None][:2]
        if node.op_type == "Cast" or is_whole_view(node):
            value = left
        elif node.op_type == "Concat":
            for part in node.inputs:
                if position < desc_of(part).size:
                    value = part
                    break
                position -= desc_of(part).size
        elif node.op_type in ("Add", "Sub") and constant_of(right) is not None and desc_of(right).size == 1:
            amount = int(constant_of(right).reshape(()))  # type: ignore[union-attr]
            added += amount if node.op_type == "Add" else -amount
            value = left
        elif node.op_type == "Add" and constant_of(left) is not None and desc_of(left).size == 1:
            added += int(constant_of(left).reshape(()))  # type: ignore[union-attr]
            value = right
        else:
            return f"{value.name}[{position}]", added
        known = constant_of(value)
    return "", added + int(known.reshape(-1)[position])


@plugin(tensorflow="TensorStridedSliceUpdate")
def _strided_slice_update(n: Node) -> Results:
    """A tensor with the box of a strided slice replaced."""
    shape = n.desc().shape
    begins, ends, strides = (n.ints(i, "a position of a slice") for i in (1, 2, 3))
    entries = _strided_entries(n, len(begins), len(shape))
    found = [_strided_range(e, shape, begins, ends, strides) for e in entries if e.axis >= 0]
    mask = np.zeros(shape, bool)
    mask[tuple(slice(a, None if b < 0 else b, s) for a, b, s in found)] = True
    value = n.op("BroadcastTo", n.inputs[4], shape=_boxed_shape(entries, found))
    return n.op("Select", mask, _spread_back(n, value, found, shape), n.inputs[0])


def _boxed_shape(entries: Sequence[_StridedEntry], found: Sequence[tuple[int, int, int]]) -> list[int]:
    """The shape of a strided slice's result."""
    return [1 if e.axis < 0 else len(range(*found[e.axis])) for e in entries if not e.shrink]


def _spread_back(n: Node, x: Any, found: Sequence[tuple[int, int, int]], shape: Sequence[int]) -> Any:
    """The result of a strided slice scattered back to its source positions, zeros elsewhere."""
    sizes = [len(range(*f)) for f in found]
    y = reshaped(n, x, sizes)
    turned = [axis for axis, f in enumerate(found) if f[2] < 0]
    y = n.op("Reverse", y, axes=turned) if turned else y
    starts = [f[0] + (s - 1) * f[2] if f[2] < 0 else f[0] for f, s in zip(found, sizes, strict=True)]
    return _spread_out(n, y, starts, [abs(f[2]) for f in found], shape)


@plugin(tensorflow="StridedSliceGrad")
def _strided_slice_grad(n: Node) -> Results:
    """The gradient of a strided slice: zeros except in its box."""
    shape = n.ints(0, "the shape")
    begins, ends, strides = (n.ints(i, "a position of a slice") for i in (1, 2, 3))
    entries = _strided_entries(n, len(begins), len(shape))
    found = [_strided_range(e, shape, begins, ends, strides) for e in entries if e.axis >= 0]
    return _spread_back(n, n.inputs[4], found, shape)


def _spread_out(n: Node, x: Any, starts: Sequence[int], steps: Sequence[int], shape: Sequence[int]) -> Any:
    """x at every steps-th position from starts on, in a tensor of zeros."""
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
