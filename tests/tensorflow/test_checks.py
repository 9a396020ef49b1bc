"""Indices out of range and whole numbers divided by zero raise TensorFlow's errors inside functions, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from npu_runtime import tensorflow as native
from tests.tensorflow.comparing import CPU, same

TABLE = tf.reshape(tf.range(12.0), [4, 3])
PAIR = tf.constant([6, 7])


VARIABLE = tf.Variable(TABLE)

CASES: dict[str, tuple[Callable[..., Any], list[Any], list[Any]]] = {
    "gather": (lambda i: tf.gather(TABLE, i), [[0, 3], [2, 1]], [[0, 4], [-1, 0]]),
    "gather along an axis": (lambda i: tf.gather(TABLE, i, axis=1), [[[0, 2]]], [[[3, 0]]]),
    "gather in a batch": (
        lambda i: tf.gather(TABLE, i, axis=1, batch_dims=1),
        [[[0], [1], [2], [0]]],
        [[[0], [1], [3], [0]]],
    ),
    "embedding": (lambda i: tf.nn.embedding_lookup(VARIABLE, i), [[1, 2]], [[1, 9]]),
    "gather_nd": (lambda i: tf.gather_nd(TABLE, i), [[[3, 2]]], [[[3, 3]], [[4, 0]]]),
    "floor division": (lambda y: PAIR // y, [[2, -3]], [[2, 0]]),
    "remainder": (lambda y: PAIR % y, [[4, 5]], [[0, 5]]),
    "tensor_scatter": (
        lambda i: tf.tensor_scatter_nd_add(tf.ones([4]), i, tf.ones([2])),
        [[[3], [3]]],
        [[[4], [0]]],
    ),
    "scatter_nd": (lambda i: tf.scatter_nd(i, tf.ones([1]), [4]), [[[3]]], [[[4]]]),
    "segments": (
        lambda i: tf.math.unsorted_segment_sum(tf.ones([4]), i, 3),
        [[0, -1, 2, 2]],
        [[0, 3, 2, 2]],
    ),
    "labels": (
        lambda i: tf.nn.sparse_softmax_cross_entropy_with_logits(i, TABLE[:2]),
        [[0, 2]],
        [[0, 3], [-1, 0]],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_raises_as_on_the_cpu_and_the_next_call_works(name: str) -> None:
    body, good, bad = CASES[name]
    for given in good:
        assert same(body, tf.constant(given)).wholly
    function = tf.function(body)
    wanted = function(tf.constant(good[0])).numpy()
    for given in bad:
        with tf.device(CPU), pytest.raises(tf.errors.InvalidArgumentError):
            tf.function(body)(tf.constant(given))
        native.take_counts()
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"is not in \[|division by zero"):
            function(tf.constant(given))
        assert all(not on_host for _, on_host in native.take_counts().values())
        np.testing.assert_array_equal(function(tf.constant(good[0])).numpy(), wanted)


def test_constants_that_are_wrong_are_the_hosts_error() -> None:
    function = tf.function(lambda x: tf.gather(x, [0, 7]))
    with pytest.raises(tf.errors.InvalidArgumentError):
        function(tf.ones([3]))


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint16", "int64"])
def test_nothing_may_be_divided_by_zero(dtype: str) -> None:
    def body(x: Any, y: Any) -> tuple[Any, ...]:
        quotients = x // y, tf.truncatediv(x, y)
        return (*quotients, x % y, tf.truncatemod(x, y)) if dtype in ("int32", "int64") else quotients

    x, zero = tf.zeros([0, 3], dtype), tf.zeros([3], dtype)
    for y in (zero, zero[0], tf.zeros([1, 1], dtype)):
        assert same(body, x, y).wholly
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.function(body)(zero, zero)


def test_floats_may_be_divided_by_zero() -> None:
    assert same(lambda x, y: (x / y, x // y, x % y), tf.constant([1.0, -1.0]), tf.zeros([2])).wholly


def test_writes_to_a_variable_out_of_range_leave_it_alone() -> None:
    v = tf.Variable(tf.zeros([4, 2]))
    add = tf.function(lambda i: v.scatter_add(tf.IndexedSlices(tf.ones([1, 2]), i)))
    add(tf.constant([1]))
    with pytest.raises(tf.errors.InvalidArgumentError):
        add(tf.constant([4]))
    np.testing.assert_array_equal(v.numpy(), [[0, 0], [1, 1], [0, 0], [0, 0]])


def test_a_variable_written_before_the_failure_is_seen_by_others() -> None:
    v = tf.Variable(tf.zeros([64]))
    read = tf.function(lambda: v + 0.0)

    @tf.function
    def step(i: Any) -> Any:
        v.assign_add(tf.ones([64]))
        return tf.gather(TABLE, i)

    read()
    with pytest.raises(tf.errors.InvalidArgumentError):
        step(tf.constant([9]))
    np.testing.assert_array_equal(read().numpy(), v.numpy())


def test_inside_of_loops_and_branches() -> None:
    @tf.function
    def function(i: Any, n: Any) -> Any:
        total = tf.zeros([3])
        for k in tf.range(n):
            if k < 2:
                total += tf.gather(TABLE, i + k)
        return total

    assert function(tf.constant(0), tf.constant(5)).numpy().tolist() == [3.0, 5.0, 7.0]
    with pytest.raises(tf.errors.InvalidArgumentError):
        function(tf.constant(3), tf.constant(5))
    assert function(tf.constant(3), tf.constant(1)).numpy().tolist() == [9.0, 10.0, 11.0]
