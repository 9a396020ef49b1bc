"""Views: operators that only look at memory differently, and how a view passes through them in either direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import onnx_ir as ir

import tbe
from ge.ops.base import NodeView
from ge.plan import View, contiguous_strides

__all__ = ["is_movement", "part_of", "reshape_view", "view_backward", "view_forward"]


def reshape_view(view: View, shape: Sequence[int]) -> View | None:
    """The view under another shape without moving data, None where its strides do not allow that.

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
    """Dimensions of more than one element, neighbours merged where the outer one continues the inner one."""
    runs: list[tuple[int, int]] = []
    for extent, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if extent == 1:
            continue
        if runs and stride == runs[-1][0] * runs[-1][1]:
            runs[-1] = (runs[-1][0] * extent, runs[-1][1])
        else:
            runs.append((extent, stride))
    return runs[::-1]


def _box(view: View, starts: Sequence[int], steps: Sequence[int], shape: Sequence[int]) -> View:
    offset = view.offset + sum(b * s for b, s in zip(starts, view.strides, strict=True))
    strides = tuple(s * k for s, k in zip(view.strides, steps, strict=True))
    return replace(view, shape=tuple(shape), strides=strides, offset=offset)


def _split(view: View, axis: int, sizes: Sequence[int], index: int) -> View:
    axis %= len(view.shape)
    starts = [0] * len(view.shape)
    starts[axis] = sum(sizes[:index])
    shape = [*view.shape[:axis], sizes[index], *view.shape[axis + 1 :]]
    return _box(view, starts, [1] * len(shape), shape)


def _slice_forward(op: NodeView, index: int, view: View) -> View | None:
    steps = op.steps or (1,) * len(view.shape)
    if any(step < 0 for step in steps):
        return None
    return _box(view, op.starts, steps, op.outputs[0].shape)


_FORWARD: dict[str, Callable[[NodeView, int, View], View | None]] = {
    "Identity": lambda op, i, v: v,
    "Reshape": lambda op, i, v: reshape_view(v, op.outputs[0].shape),
    "Transpose": lambda op, i, v: v.permute(op.perm),
    "Slice": _slice_forward,
    "Split": lambda op, i, v: _split(v, op.axis, op.sizes, i),
}


def _inverse(perm: Sequence[int]) -> list[int]:
    return sorted(range(len(perm)), key=lambda i: perm[i])


_BACKWARD: dict[str, Callable[[NodeView, int, View], View | None]] = {
    "Identity": lambda op, i, v: v,
    "Reshape": lambda op, i, v: reshape_view(v, op.inputs[0].shape),  # type: ignore[union-attr]
    "Transpose": lambda op, i, v: v.permute(_inverse(op.perm)),
    "Concat": lambda op, i, v: _split(v, op.axis, [d.shape[op.axis] for d in op.inputs if d], i),
}


def _concat_part(op: NodeView, index: int, whole: tbe.Tensor) -> tbe.Tensor:
    shape = op.inputs[index].shape  # type: ignore[union-attr]
    axis = op.axis % len(shape)
    starts = [0] * len(shape)
    starts[axis] = sum(d.shape[axis] for d in op.inputs[:index] if d)
    return tbe.slice(whole, starts, [1] * len(shape), shape)


_PARTS: dict[str, Callable[[NodeView, int, tbe.Tensor], tbe.Tensor]] = {
    "Identity": lambda op, i, t: t,
    "Reshape": lambda op, i, t: tbe.reshape(t, op.inputs[0].shape),  # type: ignore[union-attr]
    "Transpose": lambda op, i, t: tbe.transpose(t, _inverse(op.perm)),
    "Concat": _concat_part,
}


def part_of(node: ir.Node, index: int, whole: tbe.Tensor) -> tbe.Tensor:
    """A node's input `index` as an expression of its output (the counterpart of `view_backward`)."""
    return _PARTS[node.op_type](NodeView.of(node), index, whole)


def is_movement(node: ir.Node) -> bool:
    """Whether the node only moves or re-describes data."""
    return node.op_type in _FORWARD or node.op_type in _BACKWARD


def view_forward(node: ir.Node, index: int, view: View) -> View | None:
    """A node's output `index` as a view of its first input's memory, None where that cannot be expressed."""
    rule = _FORWARD.get(node.op_type)
    return None if rule is None else rule(NodeView.of(node), index, view)


def view_backward(node: ir.Node, index: int, view: View) -> View | None:
    """A node's input `index` as a view of its output's memory, None where that cannot be expressed."""
    rule = _BACKWARD.get(node.op_type)
    return None if rule is None else rule(NodeView.of(node), index, view)
