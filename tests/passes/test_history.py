"""Passes run again only when something has changed since; the garbage collector waits while a graph is compiled."""

from __future__ import annotations

import gc
import threading

import onnx_ir as ir
import pytest

from ge.collection import compile_scope
from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions
from ge.passes.base import History, Pass, run_passes, to_fixpoint


class Counting(Pass):
    name = "counting"

    def __init__(self, changes: int) -> None:
        self.changes = changes
        self.runs = 0

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        self.runs += 1
        return self.runs <= self.changes


def graph() -> ir.Graph:
    builder = GraphBuilder("small")
    builder.output(builder.op("Relu", builder.input("x", (2,), "float32")))
    return builder.graph


def test_a_pass_rests_until_another_has_changed_something() -> None:
    first, second = Counting(0), Counting(2)
    to_fixpoint(graph(), [first, second], CompileOptions())
    assert (first.runs, second.runs) == (3, 3)  # once more after each of the two changes


def test_what_ran_without_effect_does_not_run_in_the_next_stage() -> None:
    idle, other, history, g = Counting(0), Counting(0), History(), graph()
    to_fixpoint(g, [idle], CompileOptions(), history)
    run_passes(g, [other, idle], CompileOptions(), history)
    assert (idle.runs, other.runs) == (1, 1)
    run_passes(g, [Counting(1), idle], CompileOptions(), history)
    assert idle.runs == 2


def test_nested_graphs_are_found_again_after_a_change() -> None:
    g, history = graph(), History()
    assert history.nested(g) == []
    builder = GraphBuilder(graph=g)
    branches = []
    for _ in range(2):
        inner = GraphBuilder("branch", parent=builder)
        inner.output(inner.op("Neg", inner._own(g.inputs[0])))
        branches.append(inner.graph)
    flag = builder.input("flag", (), "bool")
    builder.op("If", flag, g.inputs[0], then_branch=branches[0], else_branch=branches[1])
    assert history.nested(g) == []
    history.ran(Counting(1), True)
    assert history.nested(g) == branches


def test_the_collector_runs_in_compiles() -> None:
    with compile_scope():
        assert gc.isenabled()


def test_a_paused_collector_runs_again_when_the_last_scope_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_COMPILE_GC", "paused")
    assert gc.isenabled()
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with compile_scope():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with compile_scope(), compile_scope():
        thread.start()
        assert inside.wait(10)
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_COMPILE_GC", "paused")
    gc.disable()
    try:
        with compile_scope():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
