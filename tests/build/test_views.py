"""Views and aliases: which values need no memory of their own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ge
from ge.compiler import compile_graph
from ge.errors import GeError
from ge.ops.interpret import interpret
from ge.ops.views import reshape_view
from ge.options import CompileOptions
from ge.plan import View
from tests.support.small_graphs import compiled, floats, graph_of, kinds


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_reshape_of_a_strided_view_agrees_with_numpy(data):
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4))
    array = np.arange(np.prod(shape)).reshape(shape)
    array = array.transpose(data.draw(st.permutations(range(len(shape)))))
    steps = [data.draw(st.sampled_from([1, 1, 2])) for _ in shape]
    array = array[tuple(slice(None, None, s) for s in steps)]
    target, rest = [], array.size
    while rest > 1:
        factor = data.draw(st.sampled_from([d for d in range(2, rest + 1) if rest % d == 0]))
        target.append(factor)
        rest //= factor
    view = View(0, "int64", array.shape, tuple(s // 8 for s in array.strides))
    found = reshape_view(view, target)
    wanted = array.reshape(target)
    if not np.shares_memory(wanted, array):
        assert found is None or array.size == 0
        return
    assert found is not None
    strides = tuple(s // 8 for s in wanted.strides)
    assert all(a == b for a, b, n in zip(found.strides, strides, target, strict=True) if n > 1)


def test_reshapes_and_leading_slices_cost_nothing():
    def build(b):
        v = b.op("MatMul", b.input("x", (8, 4), "float32"), floats(4, 6))
        v = b.op("Slice", v, starts=[2, 0], ends=[6, 6])
        return b.op("MatMul", b.op("Reshape", v, shape=[8, 3]), floats(3, 5))

    assert kinds(compiled(build)) == ["matmul", "matmul"]


def test_attention_needs_no_copies():
    def build(b):
        v = b.input("x", (2, 6, 16), "float32")

        def heads(y):
            return b.op("Transpose", b.op("Reshape", y, shape=[2, 6, 4, 4]), perm=[0, 2, 1, 3])

        q, k, w = (heads(b.op("MatMul", v, floats(16, 16, seed=i))) for i in range(3))
        p = b.op("Softmax", b.op("Mul", b.op("MatMul", q, b.op("Transpose", k, perm=[0, 1, 3, 2])), 0.5))
        y = b.op("Transpose", b.op("MatMul", p, w), perm=[0, 2, 1, 3])
        return b.op("MatMul", b.op("Reshape", y, shape=[2, 6, 16]), floats(16, 16))

    assert kinds(compiled(build)) == ["matmul", "matmul", "kernel", "matmul", "matmul"]


def test_concat_of_rows_is_written_in_place():
    def build(b):
        v = b.input("x", (4, 4), "float32")
        parts = [b.op("MatMul", v, floats(4, 4, seed=i)) for i in range(3)]
        return b.op("MatMul", b.op("Concat", *parts, axis=0), floats(4, 5))

    assert kinds(compiled(build)) == ["matmul"] * 4


def test_concat_of_columns_of_products_is_written_in_place():
    def build(b):
        v = b.input("x", (4, 4), "float32")
        parts = [b.op("MatMul", b.op("Exp", v) if i else v, floats(4, 4, seed=i)) for i in range(2)]
        return b.op("Exp", b.op("Concat", *parts, axis=1))

    assert (
        kinds(compiled(build)) == ["matmul", "kernel", "matmul", "kernel"]
        or kinds(compiled(build)).count("matmul") == 2
    )


@pytest.mark.parametrize("times", [1, 2])
def test_an_input_returned_is_copied(times):
    def build(b):
        v = b.input("x", (3, 2), "float32")
        return [b.op("Reshape", v, shape=[6]) for _ in range(times)]

    assert kinds(compiled(build)) == ["copy"] * times


def test_one_value_returned_twice_is_copied_once():
    def build(b):
        v = b.op("Exp", b.input("x", (3, 2), "float32"))
        return [v, b.op("Reshape", v, shape=[6])]

    assert kinds(compiled(build)) == ["kernel", "copy"]


def test_a_constant_returned_is_copied():
    assert kinds(compiled(lambda b: [b.constant(floats(3)), b.op("Exp", b.input("x", (2,), "float32"))])) == [
        "kernel",
        "copy",
    ]


def test_strided_slices_are_read_by_kernels_where_they_lie():
    def build(b):
        v = b.op("MatMul", b.input("x", (4, 4), "float32"), floats(4, 8))
        left, right = b.op("Split", v, axis=1, sizes=[4, 4])
        return b.op("Mul", b.op("Sigmoid", left), right)

    assert kinds(compiled(build)) == ["matmul", "kernel"]


def test_split_returned_as_outputs():
    def build(b):
        return b.op("Split", b.op("Exp", b.input("x", (4, 9), "float32")), axis=1, sizes=[2, 3, 4])

    compiled(build)


def test_empty_tensors_need_no_tasks():
    def build(b):
        v = b.input("x", (0, 4), "float32")
        return b.op("Exp", v)

    assert kinds(compiled(build)) == []


def dense_block(b, layers=3):
    """Each layer reads all that came before, normalises it and adds some channels."""
    v = b.input("x", (1, 4, 8, 8), "float32")
    v = b.op("Conv", v, floats(8, 4, 1, 1))
    for layer in range(layers):
        channels = int(v.shape[1])
        y = b.op("Relu", b.op("Mul", v, floats(channels, 1, 1, seed=layer, low=0.1)))
        y = b.op("Conv", y, floats(6, channels, 3, 3, seed=layer), pads_begin=[1, 1], pads_end=[1, 1])
        v = b.op("Concat", v, y, axis=1)
    return b.op("ReduceMean", v, axes=[2, 3])


def test_a_dense_block_writes_each_layer_once_into_the_whole():
    model = compiled(dense_block, tolerance=1e-4)
    assert not {"copy", "reorder"} & set(kinds(model))
    assert kinds(model).count("kernel") <= 5


def test_inception_branches_are_written_side_by_side():
    def build(b):
        v = b.input("x", (2, 4, 8, 8), "float32")
        parts = [
            b.op("Relu", b.op("Conv", v, floats(5, 4, 1, 1))),
            b.op("Conv", v, floats(3, 4, 1, 1, seed=1)),
        ]
        parts.append(b.op("MaxPool", v, kernel=[3, 3], pads_begin=[1, 1], pads_end=[1, 1]))
        return b.op("Conv", b.op("Concat", *parts, axis=1), floats(4, 12, 1, 1))

    model = compiled(build)
    assert sorted(kinds(model)) == ["conv", "conv", "conv", "kernel", "kernel", "pool"]


def test_checked_columns_cost_no_copy():
    """Columns of a table of indices are checked where they are; the kernel that gathers reads the table itself."""

    def build(b):
        ids = b.input("ids", (6, 3), "int64")
        columns = [b.op("Slice", ids, starts=[0, i], ends=[6, i + 1]) for i in range(3)]
        columns = [
            b.op("Checked", b.op("Reshape", c, shape=[6]), limits=[1 + 2**i]) for i, c in enumerate(columns)
        ]
        rows = [b.op("Gather", floats(1 + 2**i, 4), c, axis=0) for i, c in enumerate(columns)]
        return b.op("Concat", *rows, axis=1)

    graph, ids = graph_of(build), np.array([[1, 2, 4], [0, 1, 3]] * 3)
    model = compile_graph(graph, CompileOptions(), "test")
    np.testing.assert_array_equal(model(ids), interpret(graph, [ids])[0])
    assert kinds(model) == ["check"] * 3 + ["kernel"]
    assert [t.outputs for t in model.plan.tasks[:3]] == [[]] * 3
    with pytest.raises(GeError, match=r"\[4\] = 3 is not in \[0, 3\)"):
        model(np.array([[1, 2, 4]] * 4 + [[1, 3, 4]] * 2))


def test_a_check_of_computed_numbers_stays_between_two_kernels():
    def build(b):
        ids = b.op("Add", b.input("ids", (6,), "int64"), np.int64(1))
        return b.op("Add", b.op("Gather", floats(8, 4), b.op("Checked", ids, limits=[8]), axis=0), 1.0)

    graph = graph_of(build)
    model = compile_graph(graph, CompileOptions(), "test")
    np.testing.assert_array_equal(model(np.arange(6)), interpret(graph, [np.arange(6)])[0])
    assert kinds(model) == ["kernel", "check", "kernel"]
    with pytest.raises(GeError, match=r"\[5\] = 8 is not in \[0, 8\)"):
        model(np.arange(2, 8))


@pytest.mark.parametrize("shape", [(4,), (1, 5, 1), (3, 5, 4)])
def test_a_product_with_post_ops_of_tensors_keeps_the_order_of_its_axes(shape: tuple[int, ...]) -> None:
    """oneDNN reads the operands of post-ops far from their memory where the result's axes are in another order."""
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(s).astype(np.float32) for s in ((3, 5, 8), (8, 4), shape)]
    g = ge.Graph("net")
    x, w, b = (g.input(name, a.shape) for name, a in zip("xwb", arrays, strict=True))
    g.output(ge.ops.transpose(ge.ops.add(ge.ops.matmul(x, w), b), perm=[1, 0, 2]), "y")
    model = ge.compile(g)
    strides = [t.outputs[0].strides for t in model.plan.tasks if t.kind == "matmul"]
    assert all(list(s) == sorted(s, reverse=True) for s in strides)
    wanted = (arrays[0] @ arrays[1] + arrays[2]).transpose(1, 0, 2)
    np.testing.assert_allclose(model(*arrays), wanted, rtol=1e-5, atol=1e-5)
