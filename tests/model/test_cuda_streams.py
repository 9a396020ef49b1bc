"""Two streams of a GPU's graph: what runs beside the main chain, and that nothing runs too early."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ge.build import assemble
from ge.compiler import compile_graph
from ge.model.cuda import streams
from ge.model.cuda.control import steps_in
from ge.model.cuda.streams import Move, schedule
from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions
from ge.plan import Buffer, Plan, Task, View
from tests.model.test_cuda_training import random

KB = 1024


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_CUDA_DRIVER", "simulated")


def view(buffer: int) -> View:
    return View(buffer, "float32", (64,), (1,))


def planned(buffers: list[Buffer], tasks: list[tuple[str, list[int], list[int]]]) -> list:
    """The schedule of tasks (kind, buffers read, buffers written)."""
    made = [
        Task(kind, "", [view(n) for n in reads], [view(n) for n in writes]) for kind, reads, writes in tasks
    ]
    return schedule(Plan("step", [], [], buffers, made), [[task] for task in made])


def arena(*offsets: int) -> list[Buffer]:
    return [Buffer("arena", 256, n * KB) for n in offsets]


def test_kernels_whose_results_only_the_caller_reads_are_on_the_side_stream() -> None:
    buffers = [*arena(0, 1, 2), Buffer("output", 256), Buffer("input", 256)]
    tasks = [("matmul", [4], [0]), ("kernel", [0], [3]), ("matmul", [0], [1]), ("matmul", [1], [2])]
    assert planned(buffers, tasks) == [
        (0, False),
        (2, False),
        (3, False),
        Move.FORK,
        (1, True),
        Move.JOIN,
    ]


def test_kernels_that_only_such_kernels_read_are_too() -> None:
    buffers = [*arena(0, 1), Buffer("output", 256), Buffer("input", 256)]
    tasks = [("matmul", [3], [0]), ("kernel", [0], [1]), ("kernel", [1], [2])]
    assert planned(buffers, tasks) == [(0, False), Move.FORK, (1, True), (2, True), Move.JOIN]


def test_memory_that_is_used_again_makes_the_main_stream_wait() -> None:
    """The third task writes to where the second, on the side stream, reads."""
    buffers = [*arena(0, 1, 0), Buffer("output", 256), Buffer("input", 256)]
    tasks = [("matmul", [4], [0]), ("kernel", [0], [3]), ("matmul", [4], [2]), ("matmul", [2], [1])]
    found = planned(buffers, tasks)
    assert found == [(0, False), Move.FORK, (1, True), Move.JOIN, (2, False), (3, False)]


def test_an_output_in_the_memory_of_an_input_is_that_input() -> None:
    buffers = [Buffer("input", 256), Buffer("output", 256), *arena(0)]
    made = [Task("kernel", "", [view(0)], [view(1)]), Task("matmul", "", [view(0)], [view(2)])]
    plan = Plan("step", [], [], buffers, made, donated=((0, 0),))
    assert schedule(plan, [[t] for t in made]) == [Move.FORK, (0, True), Move.JOIN, (1, False)]


def test_large_kernels_and_library_calls_stay() -> None:
    buffers = [*arena(0), Buffer("output", 256), Buffer("input", 256)]
    large = View(1, "float32", (streams.SIDE_BYTES,), (1,))
    made = [Task("matmul", "", [view(2)], [view(1)]), Task("kernel", "", [view(2)], [large])]
    plan = Plan("step", [], [], buffers, made)
    assert schedule(plan, [[t] for t in made]) == [(0, False), (1, False)]


def test_checks_begin_at_once_and_are_joined() -> None:
    """They only read; what overwrites their input, and the end of the graph, waits for them."""
    buffers = [Buffer("input", 256), *arena(0, 1), Buffer("output", 256)]
    tasks = [("check", [0], []), ("matmul", [0], [1]), ("matmul", [1], [3])]
    aside = [Move.FORK, (0, True), (1, False), (2, False), Move.JOIN]
    assert planned(buffers, tasks) == aside
    later = [("matmul", [0], [1]), ("check", [1], []), ("matmul", [0], [2]), ("matmul", [2], [1])]
    found = planned(buffers, later)
    assert found.index((1, True)) < found.index(Move.JOIN) < found.index((3, False)) and found[1] is Move.FORK


def test_casts_of_inputs_run_ahead() -> None:
    buffers = [Buffer("input", 256), *arena(*range(20))]
    chain = [("matmul", [n], [n + 1]) for n in range(1, 15)]
    tasks = [*chain, ("kernel", [0], [18]), ("matmul", [15, 18], [19])]
    found = planned(buffers, tasks)
    cast = found.index((14, True))
    assert cast < found.index((8, False)) and found[found.index((15, False)) - 1] is Move.JOIN


def step(depth: int = 4) -> tuple[GraphBuilder, list[np.ndarray], list[tuple[int, int]]]:
    """A network's step: products, gradients, updates of weights in place."""
    b = GraphBuilder("step")
    feeds = [random(16, 24), *(random(24, 24, seed=n) / 5 for n in range(depth))]
    x, *weights = (b.input(f"x{n}", a.shape, "float32") for n, a in enumerate(feeds))
    values = [x]
    for w in weights:
        values.append(b.op("Tanh", b.op("MatMul", values[-1], b.op("Mul", w, np.float32(0.5)))))
    slope = values[-1]
    for n in range(depth - 1, -1, -1):
        own = b.op("Sub", slope, b.op("Mul", slope, b.op("Mul", values[n + 1], values[n + 1])))
        gradient = b.op("MatMul", values[n], own, transpose_a=True)
        scale = b.op("ReduceSum", b.op("Abs", gradient), axes=[0, 1], keepdims=False)
        b.output(b.op("Sub", weights[n], b.op("Div", gradient, scale)))
        slope = b.op("MatMul", own, weights[n], transpose_b=True)
    b.output(slope)
    return b, feeds, [(depth - 1 - n, n + 1) for n in range(depth)]


