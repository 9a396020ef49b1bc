"""Raises Loops over the rows of tensors to Scan operators, and lowers Scans to Loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ge.ir.values import desc_of
from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions
from ge.passes.recurrence.loops import behind, counted_steps
from ge.passes.rewrite import RewritePass, Rewriter, Rules, attrs_of, producer, remove_dead, scalar

__all__ = ["LowerScans", "RaiseLoops"]


def _place(index: ir.Value | None, counter: ir.Value) -> tuple[int, int] | None:
    """An index of the form start + direction * counter, as (start, direction)."""
    index = behind(index, views=True, casts=True)
    if index is counter:
        return 0, 1
    node = producer(index, "Add", "Sub")
    if node is None:
        return None
    left, right = node.inputs[:2]
    sign = 1 if node.op_type == "Add" else -1
    for value, number, own, other in ((left, right, 1, sign), (right, left, sign, 1)):
        inner, offset = _place(value, counter), scalar(number)
        if inner is not None and offset is not None and float(offset).is_integer():
            return own * inner[0] + other * int(offset), own * inner[1]
    return None


def _row(steps: int, body: ir.Graph, node: ir.Node) -> tuple[ir.Value, int, int] | None:
    """The tensor whose row of this step a node reads: (value in the body, first row, direction)."""
    if node.op_type != "Gather" or attrs_of(node)["axis"] or attrs_of(node).get("batch_dims"):
        return None
    stack, index = node.inputs[:2]
    assert stack is not None and index is not None
    place = _place(index, body.inputs[0])
    if place is None or desc_of(index).rank or stack not in body.inputs[2:]:
        return None
    start, direction = place
    last = start + direction * (steps - 1)
    if min(start, last) < 0 or max(start, last) >= desc_of(stack).shape[0]:
        return None
    return stack, min(start, last), direction


def _raised(r: Rewriter, node: ir.Node) -> list[ir.Value] | None:
    steps = counted_steps(node)
    if steps is None:
        return None
    body, count = attrs_of(node)["body"].clone(), attrs_of(node)["num_states"]
    given = dict(zip(body.inputs[2:], [v for v in node.inputs[2:] if v is not None], strict=True))
    captures = list(body.inputs)[2 + count :]
    found = [(n, row) for n in body if (row := _row(steps, body, n)) is not None and row[0] in captures]
    reverse = 2 * sum(direction < 0 for _, (_, _, direction) in found) > len(found)
    inner = GraphBuilder(graph=body)
    rows: dict[
        tuple[ir.Value, int, int], tuple[ir.Value, ir.Value]
    ] = {}  # the value in the body, and the tensor outside
    for reader, place in found:
        if place not in rows:
            desc, stack = desc_of(reader.outputs[0]), _window(r, given[place[0]], steps, place, reverse)
            rows[place] = inner.input(f"{stack.name}.row.{len(body.inputs)}", desc.shape, desc.dtype), stack
        reader.outputs[0].replace_all_uses_with(rows[place][0], replace_graph_outputs=True)
        remove_dead(body, [reader])
    counter, going = body.inputs[:2]
    if counter.uses() or counter.is_graph_output():
        numbers = np.arange(steps, dtype=np.int64)
        number = inner.input(f"{counter.name}.row", (), "int64")
        rows[counter, 0, 1] = number, r.constant(numbers[::-1] if reverse else numbers)
        counter.replace_all_uses_with(number, replace_graph_outputs=True)
    outputs = list(body.outputs)[1:]
    body.outputs.clear()
    for value in outputs:
        inner.output(value)
    if going.uses() or going.is_graph_output():
        going.replace_all_uses_with(inner.constant(np.asarray(True)), replace_graph_outputs=True)
    _drop_dead(body)
    states = list(body.inputs)[2 : 2 + count]
    read = [v for v in captures if v.uses() or v.is_graph_output()]
    body.inputs[:] = [*states, *(row for row, _ in rows.values()), *read]
    operands = [
        *(given[v] for v in states),
        *(stack for _, stack in rows.values()),
        *(given[v] for v in read),
    ]
    made = r.ops(
        "Scan", operands, body=body, num_states=count, num_rows=len(rows), steps=steps, reverse=reverse
    )
    return [*made[:count], *(_turned(r, v, reverse) for v in made[count:])]


def _window(
    r: Rewriter, stack: ir.Value, steps: int, place: tuple[ir.Value, int, int], reverse: bool
) -> ir.Value:
    """The rows of a tensor that the steps read, in the order of a Scan."""
    shape, start = desc_of(stack).shape, place[1]
    if shape[0] != steps:
        rest = len(shape) - 1
        stack = r.op("Slice", stack, starts=[start, *[0] * rest], ends=[start + steps, *shape[1:]])
    return _turned(r, stack, (place[2] < 0) != reverse)


def _turned(r: Rewriter, stack: ir.Value, turn: bool) -> ir.Value:
    return r.op("Reverse", stack, axes=[0]) if turn else stack


def _drop_dead(body: ir.Graph) -> None:
    remove_dead(body, [n for n in body if not any(v.uses() or v.is_graph_output() for v in n.outputs)])


class RaiseLoops(RewritePass):
    """Raise Loops to Scan operators.

    1. A Loop that ends only after a known number of steps is a Scan. Tensors that it reads at an index that moves by
       one row per step, forward or backward, become the Scan's rows; the majority decides the Scan's direction.
    2. Other uses of the counter read a row of the tensor of step numbers.
    3. Loops that can end early, or whose trip count is computed, stay Loops; so do all if `lower_scans`, without which
       nothing runs a Scan, is disabled.
    """

    name = "raise_loops"
    rules: ClassVar[Rules] = {"Loop": (_raised,)}

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        return LowerScans.name not in options.disabled_passes and super().run(graph, options)


# -- lowering ----------------------------------------------------------------------------------------------------


def _lowered(r: Rewriter, node: ir.Node) -> list[ir.Value]:
    attrs = attrs_of(node)
    body, steps, reverse = attrs["body"].clone(), attrs["steps"], attrs["reverse"]
    count, last = attrs["num_states"], attrs["num_states"] + attrs["num_rows"]
    inputs: Sequence[ir.Value] = list(body.inputs)
    inner = GraphBuilder(graph=body, before=next(iter(body), None))
    body.inputs.clear()
    counter, going = inner.input("step", (), "int64"), inner.input("going", (), "bool")
    body.inputs.extend(inputs[:count])
    given = [v for v in node.inputs if v is not None]
    place = inner.op("Sub", np.asarray(steps - 1, np.int64), counter) if reverse else counter
    for row, stack in zip(inputs[count:last], given[count:last], strict=True):
        desc = desc_of(stack)
        whole = inner.input(f"{row.name}.stack", desc.shape, desc.dtype)
        value = inner.op("Gather", whole, place, axis=0)
        row.replace_all_uses_with(value, replace_graph_outputs=True)
    body.inputs.extend(inputs[last:])
    outputs = list(body.outputs)
    body.outputs.clear()
    inner = GraphBuilder(graph=body)
    for value in (going, *outputs):
        inner.output(value)
    trip = r.constant(np.asarray(steps, np.int64))
    made = r.ops("Loop", [trip, None, *given], body=body, num_states=count, max_trip=steps)
    return [*made[:count], *(_turned(r, v, reverse) for v in made[count:])]


class LowerScans(RewritePass):
    """Lower Scan operators to counted Loops."""

    name = "lower_scans"
    rules: ClassVar[Rules] = {"Scan": (_lowered,)}
