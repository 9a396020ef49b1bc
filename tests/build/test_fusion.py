"""Vector fusion: few kernels, right answers, no circles, linear time."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ge.build.form_units import form_units
from ge.build.fusion import MAX_NODES, fuse
from ge.engines import place
from ge.ir.values import desc_of
from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions
from ge.target import host
from tests.support.small_graphs import compiled, floats, graph_of, kinds


def x(b, *shape, name="x", dtype="float32"):
    return b.input(name, shape or (4, 8), dtype)


def test_a_chain_of_elementwise_nodes_is_one_kernel():
    def build(b):
        v = x(b)
        return b.op("Tanh", b.op("Mul", b.op("Add", v, 1.0), b.op("Exp", v)))

    assert kinds(compiled(build)) == ["kernel"]


def test_softmax_takes_in_what_comes_before_and_after():
    def build(b):
        v, mask = x(b, 2, 3, 8, 8), x(b, 2, 1, 1, 8, name="mask")
        return b.op("Mul", b.op("Softmax", b.op("Add", b.op("Mul", v, 0.125), mask)), 2.0)

    assert kinds(compiled(build)) == ["kernel"]


def test_a_value_read_outside_is_written_too():
    def build(b):
        v = b.op("Add", x(b), x(b, name="y"))
        return b.op("MatMul", b.op("LayerNorm", v), floats(8, 8)), v

    model = compiled(build)
    assert kinds(model) == ["kernel", "matmul"]
    assert len(model.plan.tasks[0].outputs) == 2


def test_two_groups_with_a_product_between_them_stay_two():
    def build(b):
        v = b.op("Exp", x(b, 8, 8))
        y = b.op("MatMul", v, floats(8, 8))
        return b.op("Add", b.op("Tanh", b.op("Sin", v)), b.op("Sin", y))

    model = compiled(build)
    assert kinds(model).count("kernel") == 2


def test_reductions_over_different_axes_are_separate_kernels():
    def build(b):
        v = b.op("Exp", x(b, 16, 8))
        return b.op("Softmax", b.op("Softmax", v, axes=[0]), axes=[1])

    assert kinds(compiled(build)) == ["kernel", "kernel"]


def test_a_small_expensive_value_is_not_recomputed_for_every_row():
    def build(b):
        small = b.op("Pow", b.op("Abs", x(b, 8, name="s")), 1.7)
        return b.op("Add", x(b, 512, 8), small)

    assert kinds(compiled(build)) == ["kernel", "kernel"]


def test_views_between_members_are_looked_through():
    def build(b):
        v = b.op("Exp", x(b, 4, 8))
        return b.op("Tanh", b.op("Reshape", b.op("Neg", v), shape=[8, 4]))

    assert kinds(compiled(build)) == ["kernel"]


def test_a_late_node_does_not_join_an_early_group_whose_result_is_kept_anyway():
    def build(b):
        after = b.op("Relu", b.op("Mul", x(b, 64, 64), 2.0))
        v = after
        for seed in range(16):
            v = b.op("Tanh", b.op("MatMul", v, floats(64, 64, seed=seed) * np.float32(0.1)))
        mask = b.op("Greater", after, 0.0)
        return b.op("MatMul", after, v), b.op("Select", mask, v, 0.0)

    tasks = [t for t in compiled(build).plan.tasks if t.kind == "kernel"]
    assert len(tasks[0].outputs) == 1  # no mask that waits for the end
    assert "Greater" in tasks[-1].name


def test_equal_kernels_are_compiled_once():
    def build(b):
        v = x(b, 8, 8)
        for seed in range(3):
            v = b.op("Softmax", b.op("MatMul", v, floats(8, 8, seed=seed)))
        return v

    model = compiled(build)
    assert kinds(model) == ["matmul", "kernel"] * 3 and len(model.plan.kernels) == 1


def test_fusion_can_be_switched_off():
    def build(b):
        return b.op("Tanh", b.op("Exp", x(b)))

    assert (
        kinds(compiled(build, CompileOptions(disabled_passes=frozenset({"vector_fusion"})))) == ["kernel"] * 2
    )


def test_kernels_write_over_inputs_that_die():
    def build(b):
        v = b.op("MatMul", x(b, 8, 8), floats(8, 8))
        return b.op("MatMul", b.op("Softmax", v), floats(8, 4))

    model = compiled(build)
    kernel = model.plan.tasks[1]
    places = [model.plan.buffers[v.buffer].offset for v in (kernel.inputs[0], kernel.outputs[0])]
    assert places[0] == places[1] and model.plan.report["arena_bytes"] == 256


def test_residuals_that_die_are_accumulated_into():
    def build(b):
        v = b.op("MatMul", x(b, 8, 8), floats(8, 8))
        y = b.op("MatMul", b.op("MatMul", v, floats(8, 8, seed=1)), floats(8, 8, seed=2))
        return b.op("MatMul", b.op("Add", y, v), floats(8, 8, seed=3))

    model = compiled(build)
    assert [t.attrs["post_ops"] for t in model.plan.tasks] == [[], [], ["sum"], []]


def test_a_residual_that_is_also_the_operand_is_added_not_overwritten():
    def build(b):
        v = b.op("MatMul", x(b, 8, 8), floats(8, 8))
        return b.op("MatMul", b.op("Add", b.op("MatMul", v, floats(8, 8, seed=1)), v), floats(8, 8, seed=3))

    model = compiled(build)
    assert [t.attrs["post_ops"] for t in model.plan.tasks] == [[], ["add"], []]


# -- random graphs -----------------------------------------------------------------------------------------------

UNARY = ["Neg", "Exp", "Tanh", "Relu", "Sigmoid", "Abs", "Square", "Sin"]
BINARY = ["Add", "Sub", "Mul", "Maximum", "Minimum"]


@st.composite
def vector_graphs(draw):
    """A graph of vector operators whose values stay of moderate size."""
    b = GraphBuilder("random")
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 5, 16]), min_size=2, max_size=3)))
    values = [
        b.input("x", shape, "float32"),
        b.input("y", shape, "float32"),
        b.input("row", shape[-1:], "float32"),
    ]
    for _ in range(draw(st.integers(1, 14))):
        v = draw(st.sampled_from(values))
        rank = desc_of(v).rank
        kind = draw(
            st.sampled_from(
                ["unary", "binary", "reduce", "softmax", "norm", "move", "slice", "concat", "select"]
            )
        )
        if kind == "unary":
            v = b.op("Tanh", b.op(draw(st.sampled_from(UNARY)), v))
        elif kind == "binary":
            others = [o for o in values if _broadcasts(desc_of(o).shape, desc_of(v).shape)]
            v = b.op("Tanh", b.op(draw(st.sampled_from(BINARY)), v, draw(st.sampled_from(others))))
        elif kind == "reduce":
            op = draw(st.sampled_from(["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"]))
            v = b.op(op, v, axes=[draw(st.integers(0, rank - 1))], keepdims=True)
        elif kind == "softmax":
            v = b.op("Softmax", v, axes=[draw(st.integers(0, rank - 1))])
        elif kind == "norm":
            v = b.op("LayerNorm", v, epsilon=0.5)
        elif kind == "move" and draw(st.booleans()):
            v = b.op("Transpose", v, perm=draw(st.permutations(range(rank))))
        elif kind == "move":
            v = b.op("Reshape", v, shape=[desc_of(v).size])
        elif kind == "slice":
            v = b.op("Slice", v, starts=[0] * rank, ends=[max(1, d - 1) for d in desc_of(v).shape])
        elif kind == "concat":
            v = b.op("Concat", v, b.op("Neg", v), axis=draw(st.integers(0, rank - 1)))
        else:
            v = b.op("Select", b.op("Greater", v, 0.25), v, b.op("Mul", v, 0.5))
        values.append(v)
    for value in {values[-1], draw(st.sampled_from(values)), draw(st.sampled_from(values))}:
        b.output(value)
    return b.graph


def _broadcasts(a, b):
    try:
        np.broadcast_shapes(a, b)
    except ValueError:
        return False
    return True


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(vector_graphs())
def test_random_graphs_give_the_interpreters_answers(graph):
    compiled(graph, tolerance=1e-4)


# -- structure ---------------------------------------------------------------------------------------------------


def long_graph(count: int):
    def build(b):
        v = w = x(b, 16, 16)
        for index in range(count // 4):
            v = b.op("Add", b.op("Tanh", v), w)
            w = b.op("Mul", b.op("Sigmoid", w), v)
            if index % 8 == 7:
                v = b.op("Softmax", v)
        return [v, w]

    return graph_of(build)


def test_groups_are_bounded_and_cover_every_node():
    graph = long_graph(160)
    place(graph, host())
    parts = form_units(graph, CompileOptions())
    sizes = [len(u.nodes) for u in parts.units]
    assert sum(sizes) == len(list(graph)) and max(sizes) <= MAX_NODES


@pytest.mark.slow
def test_fusion_takes_linear_time():
    seconds = []
    for count in (1_000, 4_000):
        graph = long_graph(count)
        place(graph, host())
        aliases = form_units(graph, CompileOptions(disabled_passes=frozenset({"vector_fusion"}))).aliases
        start = time.thread_time()
        fuse(graph, aliases, host())
        seconds.append(time.thread_time() - start)
    assert seconds[1] < 8 * seconds[0] + 0.5


def test_sums_of_columns_do_not_compute_slow_values_again():
    def build(b):
        v = b.op("Mul", x(b, 1024, 512), b.op("Erf", x(b, 1024, 512, name="y")))
        return b.op("MatMul", v, floats(512, 8)), b.op("ReduceSum", v, axes=[0])

    readers = [t for t in compiled(build).plan.tasks if t.kind == "kernel" and len(t.inputs) == 2]
    assert len(readers) == 1
