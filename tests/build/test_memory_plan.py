"""The memory plan: no overlap, close to the lower bound, fast."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ge.build.memory import ALIGNMENT, Piece, check, lower_bound, plan_memory


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
