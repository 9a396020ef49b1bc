"""Control flow: if, while, scans, and shapes that only a run can tell."""

from __future__ import annotations

import numpy as np
import pytest

import npu_runtime as rt
from tests.native.native_support import BF16, HAS_BF16_VECTORS, Array, view

ONE = np.ones(1, np.float32)
FLAG = np.ones((), np.bool_)
COUNT = np.zeros((), np.int64)


def _if_program() -> rt.Program:
    program = rt.Program("if")
    flag, x, out = program.input(0, 1), program.input(1, 4), program.output(0, 4)
    doubled, zero = program.block(), program.constant(np.zeros(1, np.float32))
    other = program.block()
    attrs = {"then_block": doubled, "else_block": other}
    program.task("if", "choose", [view(flag, FLAG)], [], attrs)
    two = program.constant(np.full((1, 1), 2, np.float32))
    matrix = np.ones((1, 1), np.float32)
    inputs = [view(x, matrix), view(two, matrix)]
    program.task("matmul", "double", inputs, [view(out, matrix)], {}, doubled)
    program.task("copy", "zero", [view(zero, ONE)], [view(out, ONE)], {}, other)
    program.finalize(0)
    return program


@pytest.mark.parametrize(("flag", "expected"), [(True, 6.0), (False, 0.0)])
def test_if_runs_one_branch(flag: bool, expected: float) -> None:
    y = np.full(1, -1, np.float32)
    _if_program().run([np.array(flag), np.array([3], np.float32)], [y])
    assert y[0] == expected


def test_a_missing_branch_does_nothing() -> None:
    program = rt.Program("if")
    flag, out = program.input(0, 1), program.output(0, 4)
    one, block = program.constant(ONE), program.block()
    program.task("if", "choose", [view(flag, FLAG)], [], {"then_block": block})
    program.task("copy", "one", [view(one, ONE)], [view(out, ONE)], {}, block)
    program.finalize(0)
    y = np.zeros(1, np.float32)
    program.run([np.array(False)], [y])
    assert y[0] == 0
    program.run([np.array(True)], [y])
    assert y[0] == 1


def _loop(steps: int, use_trip: bool, use_condition: bool) -> rt.Program:
    """Doubles a value each step and stores it; the condition is a row of a table of flags."""
    program = rt.Program("loop")
    trip, x, flags = program.input(0, 8), program.input(1, 4), program.input(2, steps)
    history, last = program.output(0, 4 * steps), program.output(1, 4)
    counter, state, go = program.arena(0, 8), program.arena(64, 4), program.arena(128, 1)
    two, yes = program.constant(np.full((1, 1), 2, np.float32)), program.constant(np.array(True))
    body = program.block()
    matrix, table = np.ones((1, 1), np.float32), np.ones(steps, np.bool_)
    program.task("copy", "start", [view(x, ONE)], [view(state, ONE)], {})
    program.task("copy", "go", [view(yes, FLAG)], [view(go, FLAG)], {})
    inputs = [view(trip, COUNT) if use_trip else None, view(go, FLAG) if use_condition else None]
    program.task("while", "loop", inputs, [view(counter, COUNT)], {"body_block": body})
    program.task("copy", "end", [view(state, ONE)], [view(last, ONE)], {})
    next_state = program.arena(192, 4)
    doubling = [view(state, matrix), view(two, matrix)]
    program.task("matmul", "double", doubling, [view(next_state, matrix)], {}, body)
    program.task("copy", "state", [view(next_state, ONE)], [view(state, ONE)], {}, body)
    stored = [view(state, ONE), view(counter, COUNT)]
    whole = np.zeros((steps, 1), np.float32)
    program.task("scan_store", "store", stored, [view(history, whole)], {"counted": True}, body)
    program.task("scan_load", "flag", [view(flags, table), view(counter, COUNT)], [view(go, FLAG)], {}, body)
    program.finalize(256)
    return program


def _run(
    program: rt.Program, trip: int, flags: list[bool]
) -> tuple[dict[int, tuple[int, ...]], Array, Array]:
    history, last = np.zeros((len(flags), 1), np.float32), np.zeros(1, np.float32)
    shapes = program.run([np.array(trip), ONE, np.array(flags)], [history, last])
    return shapes, history, last


def test_a_loop_honours_its_trip_count() -> None:
    program = _loop(5, True, False)
    for trip in (3, 5, 0, 1):
        shapes, history, last = _run(program, trip, [False] * 5)
        assert shapes == {0: (trip, 1)}
        assert history[:trip, 0].tolist() == [2.0 ** (i + 1) for i in range(trip)]
        assert last[0] == 2.0**trip


