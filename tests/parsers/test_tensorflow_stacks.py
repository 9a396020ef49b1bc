"""Gradients of version-1 loops: stacks and gradient arrays as lists, compared with TensorFlow's own sessions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import onnx_ir as ir
import pytest

import ge
from ge.errors import UnsupportedOperatorsError
from ge.parsers.tensorflow.parser import parse

tf = pytest.importorskip("tensorflow")
v1 = tf.compat.v1

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
W = np.cos(np.arange(16, dtype=np.float32)).reshape(4, 4) / 2


@pytest.fixture(autouse=True)
def version_1() -> Iterator[None]:
    v1.disable_control_flow_v2()
    yield
    v1.enable_control_flow_v2()


def checked(build: Callable[..., Any], *arrays: np.ndarray) -> ir.Graph:
    """Check results and gradients of a version-1 graph against a session; its GE graph.

    `build` returns a tensor; the gradients of its sum are taken for all floating-point inputs.
    """
    return _checked(_with_gradients(build), arrays)


def _with_gradients(build: Callable[..., Any]) -> Callable[..., Any]:
    def built(*fed: Any) -> list[Any]:
        y = build(*fed)
        wanted = [f for f in fed if f.dtype.is_floating]
        return [y, *v1.gradients(y, wanted, unconnected_gradients="zero")]

    return built


def _checked(build: Callable[..., Any], arrays: Sequence[np.ndarray]) -> ir.Graph:
    with tf.Graph().as_default() as graph, v1.Session() as session:
        fed = [v1.placeholder(a.dtype, a.shape, name=f"in{i}") for i, a in enumerate(arrays)]
        outputs = [tf.identity(o, name=f"out{i}") for i, o in enumerate(build(*fed))]
        expected = session.run(outputs, dict(zip(fed, arrays, strict=True)))
        definition = graph.as_graph_def()
    assert any(n.op == "StackPopV2" for n in definition.node)
    parsed = parse(definition, out_nodes=[f"out{i}" for i in range(len(outputs))])
    feeds = [arrays[int((v.name or "")[2:])] for v in parsed.inputs]
    for mine, theirs in zip(ge.compile(parsed).run(feeds), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    return parsed


def loops(graph: ir.Graph) -> list[ir.Node]:
    return [n for n in graph if n.op_type == "Loop"]


def test_a_loop_and_its_gradient_are_two_loops() -> None:
    def build(x: Any, w: Any) -> Any:
        return v1.while_loop(lambda i, _: i < 5, lambda i, h: (i + 1, tf.tanh(h @ w) * x), [0, x])[1]

    assert len(loops(checked(build, X, W))) == 2


def test_steps_limited_by_maximum_iterations() -> None:
    def build(x: Any, w: Any) -> Any:
        def body(i: Any, h: Any) -> Any:
            return i + 1, tf.tanh(h @ w)

        return v1.while_loop(lambda i, _: i < 9, body, (0, x), maximum_iterations=4)[1]

    checked(build, X, W)


@pytest.mark.parametrize("limit", [-1.0, 0.3, 2.0, 1e9])
def test_a_number_of_steps_that_is_computed_at_run_time(limit: float) -> None:
    """None, some, and all of the steps that maximum_iterations allows."""

    def build(x: Any, w: Any, most: Any) -> Any:
        def body(i: Any, h: Any) -> Any:
            return i + 1, tf.sin(h @ w) * 3 + h

        def goes_on(i: Any, h: Any) -> Any:
            return tf.reduce_sum(h * h) < most

        return v1.while_loop(goes_on, body, (0, x), maximum_iterations=6)[1]

    checked(build, X / 8, W, np.asarray(limit, np.float32))


def test_a_number_of_steps_without_a_limit_is_refused() -> None:
    def build(x: Any, w: Any) -> Any:
        return v1.while_loop(lambda h: tf.reduce_sum(h * h) < 50, lambda h: tf.sin(h @ w) + 1 + h, [x])

    with pytest.raises(UnsupportedOperatorsError, match="changes its length in every step"):
        checked(build, X, W)


@pytest.mark.parametrize("inner_steps", [1, 3])
def test_nested_loops(inner_steps: int) -> None:
    def build(x: Any, w: Any) -> Any:
        def outer(i: Any, h: Any) -> Any:
            def inner(j: Any, k: Any) -> Any:
                return j + 1, tf.tanh(k @ w)

            h = v1.while_loop(lambda j, _: j < inner_steps, inner, [0, h])[1]
            return i + 1, h * x

        return v1.while_loop(lambda i, _: i < 4, outer, [0, x])[1]

    assert len(loops(checked(build, X, W))) == 2


def test_three_nested_loops() -> None:
    def build(x: Any, w: Any) -> Any:
        def repeated(depth: int, h: Any) -> Any:
            def body(i: Any, k: Any) -> Any:
                k = repeated(depth - 1, k) if depth else k
                return i + 1, tf.tanh(k @ w) + x

            return v1.while_loop(lambda i, _: i < 2 + depth, body, [0, h])[1]

        return repeated(2, x)

    checked(build, X, W)


def test_a_loop_inside_that_runs_longer_each_time_is_refused() -> None:
    def build(x: Any, w: Any) -> Any:
        def outer(i: Any, h: Any) -> Any:
            h = v1.while_loop(lambda j, _: j <= i, lambda j, k: (j + 1, tf.tanh(k @ w)), [0, h])[1]
            return i + 1, h * x

        return v1.while_loop(lambda i, _: i < 3, outer, [0, x])[1]

    with pytest.raises(UnsupportedOperatorsError, match="a list"):
        checked(build, X, W)


def test_arrays_are_read_and_written() -> None:
    def build(x: Any, w: Any) -> Any:
        rows = tf.TensorArray(tf.float32, 3).unstack(x)
        results = tf.TensorArray(tf.float32, 3)

        def body(i: Any, h: Any, out: Any) -> Any:
            h = tf.tanh(tf.reshape(h, [1, 4]) @ w)[0] + rows.read(i)
            return i + 1, h, out.write(i, h * h)

        return v1.while_loop(lambda i, *_: i < 3, body, [0, tf.zeros([4]), results])[2].stack()

    found = checked(build, X, W)
    assert len(loops(found)) == 2


def test_an_array_read_twice_at_one_place_has_the_sum_of_gradients() -> None:
    def build(x: Any) -> Any:
        rows = tf.TensorArray(tf.float32, 3, clear_after_read=False).unstack(x)

        def body(i: Any, h: Any) -> Any:
            return i + 1, h * rows.read(0) + rows.read(i) * rows.read(i)

        y = v1.while_loop(lambda i, _: i < 3, body, [0, tf.ones([4])])[1]
        return y + rows.gather([1, 1, 2])[0] * rows.gather([1, 1, 2])[1]

    checked(build, X)


def test_scan_and_map() -> None:
    def build(x: Any, w: Any) -> Any:
        rows = v1.map_fn(lambda r: tf.exp(tf.reshape(r, [1, 4]) @ w)[0], x)
        return v1.scan(lambda a, r: tf.sin(a) * r, rows)

    checked(build, X, W)


@pytest.mark.parametrize("fold", [v1.foldl, v1.foldr])
def test_a_fold_over_one_item_takes_no_step(fold: Callable[..., Any]) -> None:
    checked(lambda x, _: fold(lambda a, r: a * r[:1] + r, x), X[:1], W)


def _recurrent(x: Any, w: Any, lengths: Any) -> Any:
    """What dynamic_rnn does with sequence lengths: as many steps as the longest takes, the rest zeros."""
    steps = int(x.shape[1])
    rows = tf.TensorArray(tf.float32, steps, element_shape=[3, 4]).unstack(tf.transpose(x, [1, 0, 2]))
    outputs = tf.TensorArray(tf.float32, steps, element_shape=[3, 4])
    last = tf.minimum(steps, tf.maximum(1, tf.reduce_max(lengths)))

    def body(t: Any, h: Any, out: Any) -> Any:
        new = tf.tanh(rows.read(t) + h @ w)
        over = tf.reshape(t >= lengths, [3, 1])
        h = tf.where(tf.tile(over, [1, 4]), h, new)
        return t + 1, h, out.write(t, tf.where(tf.tile(over, [1, 4]), tf.zeros_like(new), new))

    _, state, outputs = v1.while_loop(
        lambda t, *_: t < last, body, (0, tf.zeros([3, 4]), outputs), maximum_iterations=steps
    )
    return tf.concat([tf.reshape(outputs.stack(), [-1, 4]), state], 0)


@pytest.mark.parametrize("lengths", [[2, 5, 1], [1, 1, 1], [7, 7, 3]])
def test_sequences_of_different_lengths(lengths: list[int]) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(3, 7, 4)).astype(np.float32)
    checked(_recurrent, x, W, np.asarray(lengths, np.int32))


@pytest.mark.parametrize("lengths", [None, [2, 5, 1], [7, 7, 3]])
def test_dynamic_rnn(lengths: list[int] | None) -> None:
    if not hasattr(v1.nn, "dynamic_rnn") or not hasattr(v1.nn.rnn_cell, "BasicLSTMCell"):
        pytest.skip("recurrent cells of version 1 need Keras 2")

    class Cell:
        """A cell whose weights are the model's inputs."""

        state_size = output_size = 4

        def __init__(self, w: Any) -> None:
            self.w = w

        def __call__(self, inputs: Any, state: Any, scope: Any = None) -> Any:
            new = tf.tanh(inputs + state @ self.w)
            return new, new

        def zero_state(self, batch: Any, dtype: Any) -> Any:
            return tf.zeros([batch, 4], dtype)

    def build(x: Any, w: Any, *given: Any) -> Any:
        cell: Any = Cell(w)
        length = given[0] if given else None
        outputs, state = v1.nn.dynamic_rnn(cell, x, sequence_length=length, initial_state=tf.zeros([3, 4]))
        return tf.concat([tf.reshape(outputs, [-1, 4]), state], 0)

    x = np.random.default_rng(2).normal(size=(3, 7, 4)).astype(np.float32)
    checked(build, x, W, *([] if lengths is None else [np.asarray(lengths, np.int32)]))


