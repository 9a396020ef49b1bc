"""Operators that move data without computing: shapes, orders, pieces, borders."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tbe
from ge.ir.types import FLOATS, TENSORS, TensorDesc
from ge.ir.values import desc_of
from ge.ops.base import Attr, Engine, Input, NodeView, Operator, Output, Pattern, fail, register
from ge.ops.dataflow import Dataflow, Order, OverAxes, Part, Reordered, Sliced, Stack, Stacked
from ge.ops.math.reduce import normal_axes
from ge.ops.plugins import Node, Results, Unsupported, plugin
from ge.ops.traits import Cost, Precision, Sign
from ge.ops.views import Views, box_view, piece_view, reshape_view
from ge.plan import View


class Movement(Operator):
    """One tensor rearranged."""

    x = Input("T", TENSORS)
    y = Output("T")
    pattern = Pattern.INJECTIVE
    moves = True
    sign = Sign.KEPT

    @staticmethod
    def flops(op: NodeView) -> int:
        return 0


# -- shape and order ---------------------------------------------------------------------------------------


class Refolded(Dataflow):
    """Axes are joined and split; elements keep their order."""

    def slice(self, op: NodeView, part: Part) -> Sliced | None:
        """A part of an axis is one of the split or merged axis that holds the same elements in the same order."""
        before, after = op.inputs[0].shape, op.outputs[0].shape  # type: ignore[union-attr]
        inner = math.prod(after[part.axis + 1 :])
        sizes = [n * inner for n in (part.period, part.start, part.length)]  # in elements
        for axis in reversed(range(len(before))):
            behind = math.prod(before[axis + 1 :])
            if not behind or any(n % behind for n in sizes):
                continue
            period, start, length = (n // behind for n in sizes)
            if before[axis] % period == 0:
                return Sliced({0: Part(axis, period, start, length)}, {"shape": part.of(after)})
        return None

    def reorder(self, op: NodeView, order: Order) -> Reordered | None:
        """If the merged axes are adjacent in the source as well, the reshape comes first."""
        after = op.outputs[0].shape
        groups = _axis_groups(op.inputs[0].shape, after)  # type: ignore[union-attr]
        if groups is None or len(groups) < 2:
            return None
        runs = [[order.perm[i] for i in inner] for inner, _ in groups]
        if any(not run or run != list(range(run[0], run[0] + len(run))) for run in runs):
            return None
        placed = sorted(range(len(groups)), key=lambda g: runs[g][0])
        shape = [after[i] for g in placed for i in groups[g][1]]
        starts = {g: sum(len(groups[o][1]) for o in placed[: placed.index(g)]) for g in placed}
        perm = [starts[g] + k for g in range(len(groups)) for k in range(len(groups[g][1]))]
        return Reordered(tuple(perm), {"shape": shape})

    def stack(self, op: NodeView, stack: Stack) -> Stacked | None:
        return Stacked({"shape": [stack.count, *op.outputs[0].shape]})


def _axis_groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]] | None:
    """Minimal runs of axes that a reshape turns into runs of axes; None for empty tensors."""
    if 0 in before or 0 in after:
        return None
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(before) and j < len(after):
        left, right = [i], [j]
        a, b = before[i], after[j]
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                a *= before[i]
                left.append(i)
                i += 1
            else:
                b *= after[j]
                right.append(j)
                j += 1
        groups.append((left, right))
    if not groups:
        return None
    groups[-1][0].extend(range(i, len(before)))  # the remaining axes have one element each
    groups[-1][1].extend(range(j, len(after)))
    return groups


class ReshapeViews(Views):
    """The input's memory under another shape."""

    def forward(self, op: NodeView, index: int, view: View) -> View | None:
        return reshape_view(view, op.outputs[0].shape)

    def backward(self, op: NodeView, index: int, view: View) -> View | None:
        return reshape_view(view, op.inputs[0].shape)  # type: ignore[union-attr]

    def part(self, op: NodeView, index: int, whole: tbe.Tensor) -> tbe.Tensor:
        return tbe.reshape(whole, op.inputs[0].shape)  # type: ignore[union-attr]


@register
class Reshape(Movement):
    """The same elements in the same order under another shape."""

    shape = Attr(list)
    engine = Engine.VIEW
    dataflow = Refolded()
    views = ReshapeViews()
    precision = Precision(passes_on=True)

    @staticmethod
    def verify(op: NodeView) -> None:
        desc = op.inputs[0]
        assert desc is not None
        if any(d < 0 for d in op.shape) or math.prod(op.shape) != desc.size:
            raise fail(
                op,
                f"cannot view {desc} as {list(op.shape)}: {desc.size} against {math.prod(op.shape)} elements",
            )

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        return TensorDesc(op.shape, op.inputs[0].dtype)  # type: ignore[union-attr]

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return tbe.reshape(x, op.shape)


