"""In place: scatters change elements where they are; what dies into an output is made in the caller's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

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


# -- sums in the memory of an addend, before an operator with bounds -----------------------------------------

_ODD = (np.inf, -np.inf, 1.0)
_BOUNDS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Relu": lambda x: np.maximum(x, 0),
    "Clip": lambda x: np.clip(x, -1, 1.5),
    "HardSigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "LeakyRelu": lambda x: np.where(x >= 0, x, 0 * x),
}
_ATTRIBUTES = {"Clip": {"min": -1.0, "max": 1.5}, "LeakyRelu": {"alpha": 0.0}}


def means(b: GraphBuilder, x: Any, dtype: str, convolved: bool) -> Any:
    """The means of rows, as a product or a convolution: weights are positive, so that infinity stays infinity."""
    if convolved:
        return b.op("Conv", x, np.full((32, 16, 1, 1), 1 / 16).astype(dtype), strides=[1, 1])
    return b.op("MatMul", x, np.full((16, 32), 1 / 16).astype(dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("convolved", [False, True])
@pytest.mark.parametrize("first_bound", ["", "Relu"])
@pytest.mark.parametrize("bound", _BOUNDS)
def test_infinities_of_both_signs_sum_to_nan_before_a_bound(
    bound: str, first_bound: str, convolved: bool, dtype: str
) -> None:
    """A product is added into the memory of another one; the addend is gone when NaN is met."""
    b = GraphBuilder("two products")
    shape = (len(_ODD) ** 2, 16, 3, 3) if convolved else (len(_ODD) ** 2, 16)
    x, z = b.input("x", shape, dtype), b.input("z", shape, dtype)
    addend = means(b, x, dtype, convolved)
    addend = b.op(first_bound, addend) if first_bound else addend
    b.output(b.op(bound, b.op("Add", means(b, z, dtype, convolved), addend), **_ATTRIBUTES.get(bound, {})))
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    model = compile_graph(b.graph)
    for odd in (_ODD, (*_ODD[:2], np.nan), _ODD):
        first, second = np.repeat(odd, len(odd)), np.tile(odd, len(odd))
        arrays = [np.broadcast_to(v.reshape(-1, *[1] * (len(shape) - 1)), shape) for v in (first, second)]
        (found,) = model.run([a.astype(kind) for a in arrays])
        rows = found.astype(np.float32).reshape(len(first), -1)
        with np.errstate(invalid="ignore"):
            total = (np.maximum(first, 0) if first_bound else first) + second
            wanted = _BOUNDS[bound](total)
        np.testing.assert_allclose(rows, np.broadcast_to(wanted[:, None], rows.shape), rtol=1e-2)