def test_a_loop_stops_when_its_condition_turns_false() -> None:
    shapes, _, last = _run(_loop(5, False, True), 0, [True, True, False, True, True])
    assert shapes == {0: (3, 1)} and last[0] == 8


def test_the_sooner_of_trip_count_and_condition_ends_a_loop() -> None:
    program = _loop(5, True, True)
    assert _run(program, 2, [True] * 5)[0] == {0: (2, 1)}
    assert _run(program, 4, [False] * 5)[0] == {0: (1, 1)}


def test_more_steps_than_room_raise() -> None:
    with pytest.raises(rt.TaskError, match="task 'store': step 5 of 5"):
        program = _loop(5, True, False)
        _run(program, 6, [True] * 5)


def test_a_failed_run_leaves_the_program_usable() -> None:
    program = _loop(5, True, False)
    with pytest.raises(rt.TaskError):
        _run(program, 9, [True] * 5)
    assert _run(program, 5, [True] * 5)[2][0] == 32


def test_scans_run_backwards_too() -> None:
    program = rt.Program("reverse")
    x, y = np.arange(6, dtype=np.float32).reshape(3, 2), np.zeros((3, 2), np.float32)
    source, out = program.input(0, x.nbytes), program.output(0, y.nbytes)
    trip, counter, row = program.constant(np.array(3)), program.arena(0, 8), program.arena(64, 8)
    body = program.block()
    program.task("while", "loop", [view(trip, COUNT)], [view(counter, COUNT)], {"body_block": body})
    step = np.zeros(2, np.float32)
    loads = [view(source, x), view(counter, COUNT)]
    program.task("scan_load", "load", loads, [view(row, step)], {"reverse": True}, body)
    program.task("scan_store", "store", [view(row, step), view(counter, COUNT)], [view(out, y)], {}, body)
    program.finalize(128)
    program.run([x], [y])
    np.testing.assert_array_equal(y, x[::-1])


def test_loops_nest() -> None:
    program = rt.Program("nested")
    y = np.zeros((3, 4), np.int64)
    out = program.output(0, y.nbytes)
    three, four = program.constant(np.array(3)), program.constant(np.array(4))
    outer, inner, row = program.arena(0, 8), program.arena(8, 8), program.arena(64, 32)
    outer_body, inner_body = program.block(), program.block()
    program.task("while", "outer", [view(three, COUNT)], [view(outer, COUNT)], {"body_block": outer_body})
    attrs = {"body_block": inner_body}
    program.task("while", "inner", [view(four, COUNT)], [view(inner, COUNT)], attrs, outer_body)
    cells = np.zeros(4, np.int64)
    stored = [view(outer, COUNT), view(inner, COUNT)]
    program.task("scan_store", "cell", stored, [view(row, cells)], {}, inner_body)
    rows = [view(row, cells), view(outer, COUNT)]
    program.task("scan_store", "row", rows, [view(out, y)], {}, outer_body)
    program.finalize(128)
    program.run([], [y])
    np.testing.assert_array_equal(y, np.repeat(np.arange(3), 4).reshape(3, 4))
    assert len(program.profile([], [y], 1)) == 4


def test_blocks_must_exist_and_come_later() -> None:
    program = rt.Program("blocks")
    flag = program.constant(np.array(True))
    program.task("if", "i", [view(flag, FLAG)], [], {"then_block": 3})
    with pytest.raises(rt.UnsupportedTask, match="block 3, which does not exist"):
        program.finalize(0)
    program = rt.Program("blocks")
    flag, block = program.constant(np.array(True)), program.block()
    program.task("if", "i", [view(flag, FLAG)], [], {"then_block": block}, block)
    with pytest.raises(rt.UnsupportedTask, match="created after it"):
        program.finalize(0)


def test_kernels_report_actual_shapes() -> None:
    x = np.array([[0, 1, 0], [2, 0, 3]], np.float32)
    program = rt.Program("nonzero")
    source, out, shape = program.input(0, x.nbytes), program.output(0, 96), program.output(1, 16)
    y, dims = np.zeros((2, 6), np.int64), np.zeros(2, np.int64)
    attrs = {"op": "nonzero", "with_shapes": True}
    program.task("aicpu", "nz", [view(source, x)], [view(out, y), view(shape, dims)], attrs)
    program.finalize(0)
    assert program.run([x], [y, dims]) == {0: (2, 3)}
    assert y.reshape(-1)[:6].tolist() == [0, 1, 1, 1, 0, 2]
    assert not y.reshape(-1)[6:].any()
    assert dims.tolist() == [2, 3]
    assert program.run([np.zeros_like(x)], [y, dims]) == {0: (2, 0)}


