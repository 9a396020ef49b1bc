"""Batch tiling: processes a large batch in cache-sized steps.

Contract of `split_batch`:
1. It applies only if rows of the outputs depend on the same rows of the inputs that carry the batch, as the dataflow of
   every operator in between must show. One operator that does not leaves the graph unchanged.
2. The graph then holds one step of the batch; the plan repeats it over the batch in one native call.
3. The step is the divisor of the batch with the least traffic to main memory: weights are read once per step (once in
   total if they fit the cache); what a node reads and writes goes to memory only if it does not fit.
4. Results are the same: every row is computed by the same operations.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from ge.ir import facts
from ge.ir.types import TensorDesc
from ge.ir.values import constant_of, desc_of, set_desc
from ge.ops.base import Engine, NodeView, dataflow_of, has_dynamic_size, is_custom, lookup
from ge.ops.builder import make_attribute
from ge.ops.dataflow import Part, Sliced, check_promise
from ge.options import CompileOptions
from ge.passes.base import Pass
from ge.target import Target

__all__ = ["SplitBatch", "is_leading_part"]

WORTHWHILE = 0.85  # of the whole batch's traffic, as the pass models it: a margin for its errors, no time


class SplitBatch(Pass):
    """Shrink the graph to one step of its batch (`facts.steps` is the number of steps); nested graphs stay."""

    name: ClassVar[str] = "split_batch"
    visits_nested: ClassVar[bool] = False

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        if options.target.kind != "cpu":
            return False
        batch = max((desc_of(v).shape[0] for v in graph.inputs if desc_of(v).rank), default=1)
        found = _parts(graph, batch, 1) if batch > 1 else None
        if found is None:
            return False
        steps = _best_steps(graph, found[0], batch, options.target)
        step = _parts(graph, batch, batch // steps) if steps > 1 else None
        if step is None:
            return False
        _shrink(graph, *step)
        facts.set_steps(graph, steps)
        return True


# -- what a part of the batch needs --------------------------------------------------------------------------------

Changes = dict[ir.Node, dict[str, Any]]  # attributes of nodes that compute a part
Parts = dict[ir.Value, Part]  # the values that carry the batch, and the part of them in one step


def is_leading_part(
    whole: ir.Graph, part: ir.Graph, rows: tuple[int, int], carriers: Collection[int]
) -> bool:
    """True if one graph computes the first rows of another graph's results, from the first rows of its inputs.

    rows: the row counts of the whole and of the part. carriers: the inputs whose first axis are the rows. The proof
    fails if a number in the graphs depends on the row count.
    """
    found = _parts(whole, *rows, frozenset(whole.inputs[i] for i in carriers))
    if found is None:
        return False
    parts, changes = found
    alike: dict[ir.Value | None, ir.Value | None] = {None: None}
    alike.update(zip(whole.inputs, part.inputs, strict=True))

    def fits(of_whole: ir.Value | None, of_part: ir.Value | None) -> bool:
        if of_whole in alike:
            return alike[of_whole] is of_part
        theirs, ours = constant_of(of_whole), constant_of(of_part)
        return (
            theirs is not None
            and ours is not None
            and theirs.dtype == ours.dtype
            and np.array_equal(theirs, ours)
        )

    def sized(of_whole: ir.Value, of_part: ir.Value) -> bool:
        desc = desc_of(of_whole)
        shape = tuple(parts[of_whole].of(desc.shape)) if of_whole in parts else desc.shape
        return TensorDesc(shape, desc.dtype) == desc_of(of_part)

    if len(whole) != len(part) or len(whole.outputs) != len(part.outputs):
        return False
    for theirs, ours in zip(whole, part, strict=True):
        attrs = dict(NodeView.of(theirs).attrs) | changes.get(theirs, {})
        if theirs.op_type != ours.op_type or len(theirs.inputs) != len(ours.inputs):
            return False
        if not _same(attrs, NodeView.of(ours).attrs) or not all(map(fits, theirs.inputs, ours.inputs)):
            return False
        if not all(map(sized, theirs.outputs, ours.outputs)):
            return False
        alike.update(zip(theirs.outputs, ours.outputs, strict=True))
    return all(map(fits, whole.outputs, part.outputs))


def _same(attrs: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """True if attributes are equal; nested graphs are not compared and count as different."""

    def plain(value: Any) -> Any:
        return tuple(value) if isinstance(value, list | tuple) else value

    return attrs.keys() == others.keys() and all(plain(attrs[k]) == plain(others[k]) for k in attrs)


def _parts(
    graph: ir.Graph, batch: int, size: int, carriers: Collection[ir.Value] | None = None
) -> tuple[Parts, Changes] | None:
    """The part of each value that `size` elements of the batch need, and the attributes that change with it.

    None unless the outputs need exactly those rows of all inputs that carry the batch (by default, those that have it
    as their first axis), and no part of any other value.
    """
    if carriers is None:
        carriers = {v for v in graph.inputs if desc_of(v).rank and desc_of(v).shape[0] == batch}
    parts: Parts = {}
    changes: Changes = {}
    for value in graph.outputs:
        extent = desc_of(value).shape[0] if desc_of(value).rank else 0
        if extent == 0 or extent % batch:
            return None
        parts[value] = Part(0, extent, 0, extent // batch * size)
    whole: set[ir.Value] = set()
    for node in reversed(graph):
        found = {parts.get(v) for v in node.outputs if v in parts or v in whole or v.is_graph_output()}
        if found <= {None}:
            if _effects(node):
                return None
            whole.update(v for v in node.inputs if v is not None)
            continue
        part = found.pop()
        if part is None or found or (sliced := _steady(node, part)) is None:
            return None
        changes[node] = sliced.attrs
        parts.update((v, part) for v in node.outputs)
        for index, operand in enumerate(node.inputs):
            if operand is None:
                continue
            needed = sliced.parts.get(index)
            if needed is None:
                whole.add(operand)
            elif parts.setdefault(operand, needed) != needed:
                return None
    if any(v in whole or constant_of(v) is not None for v in parts):
        return None
    return (
        (parts, changes)
        if all(_fed(v, parts, Part(0, batch, 0, size), v in carriers) for v in graph.inputs)
        else None
    )


def _fed(value: ir.Value, parts: Parts, rows: Part, carries: bool) -> bool:
    """True if each step reads the next rows of an input, or all of an input that does not carry the batch."""
    if not carries:
        return value not in parts
    return not value.uses() or parts.get(value) == rows


def _steady(node: ir.Node, part: Part) -> Sliced | None:
    """How a node computes a part of all its outputs, if every step does so alike."""
    flow = dataflow_of(node)
    extents = {desc_of(v).shape[part.axis : part.axis + 1] for v in node.outputs}
    if flow is None or len(extents) != 1 or extents == {()} or has_dynamic_size(node.outputs[0]):
        return None
    view = NodeView.of(node)
    first, last = (flow.slice(view, replace(part, start=start)) for start in (0, part.period - part.length))
    if first is None or last is None or first.attrs != last.attrs:
        return None
    alike = {i: replace(p, start=0) for i, p in last.parts.items()} == first.parts
    return first if alike else None


def _effects(node: ir.Node) -> bool:
    operator = lookup(node.op_type)
    return not operator.foldable or operator.dynamic_outputs or operator.engine is Engine.CONTROL


# -- the number of steps -------------------------------------------------------------------------------------------


def _best_steps(graph: ir.Graph, parts: Parts, batch: int, target: Target) -> int:
    cache = target.cache_bytes // 2  # the size of a node's tensors that remain in cache for the next node
    weights = sum(_stored(v) for v in graph.initializers.values())
    moved = [
        sum(_stored(v) for v in (*node.inputs, *node.outputs) if v is not None and v in parts)
        for node in graph
    ]

    def traffic(steps: int) -> int:
        read = weights * steps if weights > cache else weights
        return read + sum(n for n in moved if n > cache * steps)

    small = [n for n in range(1, math.isqrt(batch) + 1) if batch % n == 0]
    best = min(sorted({*small, *(batch // n for n in small)}), key=traffic)
    return best if traffic(best) < WORTHWHILE * traffic(1) else 1


def _stored(value: ir.Value) -> int:
    desc = desc_of(value)
    return TensorDesc(desc.shape, facts.storage_dtype(value)).nbytes


# -- one step of the batch ---------------------------------------------------------------------------------------


def _shrink(graph: ir.Graph, parts: Parts, changes: Changes) -> None:
    for node, attrs in changes.items():
        for name, value in attrs.items():
            node.attributes[name] = make_attribute(name, value)
    for value, part in parts.items():
        desc = desc_of(value)
        set_desc(value, TensorDesc(tuple(part.of(desc.shape)), desc.dtype))
    for node in changes:
        operator = lookup(node.op_type)
        if is_custom(operator):
            view = NodeView.of(node)
            for desc, made in zip(view.outputs, operator.describe(view), strict=True):
                check_promise(view, desc.shape, made.shape)
