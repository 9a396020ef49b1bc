"""Products taken out of loops: each rule of the pass, and answers as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from ge.ops.builder import GraphBuilder
from ge.ops.interpret import interpret
from ge.options import CompileOptions
from ge.passes.base import run_passes
from ge.passes.recurrence.hoist_products import HoistProducts
from tests.support.small_graphs import assert_close, compiled, feeds_of, graph_of

STEPS = 6
Step = Callable[[GraphBuilder, Any, Any], tuple[Any, Any]]


def looping(step: Step, state_shape: tuple[int, ...], trip: int = STEPS) -> Callable[[GraphBuilder], Any]:
    """A graph with a loop whose step turns (iteration, state) into (new state, collected value)."""

    def build(b: GraphBuilder) -> Any:
        outer["x"], outer["w"] = b.input("x", (STEPS, 3, 4), "float32"), b.input("w", (4, 5), "float32")
        outer["y"] = b.input("y", (STEPS, 3, 5), "float32")
        initial = b.input("s", state_shape, "float32")
        body = b.subgraph("body")
        count = body.input("i", (), "int64")
        body.input("c", (), "bool")
        state = body.input("state", state_shape, "float32")
        after, collected = step(body, count, state)
        body.output(body.op("Identity", body.constant(np.bool_(True))))
        body.output(after)
        body.output(collected)
        return b.ops(
            "Loop",
            (b.constant(np.int64(trip)), None, initial, *body.captures()),
            body=body.graph,
            num_states=1,
            max_trip=trip,
        )

    outer: dict[str, Any] = {}
    step_with = step
    step = lambda body, count, state: step_with(_Seen(body, outer), count, state)  # type: ignore[arg-type, return-value] # noqa: E731
    return build


class _Seen:
    """A builder of a body that also knows the values outside by name."""

    def __init__(self, body: GraphBuilder, outer: dict[str, Any]) -> None:
        self.body, self.outer = body, outer

    def op(self, *args: Any, **attrs: Any) -> Any:
        return self.body.op(*args, **attrs)

    def __getattr__(self, name: str) -> Any:
        return self.outer[name]


def row_by_matrix(b: Any, i: Any, s: Any) -> tuple[Any, Any]:
    z = b.op("Tanh", b.op("Add", b.op("MatMul", b.op("Gather", b.x, i, axis=0), b.w), s))
    return z, z


def collected_product(b: Any, i: Any, s: Any) -> tuple[Any, Any]:
    z = b.op("Tanh", b.op("Add", b.op("Gather", b.x, i, axis=0), s))
    return z, b.op("MatMul", z, b.w)


def summed_products(b: Any, i: Any, s: Any) -> tuple[Any, Any]:
    x, y = b.op("Gather", b.x, i, axis=0), b.op("Exp", b.op("Gather", b.y, i, axis=0))
    return b.op("Add", s, b.op("MatMul", x, y, transpose_a=True)), y


def summed_rows(b: Any, i: Any, s: Any) -> tuple[Any, Any]:
    x, y = b.op("Gather", b.x, i, axis=0), b.op("Exp", b.op("Gather", b.y, i, axis=0))
    return b.op("Add", b.op("ReduceSum", y, axes=(0,)), s), b.op("MatMul", x, b.w)


CASES: dict[str, tuple[Step, tuple[int, ...]]] = {
    "row_by_matrix": (row_by_matrix, (3, 5)),
    "collected_product": (collected_product, (3, 4)),
    "summed_products": (summed_products, (4, 5)),
    "summed_rows": (summed_rows, (5,)),
}


def _products_inside(graph: ir.Graph) -> int:
    loops = [n for n in graph if n.op_type == "Loop"]
    return sum(n.op_type == "MatMul" for loop in loops for n in loop.attributes["body"].value)


@pytest.mark.parametrize("name", CASES)
def test_products_leave_the_loop(name: str) -> None:
    step, shape = CASES[name]
    graph = graph_of(looping(step, shape))
    feeds = feeds_of(graph)
    expected = interpret(graph, feeds)
    changed = graph.clone()
    assert run_passes(changed, (HoistProducts(),), CompileOptions())
    assert _products_inside(changed) == 0
    assert_close(interpret(changed, feeds), expected, 1e-5)
    compiled(graph)


def test_a_short_loop_stays() -> None:
    graph = graph_of(looping(row_by_matrix, (3, 5), trip=3))
    assert not run_passes(graph, (HoistProducts(),), CompileOptions())


def test_a_sum_that_is_read_in_the_loop_stays() -> None:
    def step(b: Any, i: Any, s: Any) -> tuple[Any, Any]:
        x, y = b.op("Gather", b.x, i, axis=0), b.op("Gather", b.y, i, axis=0)
        return b.op("Add", s, b.op("MatMul", x, y, transpose_a=True)), b.op("Tanh", s)

    graph = graph_of(looping(step, (4, 5)))
    run_passes(graph, (HoistProducts(),), CompileOptions())
    assert _products_inside(graph) == 1
