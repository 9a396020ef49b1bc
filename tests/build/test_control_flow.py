"""Branches and loops as nested blocks."""

from __future__ import annotations

import numpy as np
import pytest

from ge.compiler import compile_graph
from ge.errors import GeError
from ge.ops.builder import GraphBuilder
from ge.ops.flow.control import branch
from ge.ops.interpret import interpret
from tests.support.small_graphs import assert_close, compiled, feeds_of, floats, kinds


def x(b, *shape, name="x", dtype="float32"):
    return b.input(name, shape or (4, 8), dtype)


def test_both_branches_leave_their_results_in_the_same_place():
    b = GraphBuilder("test")
    v = b.op("Exp", b.input("x", (4, 8), "float32"))
    condition = b.input("c", (), "bool")
    (result,) = branch(
        b,
        condition,
        lambda inner: [inner.op("MatMul", inner.op("Tanh", v), floats(8, 8))],
        lambda inner: [inner.op("Softmax", v)],
    )
    b.output(b.op("Neg", result))
    model = compile_graph(b.graph)
    for taken in (True, False):
        feeds = [floats(4, 8), np.asarray(taken)]
        assert_close(model.run(feeds), interpret(b.graph, feeds), 2e-5)


def test_branches_that_return_what_they_were_given():
    b = GraphBuilder("test")
    v, condition = b.input("x", (4,), "float32"), b.input("c", (), "bool")
    results = branch(
        b, condition, lambda inner: [v, v], lambda inner: [inner.op("Neg", v), inner.constant(floats(4))]
    )
    for value in results:
        b.output(value)
    model = compile_graph(b.graph)
    for taken in (True, False):
        feeds = [floats(4), np.asarray(taken)]
        assert_close(model.run(feeds), interpret(b.graph, feeds), 1e-6)


def loop_graph(trip=None, stacked=False, dynamic=False):
    """State doubles and a counter of its own runs until a limit; optionally stacks and has a computed trip count."""
    b = GraphBuilder("test")
    start = b.input("x", (2, 3), "float32")
    count = (
        b.input("trip", (), "int64")
        if dynamic
        else b.constant(np.asarray(trip, np.int64))
        if trip is not None
        else None
    )
    limit = b.op("Mul", b.op("Abs", start), 50.0)
    body = b.subgraph("body")
    step = body.input("i", (), "int64")
    going = body.input("going", (), "bool")
    state = body.input("s", (2, 3), "float32")
    other = body.input("t", (2, 3), "float32")
    grown = body.op("Mul", body.op("Add", state, body.op("Cast", step, to="float32")), 1.5)
    small = body.op(
        "ReduceAll", body.op("Less", body.op("Abs", grown), body.op("Add", limit, 100.0)), axes=[0, 1]
    )
    body.output(small if trip is None and not dynamic else going)
    body.output(grown)
    body.output(state)  # the states swap in part
    if stacked:
        body.output(body.op("Neg", other))
    results = b.ops(
        "Loop",
        [count, None, start, b.op("Neg", start), *body.captures()],
        body=body.graph,
        num_states=2,
        max_trip=trip or 12,
    )
    for value in results:
        b.output(value)
    return b.graph


@pytest.mark.parametrize("trip", [2, 5, None])
def test_loops_carry_their_states(trip):
    graph = loop_graph(trip)
    model = compile_graph(graph)
    assert "while" in kinds(model)
    feeds = feeds_of(graph)
    assert_close(model.run(feeds), interpret(graph, feeds), 1e-5)


def test_loops_stack_values():
    graph = loop_graph(4, stacked=True)
    model = compile_graph(graph)
    feeds = feeds_of(graph)
    assert_close(model.run(feeds), interpret(graph, feeds), 1e-5)


@pytest.mark.parametrize("trip", [0, 1, 3, 12])
def test_trip_counts_are_honoured_at_run_time(trip):
    graph = loop_graph(dynamic=True, stacked=True)
    model = compile_graph(graph)
    feeds = [floats(2, 3), np.asarray(trip, np.int64)]
    results = model.run(feeds)
    wanted = interpret(graph, feeds)
    assert results[2].shape[0] == trip
    assert_close(results, [w[:trip] if i == 2 else w for i, w in enumerate(wanted)], 1e-5)


@pytest.mark.parametrize("shape", [(12, 3, 2), (1, 12, 6), (72,)])
def test_views_of_stacked_values_have_their_own_shape(shape):
    graph = loop_graph(12, stacked=True)
    graph.outputs[2] = GraphBuilder(graph=graph).op("Reshape", graph.outputs[2], shape=shape)
    feeds = feeds_of(graph)
    assert_close(compile_graph(graph).run(feeds), interpret(graph, feeds), 1e-5)


def test_nothing_is_compiled_for_values_stacked_over_a_computed_number_of_steps():
    graph = loop_graph(dynamic=True, stacked=True)
    assert compile_graph(graph).outputs[2].dynamic
    graph.outputs[2] = GraphBuilder(graph=graph).op("Reshape", graph.outputs[2], shape=(72,))
    with pytest.raises(GeError, match="known only at run time"):
        compile_graph(graph)


