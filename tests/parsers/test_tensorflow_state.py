"""Variables: read as constants or inputs, written values as further outputs, and their order."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest

import ge
from ge.errors import UnsupportedOperatorsError
from ge.ir.types import TensorDesc
from ge.parsers.tensorflow.parser import Parsed, VariableSpec, parse_graph

tf = pytest.importorskip("tensorflow")

from tests.support.tf_models import concrete, parse_function  # noqa: E402

X = np.float32([1, 2, 3])


def updated(function: Callable[..., Any], variables: Sequence[Any], *arrays: np.ndarray) -> Parsed:
    """Check results and written variables against TensorFlow."""
    traced = concrete(function, arrays)
    parsed = parse_function(traced, updates=True)
    before = {v.name: v.numpy() for v in variables}
    found = ge.compile(parsed.graph).run([*arrays, *(before[name] for name in parsed.reads)])
    expected = [t.numpy() for t in tf.nest.flatten(traced(*(tf.constant(a) for a in arrays)))]
    after = {v.name: v.numpy() for v in variables}
    for v in variables:
        v.assign(before[v.name])
    results, written = found[: len(parsed.outputs)], found[len(parsed.outputs) :]
    for mine, theirs in zip(results, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)
    for name, value in zip(parsed.updates, written, strict=True):
        np.testing.assert_allclose(value, after[name], rtol=1e-5)
    assert {n for n in before if not np.array_equal(before[n], after[n])} <= set(parsed.updates)
    return parsed


@pytest.fixture
def v() -> Any:
    return tf.Variable([1.0, 2.0, 3.0], name="v")


@pytest.fixture
def w() -> Any:
    return tf.Variable(0.0, name="w")


def test_variables_are_constants_unless_they_may_be_written(v: Any) -> None:
    parsed = parse_function(concrete(lambda x: x * v, [X]))
    assert parsed.reads == ()
    np.testing.assert_array_equal(ge.compile(parsed.graph).run([X])[0], X * [1, 2, 3])


def test_writing_a_variable_in_inference_is_reported(v: Any) -> None:
    def function(x: Any) -> Any:
        v.assign_add(x)
        return v * 2

    with pytest.raises(UnsupportedOperatorsError, match="writes the variable 'v:0'"):
        parse_function(concrete(function, [X]))


def test_reads_and_writes_keep_their_order(v: Any, w: Any) -> None:
    def function(x: Any) -> Any:
        first = v * x
        v.assign_add(x)
        second = v * x
        w.assign(tf.reduce_sum(second))
        return first + second + w

    parsed = updated(function, [v, w], X)
    assert parsed.reads == ("v:0",)
    assert parsed.updates == ("v:0", "w:0")


@pytest.mark.parametrize("sign", [1, -1])
def test_branches_write_variables(v: Any, w: Any, sign: int) -> None:
    def function(x: Any) -> Any:
        if tf.reduce_sum(x) > 0:
            v.assign(x * 2)
        else:
            w.assign_add(1.0)
        return v + w

    updated(function, [v, w], X * sign)


def test_loops_write_variables(v: Any, w: Any) -> None:
    def function(x: Any) -> Any:
        for i in tf.range(4):
            v.assign_add(x * tf.cast(i, tf.float32))
            w.assign_sub(1.0)
        while tf.reduce_sum(v) < 100.0:
            v.assign(v * 1.5 + x)
            if v[0] > 5.0:
                w.assign_add(1.0)
        return v * 2

    updated(function, [v, w], X)


def test_rows_of_a_table_are_gathered_and_updated() -> None:
    table = tf.Variable(np.arange(15, dtype=np.float32).reshape(5, 3), name="table")

    def function(rows: Any) -> Any:
        before = tf.gather(table, rows)
        table.scatter_add(tf.IndexedSlices(tf.ones([2, 3]), rows))
        table.scatter_sub(tf.IndexedSlices(tf.ones([2, 3]) * 3, rows))
        table.scatter_max(tf.IndexedSlices(tf.ones([2, 3]) * 4, rows))
        return before + tf.gather(table, rows)

    updated(function, [table], np.int32([1, 3]))


def test_batch_normalisation_in_training_updates_its_averages() -> None:
    layer = tf.keras.layers.BatchNormalization()
    x = np.random.default_rng(0).random((4, 3)).astype(np.float32)
    layer(x)
    parsed = updated(lambda t: layer(t, training=True), [item.value for item in layer.variables], x)
    assert len(parsed.updates) == 2


def test_a_graph_in_memory_is_parsed_with_given_inputs_captures_and_variables() -> None:
    """The way of a front door: placeholders stand for inputs, captured tensors and handles."""
    v, factor = tf.Variable([1.0, 2.0, 3.0], name="v"), tf.constant([2.0, 2.0, 2.0])

    def function(x: Any) -> Any:
        v.assign_sub(x)
        return v * factor

    graph = concrete(function, [X]).graph
    captures = {outer.dtype: inner.op.name for outer, inner in graph.captures}
    parsed = parse_graph(
        graph.as_graph_def(),
        inputs={"x0": TensorDesc((3,), "float32")},
        outputs=[t.name for t in graph.outputs],
        constants={captures[tf.float32]: factor.numpy()},
        variables={captures[tf.resource]: VariableSpec("v", TensorDesc((3,), "float32"))},
        updates=True,
        effects=[op.name for op in graph.control_outputs],
    )
    assert (parsed.inputs, parsed.reads, parsed.updates) == (("x0",), ("v",), ("v",))
    y, after = ge.compile(parsed.graph).run([X, np.float32([5, 6, 7])])
    np.testing.assert_array_equal(after, [4, 4, 4])
    np.testing.assert_array_equal(y, [8, 8, 8])
