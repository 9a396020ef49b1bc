"""Loop fission: each rule of the pass, and answers as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from ge.compiler import compile_graph
from ge.ops.builder import GraphBuilder
from ge.ops.interpret import interpret
from ge.options import CompileOptions
from ge.passes.base import to_fixpoint
from ge.passes.recurrence.fission import Fission
from ge.passes.recurrence.raise_loops import LowerScans, RaiseLoops
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


def _inside(graph: ir.Graph) -> list[str]:
    """The operators in the bodies of loops."""
    loops = [n for n in graph if n.op_type in ("Loop", "Scan")]
    return [n.op_type for loop in loops for n in loop.attributes["body"].value]


def _split(step: Step, shape: tuple[int, ...], trip: int = STEPS) -> ir.Graph:
    """The graph after fission; its answers, as a Scan and as a Loop again, are those of before."""
    graph = graph_of(looping(step, shape, trip))
    feeds = feeds_of(graph)
    expected = interpret(graph, feeds)
    changed = graph.clone()
    to_fixpoint(changed, (RaiseLoops(), Fission()), CompileOptions())
    assert_close(interpret(changed, feeds), expected, 1e-5)
    lowered = changed.clone()
    to_fixpoint(lowered, (LowerScans(),), CompileOptions())
    assert_close(interpret(lowered, feeds), expected, 1e-5)
    compiled(graph)
    return changed


@pytest.mark.parametrize("name", CASES)
def test_products_leave_the_loop(name: str) -> None:
    assert "MatMul" not in _inside(_split(*CASES[name]))


def test_a_sum_that_is_read_in_the_loop_stays() -> None:
    def step(b: Any, i: Any, s: Any) -> tuple[Any, Any]:
        x, y = b.op("Gather", b.x, i, axis=0), b.op("Gather", b.y, i, axis=0)
        return b.op("Add", s, b.op("MatMul", x, y, transpose_a=True)), b.op("Tanh", s)

    found = _inside(_split(step, (4, 5)))
    assert "Add" in found
    assert "Tanh" not in found, "what is made of the sums leaves"


@pytest.mark.parametrize("read", ["Identity", "Tanh", None])
@pytest.mark.parametrize("added", ["the same", "rows", "products"])
def test_a_sum_whose_partial_sums_are_collected_stays(added: str, read: str | None) -> None:
    def step(b: Any, i: Any, s: Any) -> tuple[Any, Any]:
        x, y = b.op("Gather", b.x, i, axis=0), b.op("Gather", b.y, i, axis=0)
        products = b.op("MatMul", x, y, transpose_a=True)
        term = {"the same": b.w, "rows": b.op("Exp", products), "products": products}[added]
        total = b.op("Add", b.op("Add", s, term), term)
        return total, total if read is None else b.op(read, total)

    assert "Add" in _inside(_split(step, (4, 5)))


def test_what_is_the_same_in_every_step_leaves() -> None:
    def step(b: Any, i: Any, s: Any) -> tuple[Any, Any]:
        weights = b.op("Transpose", b.op("Exp", b.w), perm=[1, 0])
        z = b.op("Tanh", b.op("MatMul", s, weights))
        return b.op("MatMul", z, b.w), weights

    found = _split(step, (3, 5))
    assert sorted(set(_inside(found))) == ["MatMul", "Tanh"]


def test_a_loop_without_a_state_vanishes() -> None:
    def step(b: Any, i: Any, s: Any) -> tuple[Any, Any]:
        return b.op("Identity", s), b.op("Sigmoid", b.op("MatMul", b.op("Gather", b.x, i, axis=0), b.w))

    assert not _inside(_split(step, (2,)))


def test_rows_may_be_read_from_the_last_on() -> None:
    def step(b: Any, i: Any, s: Any) -> tuple[Any, Any]:
        back = b.op("Sub", np.int64(STEPS - 1), i)
        z = b.op("Tanh", b.op("Add", b.op("MatMul", b.op("Gather", b.x, back, axis=0), b.w), s))
        return z, b.op("Mul", b.op("Gather", b.y, back, axis=0), s)

    found = _split(step, (3, 5))
    (scan,) = [n for n in found if n.op_type == "Scan"]
    assert scan.attributes["reverse"].value and set(_inside(found)) == {"Add", "Tanh", "Identity"}


def test_the_counter_may_be_read() -> None:
    def step(b: Any, i: Any, s: Any) -> tuple[Any, Any]:
        late = b.op("Greater", i, np.int64(2))
        z = b.op("Select", late, b.op("Gather", b.y, i, axis=0), s)
        return z, b.op("Mul", z, b.op("Cast", i, to="float32"))

    assert "Mul" not in _inside(_split(step, (3, 5)))


def test_a_window_of_rows() -> None:
    def step(b: Any, i: Any, s: Any) -> tuple[Any, Any]:
        z = b.op("Tanh", b.op("Add", b.op("Gather", b.y, b.op("Add", i, np.int64(2)), axis=0), s))
        return z, z

    assert "Gather" not in _inside(_split(step, (3, 5), trip=4))


def test_sums_of_rows_that_only_they_need_stay() -> None:
    def step(b: Any, i: Any, s: Any) -> tuple[Any, Any]:
        x = b.op("Gather", b.x, i, axis=0)
        return b.op("Add", s, b.op("ReduceSum", b.op("Tanh", b.op("Add", s, x)), axes=(0,), keepdims=True)), x

    assert "ReduceSum" in _inside(_split(step, (1, 4)))


# Uses of operators on a row (3, 4) and a matrix (4, 5) from outside.
USES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "Aligned": lambda b, x, w: b.op("Add", b.op("ReduceSum", x, axes=[0]), x),
    "Concat": lambda b, x, w: b.op("Concat", x, b.op("Transpose", w, perm=[1, 0]), x, axis=0),
    "Split": lambda b, x, w: b.op("Mul", *b.op("Split", x, axis=1, sizes=[2, 2])),
    "Transpose": lambda b, x, w: b.op("Transpose", x, perm=[1, 0]),
    "Slice": lambda b, x, w: b.op("Slice", x, starts=[2, 0], ends=[-1, 4], steps=[-1, 2]),
    "Pad": lambda b, x, w: b.op("Pad", x, low=[1, 0], high=[0, 2]),
    "BroadcastTo": lambda b, x, w: b.op("BroadcastTo", x, shape=[2, 3, 4]),
    "Reshape": lambda b, x, w: b.op("Reshape", x, shape=[2, 6]),
    "ReduceMax": lambda b, x, w: b.op("ReduceMax", x, axes=[1], keepdims=True),
    "Softmax": lambda b, x, w: b.op("Softmax", x, axes=[-1]),
    "Gather": lambda b, x, w: b.op("Gather", x, np.asarray([1, 0]), axis=1),
    "MatMul": lambda b, x, w: b.op("MatMul", x, w),
    "MatMul of columns": lambda b, x, w: b.op("MatMul", x, x, transpose_a=True),
    "MatMul of the other": lambda b, x, w: b.op("MatMul", w, x, transpose_a=True, transpose_b=True),
    "Conv": lambda b, x, w: b.op(
        "Conv", b.op("Reshape", x, shape=[1, 3, 2, 2]), np.ones((2, 3, 1, 1), np.float32)
    ),
}


@pytest.mark.parametrize("op", USES)
def test_operators_on_all_rows_at_once(op: str) -> None:
    def step(b: Any, i: Any, s: Any) -> tuple[Any, Any]:
        return b.op("Identity", s), USES[op](b, b.op("Gather", b.x, i, axis=0), b.w)

    assert not _inside(_split(step, (2,)))


@pytest.mark.parametrize("off", ["raise_loops", "fission", "lower_scans"])
def test_each_pass_can_be_switched_off(off: str) -> None:
    graph = graph_of(looping(row_by_matrix, (3, 5)))
    feeds = feeds_of(graph)
    model = compile_graph(graph.clone(), CompileOptions(disabled_passes=frozenset({off})))
    assert_close(model.run(feeds), interpret(graph, feeds), 1e-5)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("trip", [1, 2, 5])
def test_states_may_take_one_anothers_place(count: int, trip: int) -> None:
    def build(b: GraphBuilder) -> Any:
        initial = [b.input(f"s{n}", (2,), "float32") for n in range(count)]
        body = b.subgraph("body")
        body.input("i", (), "int64")
        body.input("c", (), "bool")
        states = [body.input(f"state{n}", (2,), "float32") for n in range(count)]
        for value in (body.constant(np.bool_(True)), *states[1:], states[0], states[-1]):
            body.output(body.op("Identity", value))
        return b.ops(
            "Loop",
            (b.constant(np.int64(trip)), None, *initial, *body.captures()),
            body=body.graph,
            num_states=count,
            max_trip=trip,
        )

    given = [np.full(2, n, np.float32) for n in range(count)]
    *last, stacked = compiled(graph_of(build)).run(given)
    assert [int(v[0]) for v in last] == [(n + trip) % count for n in range(count)]
    assert stacked[:, 0].tolist() == [(count - 1 + step) % count for step in range(trip)]
