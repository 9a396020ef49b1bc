"""Loops of training steps inside functions: the device runs them turn by turn, as many as they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_adapter
from npu_runtime import tensorflow as native
from tests.tensorflow.comparing import CPU, NPU, equal, same
from tf_adapter import functions

BATCHES = 12


class Descent:
    """A linear model, its data, and a function that makes some steps on it."""

    def __init__(self, loop: Callable[..., Any], batches: int = BATCHES, rate: float = 0.0) -> None:
        random = np.random.default_rng(3)
        x, y = (random.standard_normal((4 * batches, 8)).astype(np.float32) for _ in range(2))
        self.weights = tf.Variable(np.zeros((8, 8), np.float32))
        self.iterator = iter(tf.data.Dataset.from_tensor_slices((x, y)).batch(4))
        self.rate = rate
        self.run = tf.function(lambda *given: loop(self, *given))

    def step(self, x: Any, y: Any) -> Any:
        """One step of gradient descent."""
        with tf.GradientTape() as tape:
            hidden = tf.nn.dropout(x, self.rate) if self.rate else x
            loss = tf.reduce_mean((hidden @ self.weights - y) ** 2)
        self.weights.assign_sub(0.1 * tape.gradient(loss, self.weights))
        return loss


def counted(descent: Descent, count: Any) -> Any:
    """As many steps as one says; the last loss, and how many there were."""
    loss, made = 0.0, 0
    for _ in tf.range(count):
        loss = descent.step(*next(descent.iterator))
        made += 1
    return loss, made


def both(loop: Callable[..., Any], calls: list[tuple[Any, ...]], **settings: Any) -> Descent:
    """Check calls of a loop on the NPU against TensorFlow's."""
    made, results = [], []
    for device in (CPU, NPU):
        with tf.device(device):
            tf.random.set_seed(5)
            descent = Descent(loop, **settings)
            results.append([tf.nest.flatten(descent.run(*given)) for given in calls])
            made.append(descent)
    for wanted, found in zip(*results, strict=True):
        for one, other in zip(wanted, found, strict=True):
            equal(one, other)
    equal(made[0].weights, made[1].weights)
    return made[1]


def test_as_many_steps_as_the_loop_says() -> None:
    both(counted, [(tf.constant(n),) for n in (1, 0, 7, 3)])


def test_a_fixed_number_of_steps() -> None:
    both(lambda descent: counted(descent, 5), [(), ()])


def test_every_step_is_one_call_of_a_compiled_step() -> None:
    with tf.device(NPU):
        descent = Descent(counted)
        descent.run(tf.constant(2))
        native.take_counts()
        descent.run(tf.constant(9))
        counts = native.take_counts()
    steps = [name for name, (npu, host) in counts.items() if npu == 9 and not host]
    plans = [r.plan for n in steps if (r := functions.last_report(n)) is not None]
    # The step that was compiled writes the weights in place.
    assert any(isinstance(p, functions.NpuRun) and p.lowered.model.plan.donated for p in plans)
    fetched = [name for name, (_, host) in counts.items() if host == 9]
    assert len(fetched) == 1  # the iterator's next element


def test_no_python_between_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    with tf.device(NPU):
        descent = Descent(counted)
        descent.run(tf.constant(2))
        for name in ("plan_function", "host_step"):
            monkeypatch.setattr(functions, name, None)
        assert int(descent.run(tf.constant(6))[1]) == 6


def test_the_end_of_the_data_is_told_and_the_steps_before_it_count() -> None:
    weights = []
    for device in (CPU, NPU):
        with tf.device(device):
            descent = Descent(counted, batches=3)
            with pytest.raises(tf.errors.OutOfRangeError, match="End of sequence"):
                descent.run(tf.constant(5))
            weights.append(descent.weights.numpy())
    assert np.abs(weights[0]).max() > 0
    equal(*weights)


def test_an_iterator_until_its_end() -> None:
    def whole(descent: Descent) -> Any:
        total = 0.0
        for x, y in descent.iterator:
            total += descent.step(x, y)
        return total

    both(whole, [(), ()], batches=5)


def test_breaks_and_conditions() -> None:
    def some(descent: Descent, count: Any) -> Any:
        loss, made = 0.0, 0
        for i in tf.range(count):
            x, y = next(descent.iterator)
            if i % 3 == 1:
                continue
            loss = descent.step(x, y)
            made += 1
            if made >= 4:
                break
        return loss, made

    both(some, [(tf.constant(9),), (tf.constant(2),)], batches=20)


def test_random_numbers_in_a_loop_are_tensorflows() -> None:
    both(counted, [(tf.constant(4),), (tf.constant(3),)], rate=0.4)


def test_loops_in_loops() -> None:
    def nested(descent: Descent, rounds: Any) -> Any:
        loss = 0.0
        for i in tf.range(rounds):
            for _ in tf.range(i + 1):
                loss += descent.step(*next(descent.iterator))
        return loss

    both(nested, [(tf.constant(3),)])


def test_an_error_in_a_step_ends_the_loop() -> None:
    def checked(descent: Descent, count: Any) -> Any:
        loss = 0.0
        for i in tf.range(count):
            loss = descent.step(*next(descent.iterator))
            tf.debugging.assert_less(i, 2, message="enough")
        return loss

    with tf.device(NPU):
        descent = Descent(checked)
        with pytest.raises(tf.errors.InvalidArgumentError, match="enough"):
            descent.run(tf.constant(5))
        assert float(descent.run(tf.constant(2))) > 0


def test_explain_says_what_runs_the_loop() -> None:
    with tf.device(NPU):
        descent = Descent(counted)
        count = tf.constant(2)
        descent.run(count)
        found = tf_adapter.explain(descent.run, count)
    assert "loop" in found.steps
    assert "the device calls its functions turn by turn" in str(found)
    assert "host → NPU" in str(found)


