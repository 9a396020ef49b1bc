"""Products taken out of loops: one large product instead of a small one in every step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import onnx_ir as ir

from ge.ir.values import constant_of, desc_of
from ge.ops.builder import GraphBuilder
from ge.passes.recurrence.loops import CountedLoop
from ge.passes.rewrite import RewritePass, Rewriter, Rules, attrs_of, only_use, producer, remove_dead

__all__ = ["HoistProducts"]

_MIN_STEPS = 4


class HoistProducts(RewritePass):
    """Take products out of loops of a known number of steps.

    1. A product of one item of a stack, read at a computed place, with a matrix from outside is made for the whole
       stack before the loop; each step reads its rows.
    2. A product with a matrix from outside that is only collected is made after the loop, from the collected rows.
    3. A state that each step only adds a product of columns to (aᵀ·b, the gradient of a weight) is one product of the
       collected rows after the loop; one that each step adds the sum of rows to, likewise.
    4. A loop that may end early, or of few steps, stays as it is.
    """

    name = "hoist_products"
    rules: ClassVar[Rules] = {"Loop": (lambda r, node: _hoisted(r, node),)}


Finish = Callable[..., ir.Value]  # from the collected rows to what the loop's output was


@dataclass
class _Loop:
    """A loop being taken apart: its body (a copy), what goes in, and what its outputs become."""

    r: Rewriter
    node: ir.Node
    body: ir.Graph
    steps: int
    states: list[ir.Value]  # initial values
    captures: list[ir.Value]
    scans: list[ir.Value] = field(default_factory=list)  # collected values of the body
    scan_of: dict[ir.Value, int] = field(default_factory=dict)
    changed: bool = False

    @property
    def inner_states(self) -> list[ir.Value]:
        return list(self.body.inputs[2 : 2 + len(self.states)])

    def outer(self, value: ir.Value | None) -> ir.Value | None:
        """The value outside that the body captures as this one, None when it is the body's own."""
        first = 2 + len(self.states)
        for inner, given in zip(self.body.inputs[first:], self.captures, strict=True):
            if inner is value:
                return given
        return None

    def capture(self, value: ir.Value) -> ir.Value:
        """A value outside as the body sees it."""
        desc = desc_of(value)
        self.captures.append(value)
        name = f"{value.name}.hoisted.{len(self.captures)}"
        return GraphBuilder(graph=self.body).input(name, desc.shape, desc.dtype)

    def collect(self, value: ir.Value) -> int:
        """The number of the collected output for a value of the body."""
        if value not in self.scan_of:
            self.scan_of[value] = len(self.scans)
            self.scans.append(value)
        return self.scan_of[value]


def _hoisted(r: Rewriter, node: ir.Node) -> list[ir.Value] | None:
    loop = _taken_apart(r, node)
    if loop is None:
        return None
    _rows_before(loop)
    count = len(loop.states)
    outputs = list(loop.body.outputs)
    finishes: list[tuple[str, Any]] = []  # for each output: how it comes about
    kept_states: list[int] = []
    for index in range(count):
        found = _sum_after(loop, index, outputs[1 + index])
        if found is None:
            kept_states.append(index)
        finishes.append(("sum", found) if found is not None else ("state", len(kept_states) - 1))
    for value in outputs[1 + count :]:
        rows = _rows_after(loop, value)
        finishes.append(("rows", rows) if rows is not None else ("scan", loop.collect(value)))
    if not loop.changed:
        return None
    return _rebuilt(loop, outputs, kept_states, finishes)


def _taken_apart(r: Rewriter, node: ir.Node) -> _Loop | None:
    found = CountedLoop.of(node)
    if found is None or found.steps < _MIN_STEPS:
        return None
    count = attrs_of(node)["num_states"]
    values = [v for v in node.inputs[2:] if v is not None]
    return _Loop(r, node, found.body.clone(), found.steps, values[:count], values[count:])


def _plain_product(value: ir.Value | None) -> ir.Node | None:
    """A product of two matrices, with nothing added."""
    node = producer(value, "MatMul")
    if node is None or len([v for v in node.inputs if v is not None]) != 2 or attrs_of(node)["post_ops"]:
        return None
    return node if all(desc_of(v).rank == 2 for v in node.inputs[:2] if v is not None) else None


def _matrix_outside(loop: _Loop, value: ir.Value | None) -> ir.Value | None:
    found = loop.outer(value)
    if found is None and value is not None and constant_of(value) is not None:
        found = loop.r.constant(constant_of(value))
    return found


