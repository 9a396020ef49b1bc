"""Merges consecutive data movements: reshapes, transposes, casts, slices and concatenations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import ClassVar

import onnx_ir as ir

from ge.ir.types import BOOL, FLOATS, INTS
from ge.ir.values import constant_of, desc_of
from ge.ops.base import dataflow_of
from ge.ops.dataflow import Aligned
from ge.ops.tensor.movement import MAX_JOINED
from ge.passes.rewrite import RewritePass, Rewriter, Rule, Rules, attrs_of, is_pure, only_use, producer

__all__ = ["MergeMovements", "holds_exactly"]

_EXPONENT = {"float16": 5, "bfloat16": 8, "float32": 8, "float64": 11}
_MANTISSA = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


def holds_exactly(narrow: str, wide: str) -> bool:
    """True if every value of one element type is representable in another.

    >>> holds_exactly("bfloat16", "float32"), holds_exactly("int32", "float32")
    (True, False)
    """
    if narrow == wide or narrow in BOOL:
        return True
    if narrow in FLOATS:
        return (
            wide in FLOATS and _EXPONENT[narrow] <= _EXPONENT[wide] and _MANTISSA[narrow] <= _MANTISSA[wide]
        )
    if wide in FLOATS:
        return _bits(narrow) <= _MANTISSA[wide]
    if wide not in INTS:
        return False
    signed = not narrow.startswith("u")
    return not (signed and wide.startswith("u")) and _bits(narrow) + (
        not signed and not wide.startswith("u")
    ) <= _bits(wide)


def _bits(dtype: str) -> int:
    return int(dtype.lstrip("uint"))


def _reshape_of_reshape(r: Rewriter, node: ir.Node) -> ir.Value | None:
    inner = producer(node.inputs[0], "Reshape")
    if inner is None:
        return None
    r.stands_for(inner)
    return r.op("Reshape", inner.inputs[0], shape=attrs_of(node)["shape"])


def _transpose_of_transpose(r: Rewriter, node: ir.Node) -> ir.Value | None:
    inner = producer(node.inputs[0], "Transpose")
    if inner is None:
        return None
    r.stands_for(inner)
    first, second = attrs_of(inner)["perm"], attrs_of(node)["perm"]
    return r.op("Transpose", inner.inputs[0], perm=[first[p] for p in second])


def _reverse_of_reverse(r: Rewriter, node: ir.Node) -> ir.Value | None:
    inner = producer(node.inputs[0], "Reverse")
    if inner is None:
        return None
    r.stands_for(inner)
    rank = desc_of(node.outputs[0]).rank
    first, second = ({axis % rank for axis in attrs_of(n)["axes"]} for n in (inner, node))
    once = first ^ second
    source = inner.inputs[0]
    return r.op("Reverse", source, axes=sorted(once)) if once else source


def _transpose_of_units(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A transpose that moves only axes of one element is a reshape."""
    source = node.inputs[0]
    assert source is not None
    shape = desc_of(source).shape
    kept = [p for p in attrs_of(node)["perm"] if shape[p] != 1]
    if kept != sorted(kept):
        return None
    return r.op("Reshape", source, shape=desc_of(node.outputs[0]).shape)


def _cast_of_cast(r: Rewriter, node: ir.Node) -> ir.Value | None:
    inner = producer(node.inputs[0], "Cast")
    if inner is None:
        return None
    source = inner.inputs[0]
    assert source is not None
    origin, middle = desc_of(source).dtype, desc_of(inner.outputs[0]).dtype
    if not holds_exactly(origin, middle):
        return None
    target = attrs_of(node)["to"]
    return source if origin == target else r.op("Cast", source, to=target)


def _steps(node: ir.Node) -> tuple[int, ...]:
    steps = attrs_of(node)["steps"]
    return tuple(steps) if steps else (1,) * desc_of(node.outputs[0]).rank


def _slice_of_slice(r: Rewriter, node: ir.Node) -> ir.Value | None:
    inner = producer(node.inputs[0], "Slice")
    if inner is None or not all(s > 0 for s in (*_steps(inner), *_steps(node))):
        return None
    r.stands_for(inner)
    outer, within = attrs_of(node), attrs_of(inner)
    shape = desc_of(node.outputs[0]).shape
    steps = [a * b for a, b in zip(_steps(inner), _steps(node), strict=True)]
    starts = [a + b * s for a, b, s in zip(within["starts"], outer["starts"], _steps(inner), strict=True)]
    ends = [a + max(n - 1, 0) * s + min(n, 1) for a, n, s in zip(starts, shape, steps, strict=True)]
    return r.op("Slice", inner.inputs[0], starts=starts, ends=ends, steps=steps)


