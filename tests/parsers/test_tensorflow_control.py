"""Control flow of both versions and lists of tensors, compiled and compared with TensorFlow."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import onnx_ir as ir
import pytest

import ge
from ge.errors import GeError, UnsupportedOperatorsError
from ge.parsers.tensorflow.graph import GraphNode, topological
from ge.parsers.tensorflow.parser import parse

tf = pytest.importorskip("tensorflow")

from tests.support.tf_models import concrete, parse_function  # noqa: E402

v1 = tf.compat.v1
RANDOM = np.random.default_rng(3)
X = RANDOM.standard_normal((3, 4)).astype(np.float32)
W = RANDOM.standard_normal((4, 4)).astype(np.float32)


def kinds(graph: ir.Graph) -> Counter[str]:
    """How many nodes of each operator a graph has, nested ones included."""
    found: Counter[str] = Counter()
    for node in graph:
        found[node.op_type] += 1
        for attr in node.attributes.values():
            if attr.type == ir.AttributeType.GRAPH:
                found += kinds(attr.value)
    return found


def compiled(function: Callable[..., Any], *arrays: np.ndarray) -> ir.Graph:
    """Check a function against TensorFlow; its graph."""
    traced = concrete(function, arrays)
    expected = [t.numpy() for t in tf.nest.flatten(traced(*(tf.constant(a) for a in arrays)))]
    graph = parse_function(traced).graph
    for mine, theirs in zip(ge.compile(graph).run(list(arrays)), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    return graph


def as_text_and_back(x: Any) -> Any:
    return tf.strings.to_number(tf.strings.as_string(x))


# -- version 2 -----------------------------------------------------------------------------------------------


def test_branch_on_a_computed_condition_is_an_if() -> None:
    def function(x: Any) -> Any:
        return tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2, lambda: tf.matmul(x, W))

    assert kinds(compiled(function, X))["If"] == 1
    compiled(function, -X)


def test_branch_on_a_known_condition_is_inlined_whatever_the_other_one_holds() -> None:
    def function(x: Any) -> Any:
        return tf.cond(tf.shape(x)[0] > 2, lambda: x * 2, lambda: as_text_and_back(x))

    assert kinds(compiled(function, X)) == Counter(Mul=1)


def test_branches_that_may_be_taken_must_be_supported() -> None:
    def function(x: Any) -> Any:
        return tf.cond(x[0, 0] > 2, lambda: x * 2, lambda: as_text_and_back(x))

    with pytest.raises(UnsupportedOperatorsError, match="AsString"):
        parse_function(concrete(function, [X]))


@pytest.mark.parametrize("choice", [-1, 0, 1, 2, 7])
def test_case_takes_the_branch_of_its_index(choice: int) -> None:
    def function(k: Any, x: Any) -> Any:
        return tf.switch_case(k, [lambda: x, lambda: x * 2, lambda: tf.exp(x)])

    compiled(function, np.int32(choice), X)


def test_loop_with_a_known_number_of_steps_has_a_trip_count_and_no_counters() -> None:
    def function(x: Any) -> Any:
        for i in tf.range(2, 12, 3):
            x = tf.tanh(tf.matmul(x, W)) + tf.cast(i, tf.float32)
        return x

    graph = compiled(function, X)
    loop = next(n for n in graph if n.op_type == "Loop")
    assert loop.attributes["num_states"].value == 1
    assert loop.attributes["max_trip"].value == 4
    assert loop.inputs[1] is None


def test_loop_with_a_computed_condition_keeps_it() -> None:
    def function(x: Any) -> Any:
        k = tf.constant(0)
        while k < 10 and tf.reduce_sum(x) < 100.0:
            x, k = x * 1.5, k + 1
        return x, k

    loop = next(n for n in compiled(function, np.abs(X)) if n.op_type == "Loop")
    assert loop.inputs[0] is None
    assert loop.inputs[1] is not None


def test_loop_that_never_runs_leaves_its_states() -> None:
    def function(x: Any) -> Any:
        return tf.while_loop(lambda i, y: i < 0, lambda i, y: (i + 1, y * 2), [tf.constant(0), x])

    assert kinds(compiled(function, X))["Loop"] == 0


def test_items_written_at_the_counter_are_collected_by_the_loop() -> None:
    def function(x: Any) -> Any:
        items = tf.TensorArray(tf.float32, size=5)
        for j in tf.range(5):
            items = items.write(j, x * tf.cast(j, tf.float32))
        return items.stack()

    found = kinds(compiled(function, X))
    assert found["Loop"] == 1
    assert found["ScatterNd"] == 0


def test_items_written_from_a_later_position_on_are_collected_too() -> None:
    found = kinds(compiled(lambda x: tf.scan(lambda a, v: a + v, x), X))
    assert found["Loop"] == 1


def test_items_read_in_the_loop_are_kept_in_a_buffer() -> None:
    def function(x: Any) -> Any:
        items = tf.TensorArray(tf.float32, size=4, clear_after_read=False).unstack(tf.zeros([4, 3, 4]))
        for j in tf.range(3):
            items = items.write(j + 1, items.read(j) + x)
        return items.stack()

    assert kinds(compiled(function, X))["ScatterNd"] == 1


def test_map_fn_over_rows_is_a_loop() -> None:
    assert kinds(compiled(lambda x: tf.map_fn(lambda v: v * tf.reduce_sum(v), x), X))["Loop"] == 1


def test_list_that_grows_is_unrolled() -> None:
    def function(x: Any) -> Any:
        items = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        for j in tf.range(5):
            items = items.write(items.size(), x * tf.cast(j, tf.float32))
        return items.concat()

    assert kinds(compiled(function, X))["Loop"] == 0


def test_state_that_grows_is_unrolled() -> None:
    def function(x: Any) -> Any:
        rows = tf.zeros([0, 4])
        for j in tf.range(3):
            tf.autograph.experimental.set_loop_options(shape_invariants=[(rows, tf.TensorShape([None, 4]))])
            rows = tf.concat([rows, x[j : j + 1] * 2], 0)
        return rows

    assert kinds(compiled(function, X))["Loop"] == 0


def test_state_that_grows_for_an_unknown_number_of_steps_is_reported() -> None:
    def function(x: Any) -> Any:
        rows = tf.zeros([0, 4])
        while tf.reduce_sum(rows) < 10.0:
            tf.autograph.experimental.set_loop_options(shape_invariants=[(rows, tf.TensorShape([None, 4]))])
            rows = tf.concat([rows, x], 0)
        return rows

    with pytest.raises(UnsupportedOperatorsError, match="number of steps is computed at run time"):
        parse_function(concrete(function, [X]))


def test_lists_are_pushed_popped_resized_and_concatenated() -> None:
    raw = tf.raw_ops

    def function(x: Any) -> Any:
        def pushed(*items: Any) -> Any:
            made = raw.EmptyTensorList(element_shape=[3, 4], max_num_elements=-1, element_dtype=tf.float32)
            for item in items:
                made = raw.TensorListPushBack(input_handle=made, tensor=item)
            return made

        two = pushed(x, x * 2)
        rest, last = raw.TensorListPopBack(
            input_handle=pushed(x, x * 3), element_shape=[3, 4], element_dtype=tf.float32
        )
        longer = raw.TensorListResize(input_handle=rest, size=3)
        stacked = raw.TensorListStack(input_handle=longer, element_shape=[3, 4], element_dtype=tf.float32)
        joined, _ = raw.TensorListConcat(input_handle=two, element_dtype=tf.float32, element_shape=[3, 4])
        both = raw.TensorListConcatLists(
            input_a=pushed(x, x * 2), input_b=pushed(x * 5), element_dtype=tf.float32
        )
        picked = raw.TensorListGather(
            input_handle=both, indices=[2, 0], element_shape=[3, 4], element_dtype=tf.float32
        )
        return last, stacked, joined, picked, raw.TensorListLength(input_handle=both)

    compiled(function, X)


def test_reading_a_node_that_is_gone_is_refused() -> None:
    nodes = {"y": GraphNode("y", "Neg", [("inside", 0)], [], {})}
    with pytest.raises(GeError, match="'inside' is inside a loop"):
        topological(nodes, ["y"], lambda node: [name for name, _ in node.inputs])


# -- version 1 -----------------------------------------------------------------------------------------------


@pytest.fixture
def version_1() -> Any:
    v1.disable_control_flow_v2()
    yield
    v1.enable_control_flow_v2()


def frozen(build: Callable[..., Any], *arrays: np.ndarray) -> ir.Graph:
    """Check a version 1 graph against a session; its GE graph."""
    with tf.Graph().as_default() as graph, v1.Session() as session:
        fed = [v1.placeholder(a.dtype, a.shape, name=f"in{i}") for i, a in enumerate(arrays)]
        outputs = [tf.identity(o, name=f"out{i}") for i, o in enumerate(tf.nest.flatten(build(*fed)))]
        expected: Sequence[np.ndarray] = session.run(outputs, dict(zip(fed, arrays, strict=True)))
        definition = graph.as_graph_def()
    parsed = parse(definition, out_nodes=[f"out{i}" for i in range(len(outputs))])
    feeds = [arrays[int((v.name or "")[2:])] for v in parsed.inputs]
    for mine, theirs in zip(ge.compile(parsed).run(feeds), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    assert any(n.op in ("Switch", "Enter") for n in definition.node)
    return parsed


@pytest.mark.usefixtures("version_1")
class TestVersion1:
    def test_merges_of_one_predicate_share_an_if(self) -> None:
        def build(x: Any) -> Any:
            total = tf.reduce_sum(x)
            return v1.cond(total > 0, lambda: (x * 2, total), lambda: (x - 1, tf.reduce_max(x)))

        assert kinds(frozen(build, X))["If"] == 1
        frozen(build, -X)

    def test_branches_nest(self) -> None:
        def build(x: Any) -> Any:
            def inner() -> Any:
                return v1.cond(x[0, 0] > 0, lambda: x * 3, lambda: tf.exp(x))

            return v1.cond(tf.reduce_sum(x) > 0, inner, lambda: x - 1)

        for sign in (1, -1):
            assert kinds(frozen(build, X * sign))["If"] == 2

    def test_branches_on_one_predicate_follow_each_other(self) -> None:
        def build(x: Any) -> Any:
            holds = tf.reduce_sum(x) > 0
            first = v1.cond(holds, lambda: x * 2, lambda: x - 1)
            return v1.cond(holds, lambda: first + 1, lambda: first * 5)

        frozen(build, X)
        frozen(build, -X)

    def test_branch_not_taken_by_default_is_left_out(self) -> None:
        def build(x: Any) -> Any:
            training = v1.placeholder_with_default(False, [])
            return v1.cond(training, lambda: tf.nn.dropout(x, rate=0.5), lambda: x - 1)

        assert kinds(frozen(build, X)) == Counter(Sub=1)

    def test_case_is_a_chain(self) -> None:
        def build(x: Any) -> Any:
            return v1.case([(x[0, 0] > 9, lambda: x * 2), (x[0, 1] < 9, lambda: x * 3)], default=lambda: x)

        frozen(build, X)

    def test_loop_with_invariants(self) -> None:
        def build(x: Any) -> Any:
            return v1.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, tf.tanh(y @ W + x)), [0, x])

        loop = next(n for n in frozen(build, X) if n.op_type == "Loop")
        assert loop.attributes["max_trip"].value == 5

    def test_loop_on_a_computed_condition(self) -> None:
        def build(x: Any) -> Any:
            return v1.while_loop(lambda i, y: tf.reduce_sum(y) < 100.0, lambda i, y: (i + 1, y * 1.5), [0, x])

        frozen(build, np.abs(X))

    def test_loops_and_branches_nest(self) -> None:
        def build(x: Any) -> Any:
            def body(i: Any, y: Any) -> Any:
                _, z = v1.while_loop(
                    lambda j, z: j < 3, lambda j, z: (j + 1, z + tf.cast(i * j, tf.float32) + x), [0, y]
                )
                return i + 1, v1.cond(tf.equal(i % 2, 0), lambda: z * 0.5, lambda: z - x)

            return v1.while_loop(lambda i, y: i < 4, body, [0, x])[1]

        found = kinds(frozen(build, X))
        assert found["Loop"] == 2
        assert found["If"] == 1

    def test_loop_in_a_branch(self) -> None:
        def build(x: Any) -> Any:
            def repeated() -> Any:
                return v1.while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, y * 2), [0, x])[1]

            return v1.cond(tf.reduce_sum(x) > 0, repeated, lambda: x)

        frozen(build, X)

    def test_tensor_arrays_carry_items_in_and_out(self) -> None:
        def build(x: Any) -> Any:
            rows = tf.TensorArray(tf.float32, size=3).unstack(x)
            results = tf.TensorArray(tf.float32, size=3)

            def body(i: Any, h: Any, out: Any) -> Any:
                h = tf.tanh(h + rows.read(i))
                return i + 1, h, out.write(i, h)

            _, state, results = v1.while_loop(lambda i, *_: i < 3, body, [0, tf.zeros([4]), results])
            return results.stack(), state

        found = kinds(frozen(build, X))
        assert found["ScatterNd"] == 0

    def test_reading_a_loop_from_outside_is_refused(self) -> None:
        with tf.Graph().as_default() as graph:
            x = v1.placeholder(tf.float32, [3], name="x")
            v1.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * 2), [0, x])
            tf.identity(x, name="y")
            definition = graph.as_graph_def()
        next(n for n in definition.node if n.name == "y").input[0] = "while/Merge_1"
        with pytest.raises(GeError, match="no node 'y'"):  # what reads a loop's inside belongs to it
            parse(definition, out_nodes=["y"])

    def test_loop_without_structure_is_reported(self) -> None:
        def build(x: Any) -> Any:
            return v1.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * 2), [0, x])[1]

        with tf.Graph().as_default() as graph:
            build(v1.placeholder(tf.float32, [3], name="x"))
            definition = graph.as_graph_def()
        for node in definition.node:
            if node.op == "LoopCond":
                node.op = "Identity"
        with pytest.raises(UnsupportedOperatorsError, match="has 0 conditions"):
            parse(definition, out_nodes=["while/Exit_1"])