def _rows_before(loop: _Loop) -> None:
    """Rule 1."""
    for node in list(loop.body):
        product = _plain_product(node.outputs[0]) if node.op_type == "MatMul" else None
        item = producer(product.inputs[0], "Gather") if product is not None else None
        if product is None or item is None or attrs_of(product)["transpose_a"]:
            continue
        stack, matrix = loop.outer(item.inputs[0]), _matrix_outside(loop, product.inputs[1])
        gather = attrs_of(item)
        if stack is None or matrix is None or gather["axis"] or gather.get("batch_dims"):
            continue
        shape = desc_of(stack).shape
        if len(shape) != 3 or shape[0] > 2 * loop.steps or desc_of(item.outputs[0]).rank != 2:
            continue
        flat = loop.r.op("Reshape", stack, shape=(shape[0] * shape[1], shape[2]))
        whole = loop.r.op_like(product, [flat, matrix])
        whole = loop.r.op("Reshape", whole, shape=(shape[0], shape[1], desc_of(whole).shape[-1]))
        inner = GraphBuilder(graph=loop.body, before=product)
        rows = inner.op("Gather", loop.capture(whole), item.inputs[1], axis=0)
        product.outputs[0].replace_all_uses_with(rows, replace_graph_outputs=True)
        remove_dead(loop.body, [product])
        loop.changed = True


def _stacked(r: Rewriter, rows: ir.Value) -> ir.Value:
    shape = desc_of(rows).shape
    return r.op("Reshape", rows, shape=(math.prod(shape[:2]), *shape[2:]))


def _rows_after(loop: _Loop, value: ir.Value) -> tuple[tuple[int, ...], Finish] | None:
    """Rule 2: the collected rows, and what is made of them."""
    product = _plain_product(value)
    if product is None or not _only_output(value) or attrs_of(product)["transpose_a"]:
        return None
    matrix = _matrix_outside(loop, product.inputs[1])
    if matrix is None or product.inputs[0] is None:
        return None
    shape = (loop.steps, *desc_of(value).shape)
    loop.changed = True

    def finish(rows: ir.Value) -> ir.Value:
        whole = loop.r.op_like(product, [_stacked(loop.r, rows), matrix])
        return loop.r.op("Reshape", whole, shape=shape)

    return (loop.collect(product.inputs[0]),), finish


def _only_output(value: ir.Value) -> bool:
    return not value.uses() and value.is_graph_output()


def _sum_after(loop: _Loop, index: int, value: ir.Value) -> tuple[tuple[int, ...], Finish] | None:
    """Rule 3: the collected factors, and what is made of them."""
    state, total = loop.inner_states[index], producer(value, "Add")
    if total is None or not _only_output(value) or not only_use(state) or state not in total.inputs:
        return None
    added = total.inputs[0] if total.inputs[1] is state else total.inputs[1]
    if added is None or added is state or not only_use(added) or desc_of(added) != desc_of(state):
        return None
    product, rows = _plain_product(added), producer(added, "ReduceSum")
    initial = loop.states[index]
    if product is not None and attrs_of(product)["transpose_a"] and not attrs_of(product)["transpose_b"]:
        factors = [loop.collect(v) for v in product.inputs[:2] if v is not None]

        def multiply(*stacks: ir.Value) -> ir.Value:
            flat = [_stacked(loop.r, s) for s in stacks]
            return loop.r.op("Add", loop.r.op_like(product, flat), initial)

        loop.changed = True
        return tuple(factors), multiply
    if rows is not None and tuple(attrs_of(rows)["axes"]) == (0,) and not attrs_of(rows)["keepdims"]:
        source = rows.inputs[0]
        assert source is not None

        def add(stack: ir.Value) -> ir.Value:
            return loop.r.op("Add", loop.r.op_like(rows, [_stacked(loop.r, stack)]), initial)

        return (loop.collect(source),), add
    return None


def _rebuilt(
    loop: _Loop, outputs: list[ir.Value], kept: list[int], finishes: list[tuple[str, Any]]
) -> list[ir.Value]:
    body, count = loop.body, len(loop.states)
    states = [loop.states[i] for i in kept]
    gone = [v for i, v in enumerate(loop.inner_states) if i not in kept]
    new_outputs = [outputs[0], *(outputs[1 + i] for i in kept), *loop.scans]
    body.outputs.clear()
    body.outputs.extend(new_outputs)
    remove_dead(body, [n for v in outputs if (n := v.producer()) is not None and v not in new_outputs])
    for value in gone:
        body.inputs.remove(value)
    assert len(body.inputs) == 2 + len(states) + len(loop.captures) and count >= len(states)
    made = list(
        loop.r.ops(
            "Loop",
            (loop.node.inputs[0], None, *states, *loop.captures),
            body=body,
            num_states=len(states),
            max_trip=loop.steps,
        )
    )
    scans = made[len(states) :]
    results: list[ir.Value] = []
    for kind, found in finishes:
        if kind == "state":
            results.append(made[found])
        elif kind == "scan":
            results.append(scans[found])
        else:
            places, finish = found
            results.append(finish(*(scans[p] for p in places)))
    return results