@pytest.mark.parametrize("taken", [True, False])
def test_the_size_of_a_branch_is_that_of_the_branch_taken(taken):
    b = GraphBuilder("test")
    v, condition = b.input("x", (6,), "float32"), b.input("c", (), "bool")

    def indices(sign):
        return lambda inner: [inner.op("Compress", v, inner.op("Less", inner.op("Mul", v, sign), 0.0))]

    (found,) = branch(b, condition, indices(1.0), indices(-1.0))
    b.output(found)
    model, given = compile_graph(b.graph), np.array([1, -2, 3, -4, -5, -6], np.float32)
    assert model.outputs[0].dynamic
    (result,) = model.run([given, np.asarray(taken)])
    np.testing.assert_array_equal(result, given[given < 0] if taken else given[given > 0])
    b.graph.outputs[0] = b.op("Reshape", found, shape=(1, 6))
    with pytest.raises(GeError, match="known only at run time"):
        compile_graph(b.graph)


def test_states_that_swap():
    def build(b):
        v, w = x(b, 4), x(b, 4, name="y")
        body = b.subgraph("body")
        body.input("i", (), "int64")
        going = body.input("going", (), "bool")
        first, second = body.input("a", (4,), "float32"), body.input("b", (4,), "float32")
        body.output(going)
        body.output(second)
        body.output(first)
        return b.ops(
            "Loop",
            [b.constant(np.asarray(3, np.int64)), None, v, w],
            body=body.graph,
            num_states=2,
            max_trip=3,
        )

    compiled(build)


def test_a_loop_inside_a_branch_inside_a_loop():
    b = GraphBuilder("test")
    start = b.input("x", (4,), "float32")
    outer = b.subgraph("outer")
    step = outer.input("i", (), "int64")
    going = outer.input("going", (), "bool")
    state = outer.input("s", (4,), "float32")

    def doubled(inner):
        body = inner.subgraph("inner")
        body.input("j", (), "int64")
        on = body.input("on", (), "bool")
        v = body.input("v", (4,), "float32")
        body.output(on)
        body.output(body.op("Add", v, v))
        return inner.ops(
            "Loop",
            [inner.constant(np.asarray(2, np.int64)), None, state],
            body=body.graph,
            num_states=1,
            max_trip=2,
        )

    odd = outer.op("Equal", outer.op("Mod", step, 2), 1)
    results = branch(outer, odd, doubled, lambda inner: [inner.op("Neg", state)])
    outer.output(going)
    outer.output(results[0])
    made = b.ops(
        "Loop", [b.constant(np.asarray(5, np.int64)), None, start], body=outer.graph, num_states=1, max_trip=5
    )
    b.output(made[0])
    model = compile_graph(b.graph)
    feeds = [floats(4)]
    assert_close(model.run(feeds), interpret(b.graph, feeds), 1e-5)


def test_memory_of_a_loop_survives_its_turns():
    def build(b):
        big = b.op("Exp", x(b, 64, 64))
        body = b.subgraph("body")
        body.input("i", (), "int64")
        going = body.input("going", (), "bool")
        state = body.input("s", (64, 64), "float32")
        t = body.op("MatMul", body.op("MatMul", state, floats(64, 64, high=0.01)), big)
        body.output(going)
        body.output(body.op("Tanh", t))
        trip = b.constant(np.asarray(4, np.int64))
        made = b.ops("Loop", [trip, None, big, *body.captures()], body=body.graph, num_states=1, max_trip=4)
        return made[0], b.op("Neg", big)

    compiled(build, tolerance=1e-4)


def test_a_state_updated_in_place_is_not_copied():
    def build(b):
        body = b.subgraph("body")
        body.input("i", (), "int64")
        going = body.input("going", (), "bool")
        state = body.input("s", (64, 64), "float32")
        body.output(going)
        body.output(body.op("Tanh", body.op("Add", state, 1.0)))
        trip = b.constant(np.asarray(4, np.int64))
        start = b.op("MatMul", x(b, 64, 64), floats(64, 64))
        return b.op(
            "MatMul", b.ops("Loop", [trip, None, start], body=body.graph, num_states=1)[0], floats(64, 64)
        )

    model = compiled(build, tolerance=1e-4)
    large = [t for t in model.plan.tasks if t.kind == "copy" and t.outputs[0].nbytes > 8]
    assert not large


def test_a_state_still_read_is_copied():
    def build(b):
        body = b.subgraph("body")
        body.input("i", (), "int64")
        going = body.input("going", (), "bool")
        first = body.input("a", (4, 4), "float32")
        second = body.input("b", (4, 4), "float32")
        product = body.op("MatMul", first, floats(4, 4))
        body.output(going)
        body.output(body.op("MatMul", product, second))
        body.output(body.op("MatMul", product, first))
        trip = b.constant(np.asarray(3, np.int64))
        return b.ops("Loop", [trip, None, x(b, 4, 4), x(b, 4, 4, name="y")], body=body.graph, num_states=2)

    compiled(build)
