"""In place: scatters change elements where they are; what dies into an output is made in the caller's memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge.compiler import compile_graph, compile_plan
from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions
from ge.plan import Plan

TABLE = 300_000  # rows; too many for the zeros to be a constant


def scattered(b: GraphBuilder, data: Any) -> Any:
    rows = b.input("rows", (3, 1), "int64")
    updates = b.input("updates", (3, 64), "float32")
    return b.op("ScatterNd", data, rows, updates, reduction="add")


def values() -> list[np.ndarray]:
    rows = np.array([[2], [0], [2]])
    return [rows, np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)]


def expected(data: np.ndarray) -> np.ndarray:
    y = data.copy()
    rows, updates = values()
    np.add.at(y, rows[:, 0], updates)
    return y


def task_buffers(plan: Plan, kind: str) -> tuple[Any, Any]:
    task = next(t for t in plan.tasks if t.kind == kind)
    return plan.buffers[task.inputs[0].buffer], plan.buffers[task.outputs[0].buffer]


def test_a_table_of_zeros_is_made_in_the_output_and_changed_there() -> None:
    b = GraphBuilder("gradient of a table")
    b.output(scattered(b, b.op("BroadcastTo", b.constant(np.zeros((), np.float32)), shape=(TABLE, 64))))
    plan = compile_plan(b.graph)
    data, result = task_buffers(plan, "aicpu")
    assert (data.kind, data.index) == (result.kind, result.index) == ("output", 0)
    assert plan.arena_bytes < TABLE * 64 * 4
    (found,) = compile_graph(b.graph).run(values())
    np.testing.assert_allclose(found, expected(np.zeros((TABLE, 64), np.float32)), rtol=1e-6)


def test_what_is_read_again_is_not_changed() -> None:
    b = GraphBuilder("two readers")
    x = b.input("x", (8, 64), "float32")
    doubled = b.op("Add", x, x)
    b.output(scattered(b, doubled))
    b.output(b.op("MatMul", doubled, b.constant(np.eye(64, dtype=np.float32))))
    x0 = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
    first, second = compile_graph(b.graph).run([x0, *values()])
    np.testing.assert_allclose(first, expected(2 * x0), rtol=1e-6)
    np.testing.assert_allclose(second, 2 * x0, rtol=1e-6)


def test_an_input_is_copied_before_it_is_changed() -> None:
    b = GraphBuilder("input")
    b.output(scattered(b, b.input("x", (8, 64), "float32")))
    x0 = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
    before = x0.copy()
    (found,) = compile_graph(b.graph).run([x0, *values()])
    np.testing.assert_allclose(found, expected(before), rtol=1e-6)
    np.testing.assert_array_equal(x0, before)


def test_a_donated_input_is_changed_in_its_own_memory() -> None:
    b = GraphBuilder("cache")
    b.output(scattered(b, b.input("x", (8, 64), "float32")))
    model = compile_graph(b.graph, donated=((0, 0),))
    assert not model.plan.report.get("donated_copies")
    assert [t.kind for t in model.plan.tasks] == ["aicpu"]
    x0 = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
    before = x0.copy()
    rows, updates = values()
    model.program.run_pointers([a.ctypes.data for a in (x0, rows, updates)], [x0.ctypes.data])
    np.testing.assert_allclose(x0, expected(before), rtol=1e-6)


def test_the_old_value_of_a_donated_input_outlives_its_new_one_in_the_making() -> None:
    b = GraphBuilder("late reader")
    x = b.input("x", (8, 64), "float32")
    w = b.input("w", (64, 64), "float32")
    product = b.op("MatMul", x, w)  # would die into the output, whose memory still holds x
    b.output(b.op("Add", b.op("Relu", product), b.op("MatMul", x, w, transpose_b=True)))
    model = compile_graph(b.graph, donated=((0, 0),))
    rng = np.random.default_rng(2)
    x0, w0 = (rng.standard_normal(s).astype(np.float32) for s in ((8, 64), (64, 64)))
    wanted = np.maximum(x0 @ w0, 0) + x0 @ w0.T
    model.program.run_pointers([x0.ctypes.data, w0.ctypes.data], [x0.ctypes.data])
    np.testing.assert_allclose(x0, wanted, rtol=1e-4, atol=1e-4)


def test_a_sum_that_would_make_a_convolution_slow_reads_its_operand() -> None:
    """oneDNN has no fast convolution of few channels that accumulates after something else (a cell of a ConvLSTM)."""
    b = GraphBuilder("few channels")
    x, h = b.input("x", (2, 8, 8, 3), "float32"), b.input("h", (2, 8, 8, 16), "float32")
    shift = b.input("shift", (16,), "float32")
    w, v = b.input("w", (3, 3, 3, 16), "float32"), b.input("v", (3, 3, 16, 16), "float32")
    same = {"data_format": "channels_last", "weight_format": "IO", "pads_begin": [1, 1], "pads_end": [1, 1]}
    seen, held = b.op("Conv", x, w, **same), b.op("Conv", h, v, **same)
    gate = b.op("Tanh", b.op("Add", b.op("Add", seen, shift), held))
    b.output(b.op("Conv", gate, v, **same))
    model = compile_graph(b.graph)
    few = next(t for t in model.plan.tasks if len(t.attrs["post_ops"]) == 3)
    assert few.attrs["post_ops"] == ["add", "add", "tanh"]
    assert not any(info["impl"].startswith("ref") for info in model.program.task_info())

    rng = np.random.default_rng(3)
    given = [rng.standard_normal(a.shape).astype(np.float32) for a in (x, h, shift, w, v)]
    (found,) = model.run(given)
    (exact,) = compile_graph(b.graph, CompileOptions(disabled_passes=frozenset({"fuse_post_ops"}))).run(given)
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4)