@pytest.mark.parametrize(("batch", "rest"), [(1, 0), (12, 0), (12, 32)])
def test_streams_that_run_as_late_as_they_may_give_the_results_of_the_cpu(monkeypatch, batch, rest) -> None:
    """The simulated driver does what a stream has to do only when somebody waits for it."""
    monkeypatch.setattr(assemble, "_REST", rest)
    monkeypatch.setattr(streams, "_BATCH", batch)
    monkeypatch.setattr(streams, "_PATIENCE", 2)
    b, feeds, donated = step()
    wants = compile_graph(step()[0].graph, None, "step", donated).run([a.copy() for a in feeds])
    model = compile_graph(b.graph, CompileOptions(target="sm_90"), "step", donated)
    loaded = model.program.loaded
    loaded.bind_own()
    captured = model.run([a.copy() for a in feeds])
    (part,) = steps_in(loaded.parts)
    aside = [m for m in part.moves if isinstance(m, tuple) and m[1]]
    assert len(aside) >= 4 and part.moves.count(Move.FORK) >= 2
    got = [np.empty_like(a) for a in wants]
    loaded.feed(feeds)
    part.enqueue(loaded)
    loaded.fetch(got)
    for want, *others in zip(wants, got, captured, strict=True):
        for found in others:
            np.testing.assert_allclose(found, want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_pieces_of_the_arena_rest_beside_the_side_stream() -> None:
    """Memory of small gradients is not used again at once: otherwise each update would hold up the next product."""
    b, _, donated = step(8)
    model = compile_graph(b.graph, CompileOptions(target="sm_90"), "step", donated)
    moves = schedule(model.plan, [[t] for t in model.plan.tasks])
    joins = [n for n, move in enumerate(moves) if move is Move.JOIN]
    assert len(joins) <= 3 < sum(isinstance(m, tuple) and m[1] for m in moves)
    assert all(isinstance(one, tuple) or one is not two for one, two in itertools.pairwise(moves))
