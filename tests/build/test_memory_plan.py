"""The memory plan: no overlap, close to the lower bound, fast."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ge.build.memory import ALIGNMENT, Piece, check, lower_bound, plan_memory
from ge.compiler import compile_plan
from ge.errors import OutOfMemoryError
from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions
from ge.target import cpu, named


def random_pieces(count: int, seed: int, longest: int = 20) -> list[Piece]:
    rng = random.Random(seed)
    pieces = []
    for moment in range(count):
        size = rng.choice([0, 1, 64, 1000, 4096, 100_000, 1 << 20])
        pieces.append(Piece(size, moment, moment + rng.randint(0, longest)))
    return pieces


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 30), st.integers(0, 30)), max_size=40))
def test_live_pieces_never_overlap(items):
    pieces = [Piece(size, first, first + more) for size, first, more in items]
    plan = plan_memory(pieces)
    check(pieces, plan.offsets)
    assert all(offset % ALIGNMENT == 0 for offset in plan.offsets)
    assert plan.nbytes >= plan.lower_bound


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 20)), max_size=8),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 30), st.integers(0, 30)), max_size=30),
)
def test_pieces_that_have_their_place_keep_it(before, items):
    """What another program has left lies there from the beginning; the rest goes around it, and over it later."""
    pieces, fixed, end = [], {}, 0
    for index, (size, last) in enumerate(before):
        pieces.append(Piece(size, 0, last))
        fixed[index] = end
        end += -(-size // ALIGNMENT) * ALIGNMENT
    pieces += [Piece(size, first, first + more) for size, first, more in items]
    plan = plan_memory(pieces, fixed)
    check(pieces, plan.offsets)
    assert {index: plan.offsets[index] for index in fixed} == fixed
    assert plan.nbytes >= end


def test_what_was_left_is_written_over_once_it_is_read():
    plan = plan_memory([Piece(1024, 0, 2), Piece(1024, 3, 4)], {0: 4096})
    assert plan.offsets[1] == 0  # before it, where nothing lies
    assert plan_memory([Piece(1024, 0, 2), Piece(1024, 3, 4)], {0: 0}).nbytes == 1024


def test_the_checker_finds_an_overlap():
    pieces = [Piece(100, 0, 5), Piece(100, 3, 8)]
    check(pieces, [0, 128])
    with pytest.raises(AssertionError, match="overlap"):
        check(pieces, [0, 64])


def test_pieces_that_do_not_live_together_share_memory():
    pieces = [Piece(1024, 0, 1), Piece(1024, 2, 3)]
    assert plan_memory(pieces).nbytes == 1024


def test_a_piece_dies_after_the_task_that_reads_it_last():
    pieces = [Piece(1024, 0, 1), Piece(1024, 1, 2)]
    assert plan_memory(pieces).nbytes == 2048


def test_a_chain_reaches_the_lower_bound():
    pieces = [Piece(1000 * (i % 7 + 1), i, i + 1) for i in range(200)]
    plan = plan_memory(pieces)
    assert plan.ratio == 1.0


def test_random_plans_stay_near_the_lower_bound():
    ratios = [plan_memory(random_pieces(300, seed)).ratio for seed in range(5)]
    assert max(ratios) < 1.2


def test_lower_bound_counts_what_lives_together():
    assert lower_bound([Piece(10, 0, 2), Piece(20, 2, 3), Piece(30, 4, 4)]) == 30


def test_ten_thousand_pieces_take_seconds():  # about one; all pairs of them would take minutes
    pieces = random_pieces(10_000, 0)
    start = time.thread_time()
    plan = plan_memory(pieces)
    assert time.thread_time() - start < 30
    check(pieces, plan.offsets)


def test_a_plan_that_the_target_cannot_hold_is_refused_with_its_largest_tensors() -> None:
    b = GraphBuilder("too_large")
    x = b.input("x", (64, 1024), "float32")
    b.output(b.op("ReduceSum", b.op("MatMul", x, np.zeros((1024, 1024), np.float32)), axes=[0]))
    target = named("avx2")
    assert compile_plan(b.graph, CompileOptions(target=target)).tasks, "an unknown size refuses nothing"
    with pytest.raises(
        OutOfMemoryError, match=r"target avx2 has 65536; the largest tensors are .*\[64,1024\]"
    ) as found:
        compile_plan(b.graph, CompileOptions(target=replace(target, memory_bytes=1 << 16)))
    assert found.value.available == 1 << 16 < found.value.requested


def test_a_plan_whose_results_the_target_cannot_hold_is_refused() -> None:
    b = GraphBuilder("wide")
    b.output(b.op("BroadcastTo", b.input("x", (1,), "float32"), shape=[1 << 20]))
    with pytest.raises(OutOfMemoryError, match="needs 4194304 bytes"):
        compile_plan(b.graph, CompileOptions(target=replace(named("avx2"), memory_bytes=1 << 20)))


def test_the_memory_of_this_machine_is_a_containers_where_that_is_less(tmp_path, monkeypatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(cpu, "_MEMORY_LIMITS", (str(limit), str(tmp_path / "nothing")))
    physical = cpu._memory_bytes.__wrapped__()
    limit.write_text("max\n")
    assert cpu._memory_bytes.__wrapped__() == physical
    limit.write_text("4096\n")
    assert cpu._memory_bytes.__wrapped__() == 4096
