"""Functions on the NPU: one model each, with variables, nested calls, control flow and random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.tensorflow.comparing import NPU, equal, same


def _matrix(*shape: int, seed: int = 0) -> tf.Tensor:
    return tf.constant(np.random.RandomState(seed).rand(*shape).astype(np.float32))


def test_results_and_arguments_handed_on() -> None:
    def function(x: Any) -> Any:
        return {"product": x @ x + 1, "same": x, "twice": [x * 2, x * 2], "none": None, "count": 3}

    assert same(function, _matrix(4, 4)).wholly


def test_integer_and_boolean_results() -> None:
    def function(x: Any, n: Any) -> Any:
        return tf.argmax(x, 1), x > 0.5, n // 3, tf.cast(x * 10, tf.uint8), tf.reduce_all(x > 0)

    assert same(function, _matrix(4, 4), tf.range(7)).wholly


def test_variables_are_read_and_written() -> None:
    table, count = tf.Variable(_matrix(4, 4)), tf.Variable(0, dtype=tf.int64)

    def function(x: Any) -> Any:
        count.assign_add(1)
        table.assign(table + x)
        old = table.read_value()
        table.assign_sub(x * 0.5)
        return table @ x, old, count

    assert same(function, _matrix(4, 4, seed=1), variables=[table, count], calls=4).wholly


def test_a_changed_variable_is_seen() -> None:
    weights = tf.Variable(_matrix(4, 4))

    @tf.function
    def function(x: Any) -> Any:
        return x @ weights

    x = _matrix(2, 4, seed=1)
    with tf.device(NPU):
        for step in range(50):
            equal(x.numpy() @ weights.numpy(), function(x))
            if step in (2, 3, 7):
                weights.assign_add(tf.ones([4, 4]))


def test_nested_functions_share_variables_in_order() -> None:
    total = tf.Variable(1.0)

    @tf.function
    def add(x: Any) -> Any:
        total.assign_add(x)
        return total * 2.0

    def function(x: Any) -> Any:
        first = add(x)
        total.assign(total * 3.0)
        return first, add(x + 1.0), total

    assert same(function, tf.constant(2.0), variables=[total]).wholly


def test_captured_tensors() -> None:
    captured = _matrix(4, 4)

    def function(x: Any) -> Any:
        return x + captured

    same(function, _matrix(4, 4, seed=2))


def test_shapes_given_as_values() -> None:
    def function(x: Any, shape: Any) -> Any:
        return tf.reshape(x, shape), tf.range(shape[0]), tf.zeros(shape)

    for shape in ([2, 8], [8, 2], [16, 1]):
        same(function, _matrix(4, 4), tf.constant(shape))


def test_one_function_for_many_shapes() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def function(x: Any) -> Any:
        return tf.nn.softmax(x) @ tf.transpose(x)

    with tf.device(NPU):
        for rows in (1, 2, 5, 2, 1):
            x = _matrix(rows, 3)
            with tf.device("/CPU:0"):
                wanted = tf.nn.softmax(x) @ tf.transpose(x)
            equal(wanted, function(x))


def test_loops_and_lists() -> None:
    def function(x: Any) -> Any:
        items = tf.TensorArray(tf.float32, 4)
        for i in tf.range(4):
            items = items.write(i, x[i] * 2)
        total = tf.constant(0.0)
        while total < 10.0:
            total += tf.reduce_sum(x) + 1.0
        return items.stack(), total, tf.map_fn(lambda a: a * a, x), tf.scan(lambda a, b: a + b, x)

    assert same(function, _matrix(4, 4)).wholly


def test_loop_with_a_limit() -> None:
    def function(x: Any) -> Any:
        return tf.while_loop(
            lambda i, a: i < 100, lambda i, a: (i + 1, a * 1.5), [0, x], maximum_iterations=5
        )

    assert same(function, _matrix(3)).wholly


@pytest.mark.parametrize("choice", [0, 1, 2, 7])
def test_branches(choice: int) -> None:
    def function(x: Any, n: Any) -> Any:
        y = tf.switch_case(n, [lambda: x, lambda: x * 2, lambda: x @ x])
        z = tf.case([(n > 1, lambda: y + 1), (n > 0, lambda: y - 1)], default=lambda: y)
        return z if n > 5 else z * 2

    assert same(function, _matrix(3, 3), tf.constant(choice)).wholly


def test_gradients_inside() -> None:
    weights = tf.Variable(_matrix(4, 4))

    @tf.custom_gradient
    def clipped(x: Any) -> Any:
        return tf.clip_by_value(x, 0.2, 0.8), lambda dy: dy * 0.5

    def function(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.tanh(clipped(x) @ weights) ** 2)
        return tape.gradient(loss, [x, weights])

    assert same(function, _matrix(4, 4, seed=1), variables=[weights]).wholly


@pytest.mark.parametrize("values", [(1.0, 2.0, 1.0), (1.0, 0.5, 1.0), (-1.0, 2.0, -1.0)])
def test_gradients_of_a_branch_inside_a_branch(values: tuple[float, ...]) -> None:
    """The inner branch hands its intermediates to its gradient through the outer one."""

    def inner(x: Any, y: Any) -> Any:
        return tf.cond(tf.reduce_max(y) > 1, lambda: tf.exp(y) * x, lambda: tf.sin(x) * y)

    def function(x: Any, y: Any, z: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            result = tf.cond(tf.reduce_max(z) > 0, lambda: inner(x, tf.square(y)) * 2.0, lambda: x * y)
        return [result, *tape.gradient(result, [x, y])]

    assert same(function, *(tf.constant([v]) for v in values)).wholly


@pytest.mark.parametrize("value", [0.5, 2.0])
def test_the_gradient_of_a_branch_with_a_loop_over_rows(value: float) -> None:
    """The loop keeps places of its rows for the gradient, of other shapes than the other branch hands out."""

    def rows(x: Any) -> Any:
        return tf.while_loop(
            lambda i, a: i < tf.shape(x)[0],
            lambda i, a: (i + 1, a.write(i, x[i])),
            (tf.constant(0), tf.TensorArray(x.dtype, tf.shape(x)[0])),
        )[1].stack()

    def function(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = tf.cond(tf.reduce_max(y) > 1, lambda: rows(x), lambda: x)
        return result, tape.gradient(result, x)

    same(function, tf.ones([1, 1, 1], tf.float16), tf.constant([value]))


def test_gradient_outside_of_the_function() -> None:
    weights = tf.Variable(_matrix(4, 4))

    @tf.function
    def forward(x: Any) -> Any:
        return tf.reduce_sum(tf.sigmoid(x @ weights))

    def gradient(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = forward(x)
        return loss, tape.gradient(loss, weights)

    x = _matrix(3, 4, seed=3)
    with tf.device("/CPU:0"):
        wanted = gradient(x)
    with tf.device(NPU):
        given = gradient(x)
    for one, other in zip(wanted, given, strict=True):
        equal(one, other)


def test_stateless_random_numbers_are_the_same() -> None:
    def function(seed: Any) -> Any:
        return (
            tf.random.stateless_uniform([3, 5], seed),
            tf.random.stateless_normal([7], seed),
            tf.random.stateless_uniform([4], seed, 0, 100, tf.int32),
        )

    assert same(function, tf.constant([3, 4])).wholly


def test_stateful_random_numbers_go_on_and_begin_again_with_the_seed() -> None:
    def function(x: Any) -> Any:
        numbers = tf.random.uniform([4]), tf.random.normal([3]), tf.random.uniform([2], 0, 9, tf.int32)
        return *numbers, tf.nn.dropout(x, 0.5), tf.random.truncated_normal([5])

    ran = same(function, _matrix(8), calls=3)
    assert ran.wholly
    first, second, _ = ran.results
    assert not np.array_equal(first[0], second[0])


def test_random_numbers_do_not_repeat_for_another_shape() -> None:
    @tf.function
    def function(n: Any) -> Any:
        return tf.random.uniform([n])

    with tf.device(NPU):
        tf.random.set_seed(3)
        first, second = function(tf.constant(6)).numpy(), function(tf.constant(4)).numpy()
    assert not np.intersect1d(first, second).size


def test_unseeded_random_numbers_differ_between_functions() -> None:
    tf.random.set_seed(None)
    made = [tf.function(lambda: tf.random.uniform([4])) for _ in range(2)]
    with tf.device(NPU):
        first, second = (f().numpy() for f in made)
    assert not np.array_equal(first, second)


def test_jit_compiled_functions_run_here_too() -> None:
    assert same(lambda x: tf.nn.relu(x - 0.5) @ x, _matrix(4, 4), jit_compile=True).wholly


def test_a_function_without_results() -> None:
    seen = tf.Variable(0.0)

    def function(x: Any) -> None:
        seen.assign_add(x)

    assert same(function, tf.constant(1.5), variables=[seen]).wholly


def test_equal_functions_share_a_model() -> None:
    from tf_adapter import cache

    def function(x: Any) -> Any:
        return tf.cos(x) * 3.25

    cache.clear()
    for _ in range(3):
        with tf.device(NPU):
            tf.function(lambda x: function(x))(_matrix(5))
    assert cache.size() == 1


def test_generators() -> None:
    generator = tf.random.Generator.from_seed(5)

    def function() -> Any:
        return generator.normal([3, 3]), generator.uniform([5]), generator.uniform([4], 0, 10, tf.int32)

    ran = same(function, variables=[generator.state], calls=3)
    assert ran.wholly
    assert not np.array_equal(ran.results[0][1], ran.results[1][1])
