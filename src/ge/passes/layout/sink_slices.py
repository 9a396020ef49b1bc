"""Slice sinking: push slices toward the inputs, so that unused rows are never computed.

Contract of `sink_slices`:
1. A node computes a part of its result if all its readers read only that part and the operator's dataflow maps it to
   parts of its inputs. A reader is a slice, or a node that itself computes a part.
2. A node that may fail on its values is computed in full.
3. Nothing changes unless an AI Core task (a product, an attention) becomes smaller. Results stay the same.
"""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from ge.ir.values import desc_of
from ge.ops.base import Engine, NodeView, dataflow_of, has_dynamic_size, lookup
from ge.ops.dataflow import Part, Sliced, check_promise
from ge.options import CompileOptions
from ge.passes.base import Pass
from ge.passes.rewrite import Rewriter, attrs_of, replace_node

__all__ = ["SinkSlices"]


class SinkSlices(Pass):
    """Move slices up where a product becomes smaller."""

    name: ClassVar[str] = "sink_slices"

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        calls = _calls(graph)
        if not any(lookup(node.op_type).engine is Engine.AI_CORE for node in calls):
            return False
        _narrow(graph, calls, options)
        return True


Calls = dict[ir.Node, tuple[Part, Sliced]]  # the part of its first output that a node computes, and how


def _calls(graph: ir.Graph) -> Calls:
    """The nodes that compute a part, in reverse topological order."""
    calls: Calls = {}
    for node in reversed(graph):
        value, *others = node.outputs
        if value.is_graph_output() or any(v.uses() or v.is_graph_output() for v in others):
            continue
        read = {_read(graph, calls, use.node, use.idx) for use in value.uses()}
        if len(read) != 1 or (part := read.pop()) is None or has_dynamic_size(value):
            continue
        flow = dataflow_of(node)
        if flow is None or lookup(node.op_type).may_fail:
            continue
        call = flow.slice(NodeView.of(node), part)
        if call is not None and call.parts:
            calls[node] = part, call
    return calls


def _read(graph: ir.Graph, calls: Calls, node: ir.Node, place: int) -> Part | None:
    """The part of an input that a node reads, None for all of it."""
    if node.graph is not graph:
        return None
    return calls[node][1].parts.get(place) if node in calls else _sliced(node)


def _sliced(node: ir.Node) -> Part | None:
    """The part of an axis that a slice reads, if it is at most half of it."""
    if node.op_type != "Slice" or node.domain != "ge":
        return None
    attrs = attrs_of(node)
    assert node.inputs[0] is not None
    sizes = desc_of(node.inputs[0]).shape
    for axis, (size, start, end) in enumerate(zip(sizes, attrs["starts"], attrs["ends"], strict=True)):
        if (attrs["steps"] is None or attrs["steps"][axis] == 1) and 0 < 2 * (end - start) <= size:
            return Part(axis, size, start, end - start)
    return None


def _narrow(graph: ir.Graph, calls: Calls, options: CompileOptions) -> None:
    """Replace nodes by nodes that compute parts of their results."""
    parts: dict[ir.Value, ir.Value] = {}
    for node in reversed(calls):
        r, (computed, call) = Rewriter(graph, node, options), calls[node]
        inputs = list(node.inputs)
        for place, part in call.parts.items():
            value = inputs[place]
            assert value is not None
            inputs[place] = parts[value] if value in parts else _part_of(r, value, part)
        made = r.op_like(node, inputs, **call.attrs)
        first = parts[node.outputs[0]] = made[0] if isinstance(made, tuple) else made
        promised = computed.of(desc_of(node.outputs[0]).shape)
        check_promise(NodeView.of(node), promised, desc_of(first).shape)
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
    """Rewrite a slice to read the remaining part of its input."""
    part, attrs = _sliced(node), attrs_of(node)
    assert part is not None
    starts, ends = list(attrs["starts"]), list(attrs["ends"])
    starts[part.axis], ends[part.axis] = 0, part.length
    made = Rewriter(graph, node, options).op_like(node, [value], starts=starts, ends=ends)
    replace_node(graph, node, [made])
