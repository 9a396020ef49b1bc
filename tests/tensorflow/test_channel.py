"""The channel between datasets and the device: order, ends, errors, and batches ready before they are asked."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_adapter
from tests.tensorflow.comparing import CPU, NPU
from tf_adapter.channel import ahead

SECONDS = 300.0
keras = tf.keras


class Counter:
    """Counts the elements that a dataset has made, and lets tests wait for them."""

    def __init__(self) -> None:
        self.made = 0
        self.changed = threading.Condition()

    def __call__(self, value: Any) -> Any:
        with self.changed:
            self.made += 1
            self.changed.notify_all()
        return np.float32(value)

    def reaches(self, count: int, seconds: float = SECONDS) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.made >= count, seconds)


def counted(counter: Counter, size: int = 10) -> Any:
    """A dataset of numbers that calls the counter for every one."""

    def work(value: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(counter, [value], tf.float32), [])

    return tf.data.Dataset.range(size).map(work)


def test_the_next_elements_are_made_while_a_step_runs() -> None:
    counter = Counter()
    iterator = iter(counted(counter))
    next(iterator)
    # Nobody asks for the second and third element: the queue makes them.
    assert counter.reaches(3)


def test_the_queue_is_bounded() -> None:
    counter = Counter()
    with tf_adapter.options.override(prefetch=4):
        iterator = iter(counted(counter, 100))
        next(iterator)
    assert counter.reaches(5)
    assert counter.made <= 6  # taken, waiting, and one in the making


def test_the_queue_can_be_switched_off() -> None:
    dataset = tf.data.Dataset.range(3)
    with tf_adapter.options.override(prefetch=0):
        assert ahead(dataset) is dataset


def test_iterators_of_the_cpu_are_tensorflows() -> None:
    dataset = tf.data.Dataset.range(3)
    with tf.device(CPU):
        assert iter(dataset)._dataset is dataset._apply_debug_options()
    assert iter(dataset)._dataset is not dataset


def test_order_and_end() -> None:
    assert [float(x) for x in counted(Counter(), 20)] == list(range(20))
    iterator = iter(counted(Counter(), 2))
    assert [float(x) for x in iterator] == [0, 1]
    with pytest.raises(StopIteration):
        next(iterator)
    assert not iterator.get_next_as_optional().has_value()


def test_an_error_comes_at_its_place_and_the_rest_follows() -> None:
    bad = tf.data.Dataset.range(4).map(
        lambda x: tf.debugging.check_numerics(6.0 / tf.cast(x - 1, tf.float32), "bad")
    )
    iterator = iter(bad)
    assert float(next(iterator)) == -6.0
    with pytest.raises(tf.errors.InvalidArgumentError, match="bad"):
        next(iterator)
    assert [float(x) for x in iterator] == [6.0, 3.0]


def test_an_iterator_that_is_dropped_stops_its_queue() -> None:
    counter = Counter()
    iterator = iter(counted(counter, 1_000_000))
    next(iterator)
    assert counter.reaches(3)
    gone = weakref.ref(iterator)
    del iterator
    gc.collect()
    assert gone() is None
    made = counter.made
    assert float(next(iter(counted(counter, 3)))) == 0.0
    assert counter.made <= made + 4


def test_a_dataset_that_reads_a_variable_is_left_to_tensorflow() -> None:
    scale = tf.Variable(1.0)
    dataset = tf.data.Dataset.range(3).map(lambda x: tf.cast(x, tf.float32) + scale).batch(1)
    assert ahead(dataset) is dataset
    assert [float(x[0]) for x in dataset] == [1.0, 2.0, 3.0]


def test_one_queue_is_enough() -> None:
    dataset = tf.data.Dataset.range(3).prefetch(4)
    assert ahead(dataset) is dataset
    options = tf.data.Options()
    options.deterministic = True
    around = dataset.with_options(options)
    assert ahead(around) is around


# -- loops inside functions ----------------------------------------------------------------------------------


def _descent(device: str, sunk: bool) -> tuple[np.ndarray, list[float]]:
    random = np.random.default_rng(3)
    x, y = (random.standard_normal((40, 8)).astype(np.float32) for _ in range(2))
    with tf.device(device):
        weights = tf.Variable(np.zeros((8, 8), np.float32))
        iterator = iter(tf.data.Dataset.from_tensor_slices((x, y)).batch(4).repeat())

        def step(features: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((features @ weights - labels) ** 2)
            weights.assign_sub(0.1 * tape.gradient(loss, weights))
            return loss

        @tf.function
        def steps(iterator: Any, count: Any) -> Any:
            loss = 0.0
            for _ in tf.range(count):
                loss = step(*next(iterator))
            return loss

        if sunk:
            losses = [float(steps(iterator, tf.constant(count))) for count in (1, 7, 4)]
        else:
            every = [float(tf.function(step)(*next(iterator))) for _ in range(12)]
            losses = [every[0], every[7], every[11]]
        return weights.numpy(), losses


def test_a_loop_in_a_function_makes_as_many_steps_as_it_says() -> None:
    weights, losses = _descent(CPU, sunk=False)
    for device in (CPU, NPU):
        found, found_losses = _descent(device, sunk=True)
        np.testing.assert_allclose(found, weights, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found_losses, losses, rtol=1e-4)


def test_the_end_of_the_data_inside_a_loop_is_told() -> None:
    iterator = iter(tf.data.Dataset.range(3))

    @tf.function
    def total(iterator: Any) -> Any:
        found = tf.constant(0, tf.int64)
        for _ in tf.range(5):
            found += next(iterator)
        return found

    with pytest.raises(tf.errors.OutOfRangeError):
        total(iterator)


def test_fit_reads_ahead_and_sees_every_batch_once() -> None:
    counter = Counter()
    dataset = counted(counter, 12).map(lambda v: (tf.fill([4, 2], v), tf.fill([4, 1], v)))
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    seen: list[int] = []
    watch = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch))
    model.fit(dataset, epochs=1, verbose=0, callbacks=[watch])
    assert seen == list(range(12))
    assert counter.made == 12


# -- who uses it ---------------------------------------------------------------------------------------------


def test_batches_are_made_during_a_step_and_not_between_steps() -> None:
    """Every step waits, before it ends, for the element after its own: that would never come if nobody worked ahead."""
    counter = Counter()
    ends: list[bool] = []

    def wait(number: Any) -> Any:
        ends.append(counter.reaches(min(int(number) + 2, 6)))
        return np.float32(0)

    @tf.function
    def step(x: Any) -> Any:
        heavy = tf.reduce_sum(tf.fill([8, 8], x) @ tf.eye(8))
        return heavy + tf.ensure_shape(tf.numpy_function(wait, [x], tf.float32), [])

    for x in counted(counter, 6):
        step(x)
    assert ends == [True] * 6


@pytest.mark.parametrize("kind", [tf.distribute.OneDeviceStrategy, tf.distribute.MirroredStrategy])
def test_iterators_of_strategies_work_ahead(kind: Any) -> None:
    strategy = kind("/NPU:0") if kind is tf.distribute.OneDeviceStrategy else kind(["/NPU:0"])
    counter = Counter()
    iterator = iter(strategy.experimental_distribute_dataset(counted(counter, 8).batch(1)))
    assert float(strategy.experimental_local_results(next(iterator))[0][0]) == 0.0
    assert counter.reaches(3)
    rest = [float(strategy.experimental_local_results(x)[0][0]) for x in iterator]
    assert rest == [1, 2, 3, 4, 5, 6, 7]
    assert counter.made == 8


def test_a_batch_is_handed_over_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    from tf_adapter import functions

    seen: list[int] = []
    original = functions.plan_function

    def watch(name: str, inputs: Any, *rest: Any) -> Any:
        seen.extend(d.address for d in inputs if d.kind == "tensor")
        return original(name, inputs, *rest)

    monkeypatch.setattr(functions, "plan_function", watch)
    batch = next(iter(tf.data.Dataset.from_tensor_slices(np.ones((64, 256), np.float32)).batch(64)))
    made = np.asarray(memoryview(batch)).ctypes.data
    tf.function(lambda x: tf.nn.softmax(x @ tf.transpose(x)))(batch)
    assert seen == [made]


def test_an_error_in_the_middle_of_fit_is_told_and_the_next_fit_works() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    good = tf.data.Dataset.range(6).map(lambda i: (tf.ones([4, 2]), tf.ones([4, 1])))
    bad = tf.data.Dataset.range(6).map(
        lambda i: (
            tf.debugging.check_numerics(tf.ones([4, 2]) / tf.cast(3 - i, tf.float32), "bad"),
            tf.ones([4, 1]),
        )
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="bad"):
        model.fit(bad, epochs=1, verbose=0)
    assert len(model.fit(good, epochs=2, verbose=0).history["loss"]) == 2


def test_the_end_of_an_iterator_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()  # iterators of other tests
    ended: list[threading.Thread] = []
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda self: (ended.append(self), start(self))[1])
    counter = Counter()
    iterator = iter(counted(counter, 1_000_000))
    next(iterator)
    del iterator
    gc.collect()
    (thread,) = [t for t in ended if t.name == "end of an iterator"]
    thread.join(SECONDS)
    assert not thread.is_alive()
    made = counter.made
    assert not counter.reaches(made + 3, 0.2)  # its queue is gone


def test_an_iterator_in_a_cycle_ends_once() -> None:
    iterator = iter(tf.data.Dataset.range(3))
    held = [iterator, int(next(iterator))]
    held.append(held)
    gone = weakref.ref(iterator)
    del iterator, held
    gc.collect()
    assert gone() is None


def test_a_process_ends_with_an_iterator_left() -> None:
    script = """
import tensorflow as tf, tf_adapter
batches = iter(tf.data.Dataset.range(8).repeat())
print(int(next(batches)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout.split()) == (0, ["0"])
