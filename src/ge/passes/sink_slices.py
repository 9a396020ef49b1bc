"""Slices moved up towards the inputs: what nobody reads of a value is not computed.

Contract of `sink_slices`:
1. A node computes a part of its result when all its readers read that part alone, and the operator's rule says which
   parts of its operands that needs. A reader is a slice, or a node that itself computes a part.
2. A part is `length` places from `start` on in every period along an axis: the first token of every sequence is one
   where the axes of batch and sequence are joined, too.
3. Nothing changes unless a product or an attention becomes smaller. Results are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import onnx_ir as ir

from ge.ir.types import TensorDesc
from ge.ir.values import desc_of
from ge.ops.base import has_dynamic_size, is_custom, lookup
from ge.options import CompileOptions
from ge.passes.base import Pass
from ge.passes.rewrite import Rewriter, attrs_of, replace_node
from ge.passes.sink_transposes import ELEMENTWISE

__all__ = ["SinkSlices"]

_HEAVY = frozenset({"MatMul", "Attention"})


@dataclass(frozen=True)
class Part:
    """`length` places from `start` on in every `period` along an axis."""

    axis: int
    period: int
    start: int
    length: int

    def at(self, axis: int) -> Part:
        """The same places of another axis."""
        return replace(self, axis=axis)

    def of(self, shape: Sequence[int]) -> list[int]:
        """A shape with this part of it left."""
        return [n // self.period * self.length if i == self.axis else n for i, n in enumerate(shape)]


@dataclass(frozen=True)
class Call:
    """How a node computes a part of its result: parts of its inputs by their places, and attributes that change."""

    parts: dict[int, Part]
    attrs: dict[str, Any] = field(default_factory=dict)


class SinkSlices(Pass):
    """Move slices up where a product becomes smaller by it."""

    name: ClassVar[str] = "sink_slices"

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        calls = _calls(graph)
        if not any(node.op_type in _HEAVY for node in calls):
            return False
        _narrow(graph, calls, options)
        return True


def _calls(graph: ir.Graph) -> dict[ir.Node, Call]:
    """The nodes that compute a part, from the last to the first."""
    calls: dict[ir.Node, Call] = {}
    for node in reversed(graph):
        rule = _RULES.get(node.op_type)
        if rule is None or node.domain != "ge" or is_custom(lookup(node.op_type)):
            continue
        value, *others = node.outputs
        if value.is_graph_output() or any(v.uses() or v.is_graph_output() for v in others):
            continue
        read = {_read(graph, calls, use.node, use.idx) for use in value.uses()}
        if len(read) != 1 or (part := read.pop()) is None or has_dynamic_size(value):
            continue
        call = rule(node, part)
        if call is not None and call.parts:
            calls[node] = call
    return calls


def _read(graph: ir.Graph, calls: dict[ir.Node, Call], node: ir.Node, place: int) -> Part | None:
    """The part of an input that a node reads, None for all of it."""
    if node.graph is not graph:
        return None
    return calls[node].parts.get(place) if node in calls else _sliced(node)


def _sliced(node: ir.Node) -> Part | None:
    """What a slice takes of an axis, where it is at most half of it."""
    if node.op_type != "Slice" or node.domain != "ge":
        return None
    attrs = attrs_of(node)
    sizes = _desc(node).shape
    for axis, (size, start, end) in enumerate(zip(sizes, attrs["starts"], attrs["ends"], strict=True)):
        if (attrs["steps"] is None or attrs["steps"][axis] == 1) and 0 < 2 * (end - start) <= size:
            return Part(axis, size, start, end - start)
    return None


def _narrow(graph: ir.Graph, calls: dict[ir.Node, Call], options: CompileOptions) -> None:
    """Put nodes that compute parts in place of those that computed all."""
    parts: dict[ir.Value, ir.Value] = {}
    for node in reversed(calls):
        r, call = Rewriter(graph, node, options), calls[node]
        inputs = list(node.inputs)
        for place, part in call.parts.items():
            value = inputs[place]
            assert value is not None
            inputs[place] = parts[value] if value in parts else _part_of(r, value, part)
        made = r.op_like(node, inputs, **call.attrs)
        parts[node.outputs[0]] = made[0] if isinstance(made, tuple) else made
    for whole, left in parts.items():
        for node in [use.node for use in whole.uses() if use.node not in calls]:
            _read_within(graph, node, left, options)


def _part_of(r: Rewriter, value: ir.Value, part: Part) -> ir.Value:
    shape = list(desc_of(value).shape)
    split = [*shape[: part.axis], shape[part.axis] // part.period, part.period, *shape[part.axis + 1 :]]
    starts, ends = [0] * len(split), list(split)
    starts[part.axis + 1], ends[part.axis + 1] = part.start, part.start + part.length
    if shape[part.axis] == part.period:
        del starts[part.axis], ends[part.axis]
        return r.op("Slice", value, starts=starts, ends=ends)
    taken = r.op("Slice", r.op("Reshape", value, shape=split), starts=starts, ends=ends)
    return r.op("Reshape", taken, shape=part.of(shape))


def _read_within(graph: ir.Graph, node: ir.Node, value: ir.Value, options: CompileOptions) -> None:
    """Let a slice read the part that is left of its input."""
    part, attrs = _sliced(node), attrs_of(node)
    assert part is not None
    starts, ends = list(attrs["starts"]), list(attrs["ends"])
    starts[part.axis], ends[part.axis] = 0, part.length
    made = Rewriter(graph, node, options).op_like(node, [value], starts=starts, ends=ends)
    replace_node(graph, node, [made])


# -- which parts of its operands a part of an operator's result needs ----------------------------------------------

Rule = Callable[[ir.Node, Part], Call | None]


def _desc(node: ir.Node, place: int = 0) -> TensorDesc:
    value = node.inputs[place]
    assert value is not None
    return desc_of(value)


def _operand(node: ir.Node, place: int, part: Part) -> Part | None:
    """The part of an operand that is aligned with the result at its last axes; None where all of it is needed."""
    shape, rank = _desc(node, place).shape, desc_of(node.outputs[0]).rank
    axis = part.axis - (rank - len(shape))
    return None if axis < 0 or shape[axis] == 1 else part.at(axis)


def _elementwise(node: ir.Node, part: Part) -> Call | None:
    size = desc_of(node.outputs[0]).shape[part.axis]
    found = {i: _operand(node, i, part) for i, v in enumerate(node.inputs) if v is not None}
    parts = {i: p for i, p in found.items() if p is not None}
    if any(_desc(node, i).shape[p.axis] != size for i, p in parts.items()):
        return None
    return Call(parts)


def _over_axes(node: ir.Node, part: Part) -> Call | None:
    """Softmax and norms over other axes; scales do not reach along this one."""
    rank = desc_of(node.outputs[0]).rank
    if part.axis in {a % rank for a in attrs_of(node)["axes"]}:
        return None
    scales = [i for i, v in enumerate(node.inputs) if i and v is not None]
    return Call({0: part}) if all(_operand(node, i, part) is None for i in scales) else None


def _reduction(node: ir.Node, part: Part) -> Call | None:
    attrs, rank = attrs_of(node), _desc(node).rank
    if attrs["axes"] is None:
        return None
    gone = {a % rank for a in attrs["axes"]}
    kept = [a for a in range(rank) if attrs["keepdims"] or a not in gone]
    axis = kept[part.axis]
    return Call({0: part.at(axis)}) if axis not in gone else None


def _product(node: ir.Node, part: Part) -> Call | None:
    """Rows of a product are those of its first operand; so are stacks of rows where the second is one matrix."""
    a, b = _desc(node), _desc(node, 1)
    attrs, rank = attrs_of(node), desc_of(node.outputs[0]).rank
    if a.rank != rank or a.rank < 2 or part.axis == rank - 1 or attrs["post_ops"]:
        return None
    if len(node.inputs) > 2 and node.inputs[2] is not None and _operand(node, 2, part) is not None:
        return None
    if part.axis < rank - 2:
        return Call({0: part}) if b.rank == 2 else None
    return Call({0: part.at(rank - 1) if attrs["transpose_a"] else part})


def _attention(node: ir.Node, part: Part) -> Call | None:
    """Rows of attention are those of its queries and of the mask; the last one sees all keys, causal or not."""
    q, k = _desc(node), _desc(node, 1)
    attrs: dict[str, Any] = {}
    if part.axis != q.rank - 2:
        return None
    if attrs_of(node)["causal"]:
        if (part.start, part.length, part.period) != (q.shape[-2] - 1, 1, k.shape[-2]):
            return None
        attrs["causal"] = False
    parts = {0: part}
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        mask = _operand(node, 3, part)
        if mask is not None:
            parts[3] = mask
    return Call(parts, attrs)


def _reshape(node: ir.Node, part: Part) -> Call | None:
    """A part of an axis is one of the axis, split or joined, that holds the same elements in the same order."""
    before, after = _desc(node).shape, desc_of(node.outputs[0]).shape
    inner = math.prod(after[part.axis + 1 :])
    for axis in reversed(range(len(before))):
        behind = math.prod(before[axis + 1 :])
        each = inner // behind if behind and inner % behind == 0 else 0
        if each and before[axis] % (part.period * each) == 0:
            found = Part(axis, part.period * each, part.start * each, part.length * each)
            return Call({0: found}, {"shape": part.of(after)})
    return None


def _transpose(node: ir.Node, part: Part) -> Call | None:
    return Call({0: part.at(attrs_of(node)["perm"][part.axis])})


def _concat(node: ir.Node, part: Part) -> Call | None:
    axis = attrs_of(node)["axis"] % desc_of(node.outputs[0]).rank
    return Call(dict.fromkeys(range(len(node.inputs)), part)) if axis != part.axis else None


def _slice(node: ir.Node, part: Part) -> Call | None:
    """A box that has all of this axis."""
    attrs, size = attrs_of(node), _desc(node).shape[part.axis]
    step = 1 if attrs["steps"] is None else attrs["steps"][part.axis]
    if (attrs["starts"][part.axis], attrs["ends"][part.axis], step) != (0, size, 1):
        return None
    return Call({0: part}, {"ends": part.of(attrs["ends"])})


_RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(("Softmax", "LogSoftmax", "LayerNorm", "RmsNorm"), _over_axes),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"), _reduction),
    "MatMul": _product,
    "Attention": _attention,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Concat": _concat,
    "Slice": _slice,
}