def test_values_kept_on_one_side_of_a_branch_are_refused() -> None:
    def build(x: Any, w: Any) -> Any:
        def body(i: Any, h: Any) -> Any:
            h = v1.cond(tf.reduce_sum(h) > 0, lambda: tf.sin(h @ w), lambda: tf.exp(h))
            return i + 1, h

        return v1.while_loop(lambda i, _: i < 3, body, [0, x])[1]

    with pytest.raises(UnsupportedOperatorsError, match="StackV2"):
        checked(build, X, W)


def test_writes_to_a_gradient_array_accumulate() -> None:
    with tf.Graph().as_default() as graph, v1.Session() as session:
        x = v1.placeholder(tf.float32, X.shape, name="x")
        handle, flow = tf.raw_ops.TensorArrayV3(size=2, dtype=tf.float32, element_shape=[3, 4])
        kept, same = tf.raw_ops.TensorArrayGradV3(handle=handle, flow_in=flow, source="here")
        for index, item in ((0, x), (1, x * 2), (0, x * 5)):
            same = tf.raw_ops.TensorArrayWriteV3(handle=kept, index=index, value=item, flow_in=same)
        where = tf.constant([0, 1])
        whole = tf.raw_ops.TensorArrayGatherV3(handle=kept, indices=where, flow_in=same, dtype=tf.float32)
        tf.identity(whole, name="y")
        expected = session.run("y:0", {x: X})
        definition = graph.as_graph_def()
    np.testing.assert_allclose(expected, np.stack([X * 6, X * 2]), rtol=1e-6)
    found = ge.compile(parse(definition, out_nodes=["y"])).run([X])[0]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