class Permuted(Dataflow):
    """Each axis of the output is one of the input."""

    def slice(self, op: NodeView, part: Part) -> Sliced | None:
        return Sliced({0: part.at(op.perm[part.axis])})

    def stack(self, op: NodeView, stack: Stack) -> Stacked | None:
        return Stacked({"perm": [0, *(p + 1 for p in op.perm)]})


class TransposeViews(Views):
    """The input's axes in another order."""

    permutes = True

    def forward(self, op: NodeView, index: int, view: View) -> View | None:
        return view.permute(op.perm)

    def backward(self, op: NodeView, index: int, view: View) -> View | None:
        return view.permute(Order(op.perm).inverse)

    def part(self, op: NodeView, index: int, whole: tbe.Tensor) -> tbe.Tensor:
        return tbe.transpose(whole, Order(op.perm).inverse)


@register
class Transpose(Movement):
    """Axes in another order: axis i of the result is axis perm[i] of x."""

    perm = Attr(list)
    dataflow = Permuted()
    views = TransposeViews()
    reads_once = True
    aligned_rows = True

    @staticmethod
    def verify(op: NodeView) -> None:
        if sorted(op.perm) != list(range(op.inputs[0].rank)):  # type: ignore[union-attr]
            raise fail(op, f"perm {list(op.perm)} does not permute the axes of {op.inputs[0]}")

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        desc = op.inputs[0]
        assert desc is not None
        return TensorDesc(tuple(desc.shape[p] for p in op.perm), desc.dtype)

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return tbe.transpose(x, op.perm)


class Repeated(Dataflow):
    """An axis of the output need not be there in the input."""

    def stack(self, op: NodeView, stack: Stack) -> Stacked | None:
        shape, before = op.outputs[0].shape, op.inputs[0].shape  # type: ignore[union-attr]
        aligned = (stack.count, *(1,) * (len(shape) - len(before)), *before)
        return Stacked({"shape": [stack.count, *shape]}, {0: aligned})


@register
class BroadcastTo(Movement):
    """x repeated over a shape by NumPy's rules."""

    shape = Attr(list)
    pattern = Pattern.BROADCAST
    dataflow = Repeated()
    broadcasts = True

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return tbe.broadcast_to(x, op.shape)


@register
class Tile(Movement):
    """x repeated along each axis."""

    repeats = Attr(list)

    @staticmethod
    def verify(op: NodeView) -> None:
        if len(op.repeats) != op.inputs[0].rank or any(r < 0 for r in op.repeats):  # type: ignore[union-attr]
            raise fail(op, f"repeats {list(op.repeats)} do not fit {op.inputs[0]}")

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        apart = tbe.reshape(x, tuple(d for extent in x.shape for d in (1, extent)))
        pairs = zip(op.repeats, x.shape, strict=True)
        repeated = tbe.broadcast_to(apart, tuple(d for pair in pairs for d in pair))
        return tbe.reshape(repeated, tuple(r * d for r, d in zip(op.repeats, x.shape, strict=True)))


# -- pieces ------------------------------------------------------------------------------------------------