def _slice_of_concat(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A slice that lies within one operand of a concatenation reads that operand."""
    inner = producer(node.inputs[0], "Concat")
    if inner is None or not all(s > 0 for s in _steps(node)):
        return None
    attrs, axis = attrs_of(node), attrs_of(inner)["axis"] % desc_of(node.outputs[0]).rank
    begin = 0
    for part in inner.inputs:
        assert part is not None
        extent = desc_of(part).shape[axis]
        start, end = attrs["starts"][axis] - begin, attrs["ends"][axis] - begin
        if start >= 0 and end <= extent and start < end:
            starts, ends = list(attrs["starts"]), list(attrs["ends"])
            starts[axis], ends[axis] = start, end
            return r.op("Slice", part, starts=starts, ends=ends, steps=_steps(node))
        begin += extent
    return None


def _concat_of_concat(r: Rewriter, node: ir.Node) -> ir.Value | None:
    rank, axis = desc_of(node.outputs[0]).rank, attrs_of(node)["axis"]
    parts: list[ir.Value | None] = []
    for value in node.inputs:
        assert value is not None
        inner = producer(value, "Concat")
        if inner is not None and only_use(value) and attrs_of(inner)["axis"] % rank == axis % rank:
            r.stands_for(inner)
            parts += inner.inputs
        else:
            parts.append(value)
    return r.op("Concat", *parts, axis=axis) if len(node.inputs) < len(parts) <= MAX_JOINED else None


def _concat_of_split(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A concatenation of all pieces of a split, in order, is the split's input."""
    inner = producer(node.inputs[0], "Split")
    if inner is None or list(node.inputs) != list(inner.outputs):
        return None
    rank = desc_of(node.outputs[0]).rank
    return inner.inputs[0] if attrs_of(inner)["axis"] % rank == attrs_of(node)["axis"] % rank else None


def _gather_of_a_range(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """A gather by evenly spaced constant indices is a slice."""
    source, indices = node.inputs[0], constant_of(node.inputs[1])
    attrs = attrs_of(node)
    if source is None or indices is None or attrs["batch_dims"] or not indices.size:
        return None
    desc = desc_of(source)
    axis = attrs["axis"] % desc.rank
    extent = desc.shape[axis]
    flat = [int(i) + extent if i < 0 else int(i) for i in indices.reshape(-1)]
    step = flat[1] - flat[0] if len(flat) > 1 else 1
    if (
        step == 0
        or not all(0 <= i < extent for i in flat)
        or any(b - a != step for a, b in itertools.pairwise(flat))
    ):
        return None
    starts, ends, steps = [0] * desc.rank, list(desc.shape), [1] * desc.rank
    starts[axis], ends[axis], steps[axis] = flat[0], flat[-1] + (1 if step > 0 else -1), step
    piece = r.op("Slice", source, starts=starts, ends=ends, steps=steps)
    return r.op("Reshape", piece, shape=desc_of(node.outputs[0]).shape)


def _unneeded_broadcast(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Remove the broadcast of an operand if its reader broadcasts."""
    target = desc_of(node.outputs[0]).shape
    values: list[ir.Value | None] = []
    for value in node.inputs:
        inner = producer(value, "BroadcastTo")
        values.append(value if inner is None else inner.inputs[0])
    if values == list(node.inputs):
        return None
    for index in range(len(values)):
        if values[index] is node.inputs[index]:
            continue
        others = [v for i, v in enumerate(values) if i != index]
        if not any(desc_of(v).shape == target for v in others if v is not None):
            values[index] = node.inputs[index]
    if values == list(node.inputs) or all(constant_of(v) is not None for v in values):
        return None
    return r.op_like(node, values)


def _late_broadcast(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Move a broadcast behind a function of one operand and scalars, which then runs on fewer elements."""
    source = producer(node.inputs[0], "BroadcastTo")
    if source is None or any(v is None or desc_of(v).rank for v in node.inputs[1:]):
        return None
    if len(node.outputs) > 1 or not is_pure(node):
        return None
    target = desc_of(node.outputs[0]).shape
    return r.op("BroadcastTo", r.op_like(node, [source.inputs[0], *node.inputs[1:]]), shape=target)


class MergeMovements(RewritePass):
    """Merge consecutive movements.

    1. Reshape of Reshape is one Reshape; Transpose of Transpose one Transpose; Reverse of Reverse one Reverse or none.
    2. A Transpose that moves only axes of one element is a Reshape.
    3. Cast of Cast is one Cast if the middle type represents every value of the first.
    4. Slice of Slice is one Slice; a Slice within one part of a Concat reads that part. Negative steps are not merged.
    5. Concat of Concat along the same axis is one Concat, when the inner one has no other reader.
    6. Concat of all pieces of a Split, in order, is the Split's input.
    7. Gather by constant, evenly spaced indices is a Slice.
    8. BroadcastTo before an operator that broadcasts (its dataflow is `Aligned`) goes, if another operand has the full
       shape.
    9. BroadcastTo before a Cast, or before such an operator with one output whose other operands are scalars, moves
       behind it.
    """

    name = "merge_movements"
    rules: ClassVar[Rules] = {
        "Reshape": (_reshape_of_reshape,),
        "Transpose": (_transpose_of_transpose, _transpose_of_units),
        "Reverse": (_reverse_of_reverse,),
        "Cast": (_cast_of_cast, _late_broadcast),
        "Slice": (_slice_of_slice, _slice_of_concat),
        "Concat": (_concat_of_concat, _concat_of_split),
        "Gather": (_gather_of_a_range,),
    }

    def rules_of(self, node: ir.Node) -> Sequence[Rule]:
        known = self.rules.get(node.op_type)
        if known is not None or len(node.inputs) < 2:
            return known or ()
        wide = any(producer(v, "BroadcastTo") is not None for v in node.inputs)
        if not wide or not isinstance(dataflow_of(node), Aligned):
            return ()
        return (_unneeded_broadcast, _late_broadcast)
