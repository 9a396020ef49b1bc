"""Repeated calls of functions take the short way to what was traced, and mean the same as TensorFlow's own."""

from __future__ import annotations

import copy
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.tensorflow.comparing import CPU, NPU
from tf_adapter import calls

ONE, TWO = tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])


def _remembered(function: Any) -> int:
    return len(function.__dict__.get("_npu_calls", ()))


def _called(function: Any, *args: Any, times: int = 3, **named: Any) -> list[Any]:
    return [np.asarray(function(*args, **named)).tolist() for _ in range(times)]


def test_calls_with_tensors_are_remembered_by_type_and_shape() -> None:
    function = tf.function(lambda x, y: x * 2 + y)
    for x in (ONE, tf.constant([1, 2]), tf.constant([[1.0]]), tf.constant(5.0), ONE):
        assert _called(function, x, x) == [(3 * x.numpy()).tolist()] * 3
    assert _remembered(function) == 4
    assert function.experimental_get_tracing_count() == 4


def test_other_arguments_take_tensorflows_way() -> None:
    function = tf.function(lambda x, y=2.0: x * y)
    assert _called(function, ONE, 3.0) == [[3.0, 6.0]] * 3
    assert _called(function, x=ONE) == [[2.0, 4.0]] * 3
    assert _called(function, np.ones(2, np.float32)) == [[2.0, 2.0]] * 3
    assert _called(function, tf.Variable(ONE)) == [[2.0, 4.0]] * 3
    assert _remembered(function) == 0
    assert _called(function, ONE) == [[2.0, 4.0]] * 3
    assert _remembered(function) == 1
    assert _called(function, ONE, TWO) == [[3.0, 8.0]] * 3


def test_structures_come_back_as_they_are() -> None:
    function = tf.function(lambda x, *more: {"sum": x + more[0], "both": (x, [more[-1]])})
    for _ in range(3):
        result = function(ONE, TWO, ONE)
        assert result["sum"].numpy().tolist() == [4.0, 6.0]
        assert result["both"][1][0].numpy().tolist() == [1.0, 2.0]
    assert _remembered(function) == 1


def test_tapes_see_every_call() -> None:
    v = tf.Variable(3.0)
    function = tf.function(lambda x: x * x * v)
    _called(function, ONE)
    assert _remembered(function) == 1
    for _ in range(2):
        with tf.GradientTape() as tape:
            tape.watch(ONE)
            y = function(ONE)
        gradient, of_v = tape.gradient(y, [ONE, v])
        assert gradient.numpy().tolist() == [6.0, 12.0]
        assert float(of_v) == 5.0
        _called(function, ONE)
    with tf.autodiff.ForwardAccumulator(ONE, tf.ones(2)) as forward:
        y = function(ONE)
    assert forward.jvp(y).numpy().tolist() == [6.0, 12.0]


def test_variables_and_captured_tensors_are_current() -> None:
    v, captured = tf.Variable(1.0), tf.constant(10.0)
    function = tf.function(lambda x: x * v + captured)
    for value in (1.0, 2.0, 5.0):
        v.assign(value)
        assert _called(function, tf.constant(3.0)) == [3.0 * value + 10.0] * 3
    concrete = function.get_concrete_function(tf.constant(3.0))
    later = [tf.constant(20.0)]
    concrete.replace_capture_with_deferred_capture(captured, lambda: later[0], tf.TensorSpec([], tf.float32))
    assert _called(function, tf.constant(3.0)) == [35.0] * 3
    later[0] = tf.constant(30.0)
    assert _called(function, tf.constant(3.0)) == [45.0] * 3


