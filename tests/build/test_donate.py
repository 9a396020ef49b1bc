"""Donated inputs: new values are written where the old ones lie, and nobody reads an old value too late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ge.build.donate import check_donated
from ge.compiler import compile_graph
from ge.errors import GeError
from ge.model.model import Model
from ge.ops.builder import GraphBuilder
from ge.ops.interpret import interpret
from tests.support.small_graphs import assert_close, feeds_of, graph_of

Pairs = Sequence[tuple[int, int]]


def donating(build: Callable[[GraphBuilder], Any], pairs: Pairs) -> Model:
    """The model with donated inputs; run by shared addresses it gives what the interpreter gives, step after step."""
    graph = graph_of(build)
    model = compile_graph(graph, donated=pairs)
    state = feeds_of(graph)
    wanted = [a.copy() for a in state]
    for _ in range(3):
        results = [np.full(p.desc.shape, 7, p.desc.dtype) for p in model.outputs]
        for output, source in pairs:
            results[output] = state[source]
        expected = interpret(graph, wanted)
        model.program.run_pointers([a.ctypes.data for a in state], [a.ctypes.data for a in results])
        assert_close(results, expected, 2e-5)
        for output, source in pairs:
            wanted[source] = expected[output].copy()
    return model


def copies(model: Model) -> int:
    return sum(t.kind in ("copy", "reorder") for t in model.plan.tasks)


def test_an_update_writes_straight_into_the_variable() -> None:
    def sgd(b: GraphBuilder) -> Any:
        w, x = b.input("w", (64, 32), "float32"), b.input("x", (8, 64), "float32")
        y = b.op("MatMul", x, w)
        slope = b.op("MatMul", b.op("Transpose", x, perm=(1, 0)), y)
        return b.op("ReduceSum", y, axes=(0, 1)), b.op("Sub", w, b.op("Mul", slope, 0.001))

    model = donating(sgd, [(1, 0)])
    assert copies(model) == 0 and model.plan.report["donated_copies"] == 0


def test_several_states_are_updated_by_one_kernel() -> None:
    def adam(b: GraphBuilder) -> Any:
        w, m, v, g = (b.input(n, (33, 5), "float32") for n in "wmvg")
        m = b.op("Add", b.op("Mul", m, 0.9), b.op("Mul", g, 0.1))
        v = b.op("Add", b.op("Mul", v, 0.99), b.op("Mul", b.op("Mul", g, g), 0.01))
        return b.op("Sub", w, b.op("Mul", m, b.op("Exp", b.op("Neg", b.op("Abs", v))))), m, v

    model = donating(adam, [(0, 0), (1, 1), (2, 2)])
    assert [t.kind for t in model.plan.tasks] == ["kernel"]


def test_swapped_variables_are_swapped() -> None:
    donating(lambda b: [b.input("a", (5,), "float32"), b.input("c", (5,), "float32")][::-1], [(0, 0), (1, 1)])


def test_an_unchanged_variable_costs_nothing() -> None:
    model = donating(lambda b: [b.input("a", (5,), "float32")], [(0, 0)])
    assert model.plan.tasks == []


def test_the_old_value_can_be_a_result_too() -> None:
    def count(b: GraphBuilder) -> Any:
        a = b.input("a", (3,), "float32")
        return a, b.op("Add", a, 1.0)

    model = donating(count, [(1, 0)])
    assert model.plan.report["donated_copies"] == 0


def test_a_reader_late_in_the_graph_runs_before_the_update() -> None:
    def late(b: GraphBuilder) -> Any:
        w, x = b.input("w", (16, 16), "float32"), b.input("x", (16, 16), "float32")
        new = b.op("Mul", w, 0.5)
        return new, b.op("MatMul", b.op("MatMul", x, x), w)

    model = donating(late, [(0, 0)])
    assert copies(model) == 0


def test_a_reader_of_both_values_gets_both() -> None:
    def both(b: GraphBuilder) -> Any:
        w = b.input("w", (16, 16), "float32")
        new = b.op("MatMul", w, w)
        return new, b.op("MatMul", new, w)

    model = donating(both, [(0, 0)])
    assert model.plan.report["donated_copies"] == 1


def test_values_moved_within_a_variable() -> None:
    donating(lambda b: [b.op("Transpose", b.input("w", (7, 7), "float32"), perm=(1, 0))], [(0, 0)])
    donating(lambda b: [b.op("Reverse", b.input("w", (9,), "float32"), axes=(0,))], [(0, 0)])


def test_one_value_for_two_variables() -> None:
    def twice(b: GraphBuilder) -> Any:
        a, c = b.input("a", (6,), "float32"), b.input("c", (6,), "float32")
        total = b.op("Add", a, c)
        return total, total

    donating(twice, [(0, 0), (1, 1)])


def test_the_callers_arrays_are_left_alone_by_run() -> None:
    graph = graph_of(lambda b: [b.op("Add", b.input("a", (3,), "float32"), 1.0)])
    model = compile_graph(graph, donated=[(0, 0)])
    a = np.float32([1, 2, 3])
    np.testing.assert_array_equal(model.run([a])[0], [2, 3, 4])
    np.testing.assert_array_equal(a, [1, 2, 3])


def branch(b: GraphBuilder, change: Callable[[GraphBuilder, Any], Any] | None, value: Any) -> Any:
    inner = b.subgraph("branch")
    inner.output(inner.op("Identity", value) if change is None else change(inner, value))
    return inner


def conditional(b: GraphBuilder, change: Callable[[GraphBuilder, Any], Any]) -> Any:
    """A value that is changed when a flag is set."""
    flag, value = b.input("flag", (), "bool"), b.input("w", (6, 6), "float32")
    then, otherwise = branch(b, change, value), branch(b, None, value)
    captures = list(dict.fromkeys([*then.captures(), *otherwise.captures()]))
    assert captures == [value]
    return b.op("If", flag, value, then_branch=then.graph, else_branch=otherwise.graph)


def test_a_branch_that_changes_a_variable_writes_over_it() -> None:
    model = donating(lambda b: [conditional(b, lambda i, v: i.op("Mul", v, 0.5))], [(0, 1)])
    assert model.plan.report["donated_copies"] == 0


def test_a_branch_that_cannot_write_over_a_variable_leaves_the_other_branch_right() -> None:
    model = donating(lambda b: [conditional(b, lambda i, v: i.op("MatMul", v, v))], [(0, 1)])
    assert model.plan.report["donated_copies"] == 1


@pytest.mark.parametrize("pairs", [[(0, 0), (0, 1)], [(0, 0), (1, 0)], [(0, 1)], [(2, 0)], [(0, -1)]])
def test_impossible_pairs_are_refused(pairs: Pairs) -> None:
    def build(b: GraphBuilder) -> Any:
        a, c = b.input("a", (3,), "float32"), b.input("c", (4,), "float32")
        return b.op("Neg", a), b.op("Neg", c)

    with pytest.raises(GeError, match="donate"):
        compile_graph(graph_of(build), donated=pairs)


def test_the_check_finds_a_late_read() -> None:
    def build(b: GraphBuilder) -> Any:
        a = b.input("a", (5, 5), "float32")
        return b.op("Neg", a), b.op("MatMul", a, a)

    plan = compile_graph(graph_of(build), donated=[(0, 0)]).plan
    check_donated(plan, lambda task: [(0, 0)])
    wrong = replace(plan, tasks=plan.tasks[::-1])
    with pytest.raises(AssertionError, match="reads an old value too late"):
        check_donated(wrong, lambda task: [(0, 0)])
    with pytest.raises(AssertionError, match="writes over what it reads"):
        check_donated(plan, lambda task: [])


def test_donations_are_kept_in_model_files(tmp_path: Any) -> None:
    import ge

    graph = graph_of(lambda b: [b.op("Add", b.input("a", (3,), "float32"), 1.0)])
    path = compile_graph(graph, donated=[(0, 0)]).save(tmp_path / "m.om")
    assert ge.compile(path).plan.donated == ((0, 0),)