class Boxed(Dataflow):
    """A box of the input."""

    def slice(self, op: NodeView, part: Part) -> Sliced | None:
        """Along an axis that the box fills."""
        axis, size = part.axis, op.inputs[0].shape[part.axis]  # type: ignore[union-attr]
        step = op.steps[axis] if op.steps else 1
        if op.starts[axis] or op.ends[axis] < size or step != 1:
            return None
        ends = [size // part.period * part.length if i == axis else end for i, end in enumerate(op.ends)]
        return Sliced({0: part}, {"ends": ends})

    def reorder(self, op: NodeView, order: Order) -> Reordered | None:
        entries = {"starts": order.entries(op.starts), "ends": order.entries(op.ends)}
        return Reordered(order.perm, {**entries, "steps": order.entries(op.steps) if op.steps else None})

    def stack(self, op: NodeView, stack: Stack) -> Stacked | None:
        steps = [1, *op.steps] if op.steps else None
        return Stacked({"starts": [0, *op.starts], "ends": [stack.count, *op.ends], "steps": steps})


class SliceViews(Views):
    """A box of the input, unless it runs backwards."""

    def forward(self, op: NodeView, index: int, view: View) -> View | None:
        steps = op.steps or (1,) * len(view.shape)
        return None if min(steps) < 0 else box_view(view, op.starts, steps, op.outputs[0].shape)


@register
class Slice(Movement):
    """A box of x: elements starts, starts + steps, … before ends, one entry per axis.

    Starts are not negative; with a negative step, an end of -1 includes element 0.
    """

    starts = Attr(list)
    ends = Attr(list)
    steps = Attr(list, None)
    dataflow = Boxed()
    views = SliceViews()
    reads_once = True

    @staticmethod
    def verify(op: NodeView) -> None:
        rank = op.inputs[0].rank  # type: ignore[union-attr]
        steps = op.steps or (1,) * rank
        if not len(op.starts) == len(op.ends) == len(steps) == rank:
            raise fail(op, f"starts, ends and steps need an entry for each axis of {op.inputs[0]}")
        if 0 in steps:
            raise fail(op, "a step is 0")

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        steps = op.steps or (1,) * len(x.shape)
        shape = tuple(len(range(*r)) for r in zip(op.starts, op.ends, steps, strict=True))
        return tbe.slice(x, op.starts, steps, shape)


class Joined(OverAxes):
    """Pieces along one axis; every input has the other axes."""

    def slice(self, op: NodeView, part: Part) -> Sliced | None:
        along = op.axis % op.outputs[0].rank
        return None if part.axis == along else Sliced(dict.fromkeys(range(len(op.inputs)), part))

    def stack(self, op: NodeView, stack: Stack) -> Stacked | None:
        axis = op.axis % op.outputs[0].rank + 1
        return Stacked({"axis": axis}, also=frozenset(range(len(op.inputs))))


class ConcatViews(Views):
    """Each input is a piece of the output."""

    def backward(self, op: NodeView, index: int, view: View) -> View | None:
        return piece_view(view, op.axis, [d.shape[op.axis] for d in op.inputs if d], index)

    def part(self, op: NodeView, index: int, whole: tbe.Tensor) -> tbe.Tensor:
        shape = op.inputs[index].shape  # type: ignore[union-attr]
        axis = op.axis % len(shape)
        starts = [0] * len(shape)
        starts[axis] = sum(d.shape[axis] for d in op.inputs[:index] if d)
        return tbe.slice(whole, starts, [1] * len(shape), shape)


MAX_JOINED = 512  # inputs that one kernel joins


@register
class Concat(Operator):
    """Tensors one after another along axis."""

    inputs = Input("T", TENSORS, variadic=True)
    y = Output("T")
    axis = Attr(int)
    pattern = Pattern.INJECTIVE
    dataflow = Joined("axis")
    views = ConcatViews()
    reads_once = True
    moves = True
    sign = Sign.KEPT

    @staticmethod
    def expand(builder: Any, op: NodeView, *values: Any) -> Any:
        """Join more inputs than one kernel takes in groups first."""
        if len(values) <= MAX_JOINED:
            return NotImplemented
        groups = [values[i : i + MAX_JOINED] for i in range(0, len(values), MAX_JOINED)]
        return builder.op("Concat", *(builder.op("Concat", *g, axis=op.axis) for g in groups), axis=op.axis)

    @staticmethod
    def compute(op: NodeView, *parts: tbe.Tensor) -> tbe.Tensor:
        return tbe.concat(parts, op.axis)

    flops = Movement.flops


MAX_PIECES = 1 << 14


class SplitViews(Views):
    """Each output is a piece of the input."""

    def forward(self, op: NodeView, index: int, view: View) -> View | None:
        return piece_view(view, op.axis, op.sizes, index)


@register
class Split(Operator):
    """Pieces of x along axis, of given sizes."""

    x = Input("T", TENSORS)
    pieces = Output("T", variadic=True)
    axis = Attr(int)
    sizes = Attr(list)
    pattern = Pattern.INJECTIVE
    dataflow = Joined("axis")
    views = SplitViews()
    reads_once = True
    moves = True
    sign = Sign.KEPT

    @staticmethod
    def verify(op: NodeView) -> None:
        desc = op.inputs[0]
        assert desc is not None
        if not -desc.rank <= op.axis < desc.rank:
            raise fail(op, f"axis {op.axis} is out of range for {desc}")
        if len(op.sizes) > MAX_PIECES:
            raise fail(op, f"{len(op.sizes)} pieces", f"use at most {MAX_PIECES}")
        if sum(op.sizes) != desc.shape[op.axis] or any(s < 0 for s in op.sizes):
            raise fail(
                op, f"sizes {list(op.sizes)} do not add up to {desc.shape[op.axis]} elements along {op.axis}"
            )

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tuple[tbe.Tensor, ...]:
        axis = op.axis % len(x.shape)
        pieces, start = [], 0
        for size in op.sizes:
            starts = tuple(start if i == axis else 0 for i in range(len(x.shape)))
            shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
            pieces.append(tbe.slice(x, starts, (1,) * len(x.shape), shape))
            start += size
        return tuple(pieces)

    flops = Movement.flops


# -- padding and rotations -----------------------------------------------------------------------------------


class Bordered(Dataflow):
    """A border around the input."""

    def slice(self, op: NodeView, part: Part) -> Sliced | None:
        """Along an axis without padding."""
        return None if op.low[part.axis] or op.high[part.axis] else Sliced({0: part})

    def reorder(self, op: NodeView, order: Order) -> Reordered | None:
        return Reordered(order.perm, {"low": order.entries(op.low), "high": order.entries(op.high)})

    def stack(self, op: NodeView, stack: Stack) -> Stacked | None:
        return Stacked({"low": [0, *op.low], "high": [0, *op.high]})


@register
class Pad(Movement):
    """x with a border: of a value, or of its own elements (edge, reflect, symmetric, wrap)."""

    mode = Attr(str, "constant", choices=("constant", "edge", "reflect", "symmetric", "wrap"))
    low = Attr(list)
    high = Attr(list)
    value = Attr(float, 0.0)
    dataflow = Bordered()
    reads_once = True
    cost = Cost.PLAIN
    moves = False  # the padding is new
    sign = Sign.ANY

    @staticmethod
    def linear(op: NodeView) -> bool:
        """A border of zeros is that of a sum."""
        return op.mode == "constant" and op.value == 0

    @staticmethod
    def verify(op: NodeView) -> None:
        desc = op.inputs[0]
        assert desc is not None
        if not len(op.low) == len(op.high) == desc.rank:
            raise fail(op, f"low and high need an entry for each axis of {desc}")
        if any(p < 0 for p in (*op.low, *op.high)):
            raise fail(op, "a border is negative", "take a slice instead")
        borders = zip(desc.shape, op.low, op.high, strict=True)
        if op.mode != "constant" and any(size == 0 and (low or high) for size, low, high in borders):
            raise fail(op, f"an empty axis has no elements to fill a border of mode {op.mode} with")

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        if op.mode == "constant":
            value = op.value if x.dtype in FLOATS else int(op.value)
            return tbe.pad(x, op.low, op.high, value)
        shape = tuple(d + a + b for d, a, b in zip(x.shape, op.low, op.high, strict=True))
        source = _BORDERS[op.mode]

        def element(*index: tbe.Scalar) -> tbe.Scalar:
            inner = [
                source(i - low, extent) if total != extent else i
                for i, low, extent, total in zip(index, op.low, x.shape, shape, strict=True)
            ]
            return x[tuple(inner)]

        return tbe.compute(shape, element)


def _reflected(i: tbe.Scalar, extent: int) -> tbe.Scalar:
    if extent == 1:
        return i * 0
    period = 2 * (extent - 1)
    inside = i % period
    return tbe.binary("min", inside, period - inside)


def _mirrored(i: tbe.Scalar, extent: int) -> tbe.Scalar:
    inside = i % (2 * extent)
    return tbe.binary("min", inside, 2 * extent - 1 - inside)


# For each mode, the element of x at a position that may be outside it.
_BORDERS: dict[str, Callable[[tbe.Scalar, int], tbe.Scalar]] = {
    "edge": lambda i, extent: tbe.binary("min", tbe.binary("max", i, 0), extent - 1),
    "reflect": _reflected,
    "symmetric": _mirrored,
    "wrap": lambda i, extent: i % extent,
}


@register
class Reverse(Movement):
    """x back to front along axes."""

    axes = Attr(list)
    dataflow = OverAxes()
    reads_once = True

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        axes = normal_axes(op.axes, len(x.shape))
        starts = tuple(max(d - 1, 0) if i in axes else 0 for i, d in enumerate(x.shape))
        steps = tuple(-1 if i in axes else 1 for i in range(len(x.shape)))
        return tbe.slice(x, starts, steps, x.shape)


@register
class Roll(Movement):
    """x rotated by shifts along axes; what leaves at the end comes in at the front."""

    shifts = Attr(list)
    axes = Attr(list)

    @staticmethod
    def verify(op: NodeView) -> None:
        if len(op.shifts) != len(op.axes):
            raise fail(op, f"{len(op.shifts)} shifts for {len(op.axes)} axes")

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        for shift, axis in zip(op.shifts, op.axes, strict=True):
            x = _rolled(x, shift, axis % len(x.shape))
        return x


def _rolled(x: tbe.Tensor, shift: int, axis: int) -> tbe.Tensor:
    extent = x.shape[axis]
    cut = (-shift) % extent if extent else 0
    if not cut:
        return x
    ones = (1,) * len(x.shape)

    def piece(start: int, size: int) -> tbe.Tensor:
        starts = tuple(start if i == axis else 0 for i in range(len(x.shape)))
        return tbe.slice(x, starts, ones, (*x.shape[:axis], size, *x.shape[axis + 1 :]))

    return tbe.concat([piece(cut, extent - cut), piece(0, cut)], axis)


# -- ONNX --------------------------------------------------------------------------------------------------


def reshaped(n: Node, value: Any, shape: Sequence[int]) -> Any:
    """A value in another shape; itself if it has that shape."""
    shape = [int(d) for d in shape]
    return value if [int(d) for d in value.shape] == shape else n.op("Reshape", value, shape=shape)


def resolved_shape(desc: TensorDesc, target: Sequence[int], zero_copies: bool = True) -> list[int]:
    """A reshape's target with 0 (same as the input) and -1 (inferred) resolved.

    >>> resolved_shape(TensorDesc((2, 3, 4), "float32"), [0, -1])
    [2, 12]
    """
    shape = [int(d) for d in target]
    for axis, extent in enumerate(shape):
        if extent == 0 and zero_copies:
            if axis >= desc.rank:
                raise ValueError(
                    f"dimension {axis} of the target {shape} copies a dimension that {desc} does not have"
                )
            shape[axis] = desc.shape[axis]
    if shape.count(-1) > 1:
        raise ValueError(f"the target {shape} leaves more than one dimension open")
    if -1 in shape:
        known = math.prod(d for d in shape if d != -1)
        if not known or desc.size % known:
            raise ValueError(f"{desc} cannot be reshaped to {shape}")
        shape[shape.index(-1)] = desc.size // known
    return shape


@plugin(onnx="Reshape")
def _reshape(n: Node) -> Results:
    target = n.attr("shape") if n.version < 5 else n.ints(1, "shape")
    try:
        shape = resolved_shape(n.desc(), target, not n.attr("allowzero", 0))
    except ValueError as error:
        raise Unsupported(str(error)) from error
    return reshaped(n, n.inputs[0], shape)


@plugin(onnx="Flatten")
def _flatten(n: Node) -> Results:
    desc = n.desc()
    axis = int(n.attr("axis", 1))
    axis = axis + desc.rank if axis < 0 else axis
    return reshaped(n, n.inputs[0], [math.prod(desc.shape[:axis]), math.prod(desc.shape[axis:])])


@plugin(onnx="Squeeze")
def _squeeze(n: Node) -> Results:
    shape = n.desc().shape
    axes = n.attr("axes") or (n.ints(1, "axes") if n.input(1) is not None else None)
    gone = [i for i, d in enumerate(shape) if d == 1] if axes is None else normal_axes(axes, len(shape))
    wrong = [i for i in gone if shape[i] != 1]
    if wrong:
        raise Unsupported(f"axis {wrong[0]} of {n.desc()} has more than one element and cannot be squeezed")
    return reshaped(n, n.inputs[0], [d for i, d in enumerate(shape) if i not in gone])


@plugin(onnx="Unsqueeze")
def _unsqueeze(n: Node) -> Results:
    axes = n.attr("axes") or n.ints(1, "axes")
    shape = list(n.desc().shape)
    for axis in normal_axes(axes, len(shape) + len(axes)):
        shape.insert(axis, 1)
    return reshaped(n, n.inputs[0], shape)


@plugin(onnx="Transpose")
def _transpose(n: Node) -> Results:
    perm = n.attr("perm") or list(range(n.desc().rank))[::-1]
    if list(perm) == list(range(n.desc().rank)):
        return n.inputs[0]  # type: ignore[return-value]
    return n.op("Transpose", n.inputs[0], perm=list(perm))


@plugin(onnx="Expand")
def _expand(n: Node) -> Results:
    target = n.ints(1, "shape")
    shape = np.broadcast_shapes(n.desc().shape, tuple(target))
    return n.inputs[0] if shape == n.desc().shape else n.op("BroadcastTo", n.inputs[0], shape=list(shape))  # type: ignore[return-value]


@plugin(onnx="Tile")
def _tile(n: Node) -> Results:
    repeats = n.ints(1, "repeats")
    return n.inputs[0] if set(repeats) <= {1} else n.op("Tile", n.inputs[0], repeats=repeats)  # type: ignore[return-value]


@plugin(onnx="Concat")
def _concat(n: Node) -> Results:
    """Parts without elements are dropped."""
    axis = int(n.attr("axis", 1))
    axis = axis % n.desc().rank
    parts = [v for i, v in enumerate(n.inputs) if n.desc(i).shape[axis]]
    if len(parts) < 2:
        return parts[0] if parts else n.inputs[0]  # type: ignore[return-value]
    return n.op("Concat", *parts, axis=axis)


@plugin(onnx="Split")
def _split(n: Node) -> Results:
    axis = int(n.attr("axis", 0))
    extent = n.desc().shape[axis]
    sizes = n.attr("split") or (n.ints(1, "split") if n.input(1) is not None else None)
    if sizes is None:
        count = int(n.attr("num_outputs", n.outputs))
        if not 1 <= count <= max(extent, n.outputs):
            raise Unsupported(f"{count} pieces of {extent} elements are not possible")
        size = -(-extent // count)
        sizes = [min(size, max(extent - i * size, 0)) for i in range(count)]
    return n.builder.ops("Split", [n.inputs[0]], axis=axis, sizes=list(sizes))


def box(
    shape: Sequence[int],
    axes: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    steps: Sequence[int],
) -> dict[str, list[int]]:
    """Slice attributes for all axes from Python-like slices of some.

    >>> box((4, 5), [-1], [-2], [100], [1])
    {'starts': [0, 3], 'ends': [4, 5], 'steps': [1, 1]}
    """
    found = [slice(None).indices(d) for d in shape]
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        extent = shape[axis]
        # An end below -extent means "down to the first element", which Python writes as None.
        stop = None if step < 0 and end < -extent else end
        found[axis] = slice(start, stop, step).indices(extent)
    return {name: [f[i] for f in found] for i, name in enumerate(("starts", "ends", "steps"))}


@plugin(onnx="Slice")
def _slice(n: Node) -> Results:
    if n.version < 10:
        starts, ends, axes, steps = n.attr("starts"), n.attr("ends"), n.attr("axes"), None
    else:
        starts, ends = n.ints(1, "starts"), n.ints(2, "ends")
        axes = n.ints(3, "axes") if n.input(3) is not None else None
        steps = n.ints(4, "steps") if n.input(4) is not None else None
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    shape = n.desc().shape
    # ONNX moves a start in front of the first element to it, where NumPy's slice backwards would be empty.
    starts = [max(s, -shape[a]) if t < 0 else s for s, a, t in zip(starts, axes, steps, strict=True)]
    attrs = box(shape, axes, starts, ends, steps)
    if attrs == box(shape, [], [], [], []):
        return n.inputs[0]  # type: ignore[return-value]
    return n.op("Slice", n.inputs[0], **attrs)


_PAD_MODES = {"constant": "constant", "edge": "edge", "reflect": "reflect", "wrap": "wrap"}


@plugin(onnx="Pad")
def _pad(n: Node) -> Results:
    """Negative padding crops."""
    rank = n.desc().rank
    value = 0.0
    if n.version < 11:
        pads = list(n.attr("pads") or n.attr("paddings"))
        value = float(n.attr("value", 0.0))
    else:
        pads = n.ints(1, "pads")
        if n.input(2) is not None and n.attr("mode", "constant") == "constant":
            value = float(n.const(2, "constant_value").reshape(-1)[0])
    axes = n.ints(3, "axes") if n.input(3) is not None else list(range(rank))
    low, high = [0] * rank, [0] * rank
    for index, axis in enumerate(axes):
        low[axis], high[axis] = pads[index], pads[index + len(axes)]
    x: Any = n.inputs[0]
    sizes = list(n.desc().shape)
    if any(d + min(a, 0) + min(b, 0) < 0 for d, a, b in zip(sizes, low, high, strict=True)):
        return _cropped(n, _padded(n, x, low, high, value), low, high)  # the crop reaches into the padding
    return _padded(n, _cropped(n, x, low, high), low, high, value)


def _cropped(n: Node, x: Any, low: list[int], high: list[int]) -> Any:
    """x without what negative pads remove."""
    if min((*low, *high), default=0) >= 0:
        return x
    starts = [max(-p, 0) for p in low]
    ends = [max(d - max(-p, 0), s) for d, p, s in zip(desc_of(x).shape, high, starts, strict=True)]
    return n.op("Slice", x, starts=starts, ends=ends)


def _padded(n: Node, x: Any, low: list[int], high: list[int], value: float) -> Any:
    """x with what positive pads add."""
    low, high = [max(p, 0) for p in low], [max(p, 0) for p in high]
    if not any((*low, *high)):
        return x
    mode = _PAD_MODES[n.attr("mode", "constant")]
    return n.op("Pad", x, mode=mode, low=low, high=high, value=value)


# -- TensorFlow --------------------------------------------------------------------------------------------


@plugin(tensorflow="Reshape")
def _reshape_tf(n: Node) -> Results:
    target = n.ints(1, "shape")
    if _leaves_open(n.desc(), target):
        return n.inputs[0]  # type: ignore[return-value]
    try:
        shape = resolved_shape(n.desc(), target, zero_copies=False)
    except ValueError as error:
        raise Unsupported(str(error)) from error
    return reshaped(n, n.inputs[0], shape)


def _leaves_open(desc: TensorDesc, target: Sequence[int]) -> bool:
    """True if -1 could be any number, as no element is there, and x has such a shape: TensorFlow's graphs keep it.

    >>> _leaves_open(TensorDesc((0, 0), "float32"), [-1, 0]), _leaves_open(TensorDesc((0, 2), "float32"), [-1, 0])
    (True, False)
    """
    if -1 not in target or 0 not in target or len(target) != desc.rank:
        return False
    return all(d in (-1, size) for d, size in zip(target, desc.shape, strict=True))


@plugin(tensorflow="Squeeze")
def _squeeze_tf(n: Node) -> Results:
    shape = n.desc().shape
    axes = n.attr("squeeze_dims") or n.attr("axis")
    gone = normal_axes(axes, len(shape)) if axes else [i for i, d in enumerate(shape) if d == 1]
    wrong = [i for i in gone if shape[i] != 1]
    if wrong:
        raise Unsupported(f"axis {wrong[0]} of {n.desc()} has more than one element and cannot be squeezed")
    return reshaped(n, n.inputs[0], [d for i, d in enumerate(shape) if i not in gone])


@plugin(tensorflow="ExpandDims")
def _expand_dims(n: Node) -> Results:
    shape, axis = list(n.desc().shape), n.ints(1, "the axis")[0]
    shape.insert(axis if axis >= 0 else axis + len(shape) + 1, 1)
    return reshaped(n, n.inputs[0], shape)


@plugin(tensorflow=["Transpose", "ConjugateTranspose"])
def _transpose_tf(n: Node) -> Results:
    perm = [p % max(n.desc().rank, 1) for p in n.ints(1, "perm")]
    if perm == list(range(n.desc().rank)):
        return n.inputs[0]  # type: ignore[return-value]
    return n.op("Transpose", n.inputs[0], perm=perm)


@plugin(tensorflow="BroadcastTo")
def _broadcast_to_tf(n: Node) -> Results:
    shape = n.ints(1, "shape")
    return n.inputs[0] if tuple(shape) == n.desc().shape else n.op("BroadcastTo", n.inputs[0], shape=shape)  # type: ignore[return-value]


@plugin(tensorflow="Tile")
def _tile_tf(n: Node) -> Results:
    repeats = n.ints(1, "multiples")
    return n.inputs[0] if set(repeats) <= {1} else n.op("Tile", n.inputs[0], repeats=repeats)  # type: ignore[return-value]


def concatenated(n: Node, parts: Sequence[Any], axis: int) -> Any:
    """Parts without elements are dropped."""
    rank = len(parts[0].shape)
    axis = axis % rank if rank else 0
    kept = [v for v in parts if int(v.shape[axis])] or list(parts[:1])
    return kept[0] if len(kept) == 1 else n.op("Concat", *kept, axis=axis)


@plugin(tensorflow=["Concat", "ConcatV2"])
def _concat_tf(n: Node) -> Results:
    last = n.type == "ConcatV2"
    if len(n.inputs) < 3:
        raise Unsupported(f"{n.type} of one tensor", "give two or more")
    axis = n.ints(len(n.inputs) - 1 if last else 0, "the axis")[0]
    return concatenated(n, n.inputs[:-1] if last else n.inputs[1:], axis)


@plugin(tensorflow="ParallelConcat")
def _parallel_concat(n: Node) -> Results:
    return concatenated(n, n.inputs, 0)


@plugin(tensorflow="Pack")
def _pack(n: Node) -> Results:
    rank, shape = n.desc().rank, n.desc().shape
    axis = int(n.attr("axis", 0)) % (rank + 1)
    rows = [n.op("Reshape", v, shape=[*shape[:axis], 1, *shape[axis:]]) for v in n.inputs]
    return rows[0] if len(rows) == 1 else n.op("Concat", *rows, axis=axis)


@plugin(tensorflow="Unpack")
def _unpack(n: Node) -> Results:
    shape = n.desc().shape
    axis = int(n.attr("axis", 0)) % len(shape)
    rest = [d for i, d in enumerate(shape) if i != axis]
    if not shape[axis]:
        return []
    rows = n.builder.ops("Split", [n.inputs[0]], axis=axis, sizes=[1] * shape[axis])
    return [n.op("Reshape", v, shape=rest) for v in rows]


@plugin(tensorflow="Split")
def _split_tf(n: Node) -> Results:
    axis, count = n.ints(0, "the axis")[0], int(n.attr("num_split", 1))
    extent = n.desc(1).shape[axis]
    if extent % count:
        raise Unsupported(f"{extent} elements do not split into {count} equal pieces")
    if count == 1:
        return [n.inputs[1]]
    return n.builder.ops("Split", [n.inputs[1]], axis=axis, sizes=[extent // count] * count)


@plugin(tensorflow="SplitV")
def _split_v(n: Node) -> Results:
    axis, sizes = n.ints(2, "the axis")[0], n.ints(1, "the sizes")
    if len(sizes) != int(n.attr("num_split", len(sizes))):
        raise Unsupported(f"{len(sizes)} sizes for {n.attr('num_split')} parts")
    if -1 in sizes:
        sizes[sizes.index(-1)] = n.desc().shape[axis] - sum(s for s in sizes if s != -1)
    return n.builder.ops("Split", [n.inputs[0]], axis=axis, sizes=sizes)


@plugin(tensorflow=["Pad", "PadV2", "MirrorPad"])
def _pad_tf(n: Node) -> Results:
    pads = n.ints(1, "the paddings")
    low, high = pads[0::2], pads[1::2]
    if not any(pads):
        return n.inputs[0]  # type: ignore[return-value]
    if n.type == "MirrorPad":
        mode = {"REFLECT": "reflect", "SYMMETRIC": "symmetric"}[str(n.attr("mode", "REFLECT"))]
        return n.op("Pad", n.inputs[0], mode=mode, low=low, high=high)
    known = n.maybe_const(2) if n.type == "PadV2" else np.zeros(())
    if known is not None:
        return n.op("Pad", n.inputs[0], low=low, high=high, value=float(known.reshape(())))
    inside = n.op("Pad", n.builder.constant(np.ones(n.desc().shape, bool)), low=low, high=high, value=0.0)
    return n.op("Select", inside, n.op("Pad", n.inputs[0], low=low, high=high, value=0.0), n.inputs[2])


@plugin(tensorflow=["Reverse", "ReverseV2"])
def _reverse_tf(n: Node) -> Results:
    given = n.ints(1, "the axes")
    axes = [i for i, turned in enumerate(given) if turned] if n.type == "Reverse" else given
    return n.op("Reverse", n.inputs[0], axes=axes) if axes else n.inputs[0]  # type: ignore[return-value]


@plugin(tensorflow="Roll")
def _roll_tf(n: Node) -> Results:
    return n.op("Roll", n.inputs[0], shifts=n.ints(1, "the shifts"), axes=n.ints(2, "the axes"))


@plugin(tensorflow="MirrorPadGrad")
def _mirror_pad_gradient(n: Node) -> Results:
    """The gradient of mirrored padding is added to its source, one axis at a time."""
    pads = n.ints(1, "the paddings")
    skipped = int(str(n.attr("mode", "REFLECT")) == "REFLECT")  # the edge itself is not mirrored
    y: Any = n.inputs[0]
    for axis, (low, high) in enumerate(zip(pads[0::2], pads[1::2], strict=True)):
        shape = [int(d) for d in y.shape]
        extent = shape[axis] - low - high
        core = _piece(n, y, axis, low, low + extent)
        for size, start, place in ((low, 0, skipped), (high, low + extent, extent - high - skipped)):
            if size:
                turned = n.op("Reverse", _piece(n, y, axis, start, start + size), axes=[axis])
                before = [place if i == axis else 0 for i in range(len(shape))]
                after = [extent - place - size if i == axis else 0 for i in range(len(shape))]
                core = n.op("Add", core, n.op("Pad", turned, low=before, high=after))
        y = core
    return y


def _piece(n: Node, x: Any, axis: int, start: int, end: int) -> Any:
    shape = [int(d) for d in x.shape]
    starts, ends = [0] * len(shape), list(shape)
    starts[axis], ends[axis] = start, end
    return n.op("Slice", x, starts=starts, ends=ends)