def test_a_kernel_that_fails_names_its_task() -> None:
    program = rt.Program("topk")
    x, y, i = np.zeros(3, np.float32), np.zeros(5, np.float32), np.zeros(5, np.int64)
    source, out, index = program.input(0, 12), program.output(0, 20), program.output(1, 40)
    attrs = {"op": "topk", "k": 5}
    program.task("aicpu", "best", [view(source, x)], [view(out, y), view(index, i)], attrs)
    program.finalize(0)
    with pytest.raises(rt.TaskError, match="task 'best': k = 5 is outside 0 to 3"):
        program.run([x], [y, i])


def test_an_unknown_kernel_is_refused() -> None:
    program = rt.Program("unknown")
    program.task("aicpu", "t", [], [], {"op": "nothing"})
    with pytest.raises(rt.UnsupportedTask, match="no AI CPU kernel 'nothing'"):
        program.finalize(0)


SIZE = 64  # large enough for oneDNN to prefer packed weights


def _repeated_product(dtype: str, source: str, changes: bool, over: int = -2) -> rt.Program:
    """state = state · w, over and over; w is fed or copied to the arena, and `changes` halves it in every step.

    A fed w that changes is halved where an output lies, which the caller lays over the input; `over` declares it.
    """
    program = rt.Program("powers")
    matrix = np.zeros((SIZE, SIZE), np.dtype(dtype) if dtype == "float32" else BF16)
    room = matrix.nbytes
    fed, x, trip = program.input(0, room), program.input(1, room), program.input(2, 8)
    last, halved = program.output(0, room), program.output(1, room, over)
    counter, state, after, copied = (program.arena(room * i, room) for i in range(4))
    w = fed if source == "input" else copied
    half = program.constant(np.eye(SIZE, dtype=matrix.dtype) / 2)
    body = program.block()
    program.task("copy", "start", [view(x, matrix)], [view(state, matrix)], {})
    program.task("copy", "weights", [view(fed, matrix)], [view(copied, matrix)], {})
    program.task("while", "loop", [view(trip, COUNT)], [view(counter, COUNT)], {"body_block": body})
    program.task("copy", "end", [view(state, matrix)], [view(last, matrix)], {})
    factors = [view(state, matrix), view(w, matrix)]
    program.task("matmul", "multiply", factors, [view(after, matrix)], {}, body)
    program.task("copy", "state", [view(after, matrix)], [view(state, matrix)], {}, body)
    if changes:
        target = halved if source == "input" else copied
        program.task(
            "matmul", "halve", [view(w, matrix), view(half, matrix)], [view(after, matrix)], {}, body
        )
        program.task("copy", "changed", [view(after, matrix)], [view(target, matrix)], {}, body)
    program.finalize(4 * room)
    return program


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("source", ["input", "arena"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_a_loop_does_not_change_is_packed_once(dtype: str, source: str, changes: bool) -> None:
    program = _repeated_product(dtype, source, changes)
    packed = next(t["layout"] for t in program.task_info() if t["name"] == "multiply")
    assert any(c.isdigit() for c in packed) != changes or dtype == "float32" or not HAS_BF16_VECTORS
    random = np.random.default_rng(1)
    kind = np.dtype(np.float32) if dtype == "float32" else BF16
    for steps in (3, 1, 0):  # the weights differ from run to run
        w = (random.standard_normal((SIZE, SIZE)) / 8).astype(kind)
        x = random.standard_normal((SIZE, SIZE)).astype(kind)
        expected, factor = x.astype(np.float32), w.astype(np.float32)
        for _ in range(steps):
            expected = (expected @ factor).astype(kind).astype(np.float32)
            factor = factor / 2 if changes else factor
        y = np.empty_like(x)
        program.run([w, x, np.array(steps)], [y, w])  # the second output lies where the weights are
        np.testing.assert_allclose(y.astype(np.float32), expected, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("over, packs", [(-2, False), (0, False), (-1, True), (1, True)])
def test_an_output_in_memory_of_its_own_changes_no_input(over: int, packs: bool) -> None:
    program = _repeated_product("bfloat16", "input", True, over)
    packed = next(t["layout"] for t in program.task_info() if t["name"] == "multiply")
    assert any(c.isdigit() for c in packed) == (packs and HAS_BF16_VECTORS)


def test_an_output_over_no_input_that_could_be_is_refused() -> None:
    with pytest.raises(ValueError, match="index out of range"):
        rt.Program("over").output(0, 8, -3)