def test_a_function_that_makes_its_variables_on_the_first_call() -> None:
    class Counts(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.total: Any = None

        @tf.function
        def add(self, x: Any) -> Any:
            if self.total is None:
                self.total = tf.Variable(0.0)
            return self.total.assign_add(tf.reduce_sum(x))

    one, other = Counts(), Counts()
    assert _called(one.add, ONE) == [3.0, 6.0, 9.0]
    assert _called(other.add, TWO) == [7.0, 14.0, 21.0]
    assert _called(one.add, ONE) == [12.0, 15.0, 18.0]


def test_signatures_and_relaxed_shapes() -> None:
    signed = tf.function(lambda x: x + 1.0, input_signature=[tf.TensorSpec([None], tf.float32)])
    relaxed = tf.function(lambda x: x + tf.cast(tf.size(x), tf.float32), reduce_retracing=True)
    for n in (1, 2, 3, 4, 2):
        assert _called(signed, tf.ones(n)) == [[2.0] * n] * 3
        assert _called(relaxed, tf.ones(n)) == [[1.0 + n] * n] * 3
    assert signed.experimental_get_tracing_count() == 1
    assert relaxed.experimental_get_tracing_count() == 2
    for _ in range(2):
        with pytest.raises((TypeError, ValueError)):
            signed(tf.constant([1]))


def test_a_more_fitting_trace_is_taken_once_it_is_there() -> None:
    traced: list[Any] = []

    @tf.function
    def function(x: Any) -> Any:
        traced.append(x.shape)
        return tf.constant(len(traced)) if x.shape[0] is None else tf.constant(-1)

    function.get_concrete_function(tf.TensorSpec([None], tf.float32))
    assert _called(function, ONE) == [1] * 3
    function.get_concrete_function(tf.TensorSpec([2], tf.float32))
    with tf.device(CPU):
        wanted = int(function(ONE))
    assert _called(function, ONE) == [wanted] * 3


def test_what_is_around_a_call_counts() -> None:
    function = tf.function(lambda x: x + 1.0)
    _called(function, ONE)
    tf.config.run_functions_eagerly(True)
    try:
        seen: list[bool] = []

        @tf.function
        def eager(x: Any) -> Any:
            seen.append(tf.executing_eagerly())
            return x

        assert _called(eager, ONE) == [[1.0, 2.0]] * 3
        assert seen == [True] * 3
        assert _called(function, ONE) == [[2.0, 3.0]] * 3
    finally:
        tf.config.run_functions_eagerly(False)
    outer = tf.function(lambda x: function(x) * 2.0)
    assert _called(outer, ONE) == [[4.0, 6.0]] * 3
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        assert session.run(function(tf.constant([1.0, 2.0]))).tolist() == [2.0, 3.0]
    with tf.device(CPU):
        assert "CPU" in function(tf.constant([1.0, 2.0])).device
    assert "NPU" in function(ONE).device
    replica = tf.function(lambda: tf.distribute.get_replica_context() is not None)
    assert _called(replica) == [True] * 3
    with tf.distribute.OneDeviceStrategy(CPU).scope():
        assert _called(replica) == [False] * 3
    assert _called(replica) == [True] * 3


def test_a_failed_call_does_not_spoil_the_next() -> None:
    @tf.function
    def function(x: Any) -> Any:
        tf.debugging.assert_positive(x)
        return x * 2.0

    for _ in range(3):
        assert _called(function, ONE) == [[2.0, 4.0]] * 3
        with pytest.raises(tf.errors.InvalidArgumentError):
            function(-ONE)


def test_copies_give_the_same() -> None:
    function = tf.function(lambda x: x * 3.0)
    untraced = copy.deepcopy(function)
    _called(function, ONE)
    for other in (copy.copy(function), untraced, function):
        assert _called(other, ONE) == [[3.0, 6.0]] * 3
        assert _called(other, tf.constant(1.0)) == [3.0] * 3


def test_many_shapes_are_forgotten_in_time() -> None:
    function = tf.function(lambda x: x + 1.0, input_signature=[tf.TensorSpec([None], tf.float32)])
    for n in range(100):
        assert float(function(tf.zeros(n + 1))[0]) == 1.0
    assert _remembered(function) <= 64


def test_threads_call_side_by_side() -> None:
    function = tf.function(lambda x, y: x * y)
    wrong: list[int] = []

    def work(k: int) -> None:
        for i in range(200):
            n = (i * k) % 5 + 1
            x = tf.fill([n], float(i))
            if function(x, x).numpy().tolist() != [float(i * i)] * n:
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(k,)) for k in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("device", [CPU, NPU])
def test_the_profiler_sees_functions(device: str, tmp_path: Any) -> None:
    function = tf.function(lambda x: x + 1.0)
    with tf.device(device):
        _called(function, ONE)
        tf.profiler.experimental.start(str(tmp_path))
        try:
            assert _called(function, ONE) == [[2.0, 3.0]] * 3
        finally:
            tf.profiler.experimental.stop()
    assert list(tmp_path.rglob("*.xplane.pb"))


# -- iterators -----------------------------------------------------------------------------------------------


def test_an_iterator_takes_the_short_way_from_its_second_call_on(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bool] = []
    recall = calls._recall

    def watch(function: Any, key: Any) -> Any:
        result = recall(function, key)
        found.append(result is not None)
        return result

    monkeypatch.setattr(calls, "_recall", watch)
    total = tf.function(lambda iterator: tf.reduce_sum(next(iterator)))
    iterator = iter(tf.data.Dataset.range(12).batch(3))
    assert [int(total(iterator)) for _ in range(4)] == [3, 12, 21, 30]
    assert found == [False, True, True, True]
    with pytest.raises(tf.errors.OutOfRangeError):
        total(iterator)


def test_iterators_that_give_other_things_have_other_functions() -> None:
    total = tf.function(lambda iterator: tf.reduce_sum(next(iterator)))
    numbers = tf.data.Dataset.range(12)
    iterators = [
        iter(d) for d in (numbers.batch(3), numbers.map(lambda x: tf.cast(x, tf.float32)).batch(2), numbers)
    ]
    found = [[total(i) for i in iterators] for _ in range(3)]
    assert [[float(x) for x in row] for row in found] == [[3, 1, 0], [12, 5, 1], [21, 9, 2]]
    assert [x.dtype for x in found[-1]] == [tf.int64, tf.float32, tf.int64]


def test_each_iterator_is_the_one_that_is_read() -> None:
    first = tf.function(lambda iterator: next(iterator)[0])
    dataset = tf.data.Dataset.range(8).batch(2)
    one, other = iter(dataset), iter(dataset)
    assert [int(first(i)) for i in (one, one, other, one, other)] == [0, 2, 0, 4, 2]