ROWS = np.array([[1, -2], [3, 4], [-1, 2]], np.float32)


def doubled(x: Any) -> Any:
    """A loop that stacks a row in each step, as (3, 1, 2)."""
    return tf.map_fn(lambda row: 2 * row[None], x)


def written(x: Any, steps: int) -> Any:
    """The same for some rows, by a TensorArray."""
    rows = tf.TensorArray(tf.float32, steps)
    for i in tf.range(steps):
        rows = rows.write(i, x[i][None])
    return rows.stack()


VIEWS: dict[str, Callable[[Any, Any], Any]] = {
    "reshape": lambda x, yes: tf.reshape(doubled(x), [6]),
    "squeeze": lambda x, yes: tf.squeeze(doubled(x)),
    "expand_dims": lambda x, yes: doubled(x)[None],
    "transpose": lambda x, yes: tf.transpose(doubled(x), [1, 0, 2]),
    "slice": lambda x, yes: doubled(x)[:, 0],
    "bitcast": lambda x, yes: tf.bitcast(doubled(x)[:, 0], tf.int32),
    "one step": lambda x, yes: written(x, 1)[0],
    "two steps": lambda x, yes: written(x, 2)[None],
    "nested": lambda x, yes: tf.map_fn(lambda v: doubled(v[None])[:, 0], x)[:, 0],
    "of a branch": lambda x, yes: tf.cond(yes, lambda: doubled(x), lambda: x[:, None])[:, 0],
    "of a case": lambda x, yes: tf.switch_case(tf.cast(yes, tf.int32), [lambda: x, lambda: doubled(x)[:, 0]])[
        None
    ],
    "of a scan": lambda x, yes: tf.scan(tf.add, doubled(x))[:, 0],
    "of rows chosen in a branch": lambda x, yes: tf.cond(
        yes, lambda: tf.boolean_mask(x, x > 0), lambda: tf.boolean_mask(x, x < 0)
    )[None],
    "vectorized": lambda x, yes: tf.vectorized_map(lambda row: tf.map_fn(lambda v: v[None], row)[:, 0], x),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_what_loops_and_branches_give_have_their_own_shape(name: str) -> None:
    for yes in (True, False):
        results = []
        for device in (CPU, NPU):
            with tf.device(device):
                results.append(tf.function(VIEWS[name])(tf.constant(ROWS), tf.constant(yes)))
        equal(*results)
        assert results[0].shape == results[1].shape


@pytest.mark.parametrize("kind", ["SimpleRNN", "GRU", "LSTM"])
def test_recurrent_layers_keep_a_batch_of_one_row_first(kind: str) -> None:
    layer = getattr(tf.keras.layers, kind)(1, return_sequences=True)
    x = np.ones((1, 3, 2), np.float32)
    found = tf.function(layer)(tf.constant(x))
    with tf.device(CPU):
        wanted = layer(tf.constant(x))
    assert found.shape == wanted.shape == (1, 3, 1)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("rows", [0, 1, 2])
@pytest.mark.parametrize("parallel", [1, 10])
def test_gradients_of_maps_over_few_rows_or_none(rows: int, parallel: int) -> None:
    def step(x: Any, w: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            total = tf.reduce_sum(tf.map_fn(lambda r: tf.sin(r * w), x, parallel_iterations=parallel))
        return tape.gradient(total, [x, w])

    same(step, tf.ones((rows, 2)), tf.constant([2.0, 3.0]), autograph=False)


_BODIES: dict[str, Callable[[Any], Any]] = {
    "a scan that returns its state": lambda x: tf.scan(
        lambda a, b: a, x, initializer=tf.constant([1.0, 2.0])
    ),
    "a map to a constant": lambda x: tf.map_fn(
        lambda r: tf.constant([[3.0]]), x, fn_output_signature=tf.float32
    ),
    "a map to ones": lambda x: tf.map_fn(lambda r: tf.ones_like(r), x),
    "an empty product": lambda x: tf.map_fn(
        lambda r: tf.ones((3, 0)) @ tf.ones((0, 2)), x, fn_output_signature=tf.float32
    ),
    "an array of constants": lambda x: tf.while_loop(
        lambda i, a: i < 3, lambda i, a: (i + 1, a.write(i, [1.0])), (0, tf.TensorArray(tf.float32, 3))
    )[1].stack(),
}


@pytest.mark.parametrize("name", _BODIES)
def test_loops_whose_body_reads_nothing(name: str) -> None:
    def run(device: str) -> Any:
        with tf.device(device):
            return tf.function(_BODIES[name], autograph=False)(tf.ones((2, 3))).numpy()

    equal(run(CPU), run(NPU))


@pytest.mark.parametrize("turns", [0, 1, 2])
@pytest.mark.parametrize("is_read", [False, True])
def test_a_loop_that_writes_a_variable_runs_as_often_as_it_says(turns: int, is_read: bool) -> None:
    """Also not at all: nothing is written then."""

    def run(device: str) -> Any:
        with tf.device(device):
            variable = tf.Variable([1.0, 2.0])

            @tf.function(autograph=False)
            def count(x: Any) -> Any:
                def body(i: Any, y: Any) -> Any:
                    return i + 1, y + variable.assign_add(x)

                _, y = tf.while_loop(lambda i, y: i < turns, body, (tf.constant(0), x))
                return y + variable if is_read else y

            results = [count(tf.constant([3.0, 4.0])).numpy() for _ in range(2)]
            return np.stack([*results, variable.numpy()])

    equal(run(CPU), run(NPU))
