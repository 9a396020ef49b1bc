"""LSTM layers in training: losses, gradients and updates are TensorFlow's, and plain layers are no loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import tensorflow as tf

import tf_adapter
from ge.ops.nn.lstm_steps import are_tasks
from ge.passes.recurrence.fuse_recurrent_training import FuseRecurrentTraining
from ge.target import host
from tests.tensorflow.comparing import needs_bfloat16, same

BATCH, TIME, FEATURES, UNITS = 3, 6, 5, 16
layers = tf.keras.layers
Fused = Callable[[], int]


@pytest.fixture(autouse=True)
def seeded() -> None:
    tf.keras.utils.set_random_seed(1)


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fused]:
    """How many layers have become operators in the graphs compiled so far."""
    found: dict[int, int] = {}
    run = FuseRecurrentTraining.run

    def spy(self: FuseRecurrentTraining, graph: ir.Graph, options: Any) -> bool:
        changed = run(self, graph, options)
        pairs = [sum(n.op_type == kind for n in graph) for kind in ("LSTMSteps", "LSTMStepsGrad")]
        assert pairs[0] <= pairs[1]
        found[id(graph)] = max(pairs[0], found.get(id(graph), 0))
        return changed

    monkeypatch.setattr(FuseRecurrentTraining, "run", spy)
    yield lambda: max(found.values())


def expected(count: int, units: int = UNITS, dtype: str = "float32") -> int:
    """So many layers, on a machine that has tasks for them."""
    return count if are_tasks(TIME, BATCH, units, dtype, host()) else 0


def numbers(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def distance(y: Any) -> Any:
    """A loss with another gradient at each place."""
    y = tf.cast(y, tf.float32)
    return tf.reduce_mean(tf.square(y - tf.sin(tf.reshape(tf.range(tf.size(y, tf.float32)), tf.shape(y)))))


def step_of(model: Any) -> Callable[[Any], Any]:
    """The loss of a model, the gradients of its input and its weights, and an update of these."""
    weights = model.trainable_variables

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = distance(model(x, training=True))
        gradients = tape.gradient(loss, [x, *weights])
        for variable, gradient in zip(weights, gradients[1:], strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss, *gradients

    return step


def check(model: Any, x: np.ndarray, fused: Fused, count: int | None) -> None:
    """A step gives what TensorFlow's does, on the NPU alone, so many layers being operators."""
    assert same(step_of(model), tf.constant(x), variables=model.variables).wholly
    assert count is None or fused() == count


def check_narrow(model: Any, x: np.ndarray, fused: Fused, count: int) -> None:
    """All results of two steps in 16 bits are near to TensorFlow's, as wholes."""
    saved, found = [v.numpy() for v in model.variables], []
    for device in ("/CPU:0", "/NPU:0"):
        for variable, value in zip(model.variables, saved, strict=True):
            variable.assign(value)
        tf.random.set_seed(7)
        step = tf.function(step_of(model))
        with tf.device(device):
            found.append([v.numpy() for _ in range(2) for v in step(tf.constant(x))])
    for wanted, given in zip(*found, strict=True):
        assert np.linalg.norm(given - wanted) <= 0.12 * np.linalg.norm(wanted)
    assert fused() == count


def sequential(*parts: Any, time: int = TIME, batch: int | None = BATCH) -> Any:
    return tf.keras.Sequential([tf.keras.Input((time, FEATURES), batch_size=batch), *parts])


needs_keras_3 = pytest.mark.skipif(
    tf.__version__ < "2.16", reason="Keras 2 has other seeds each time a layer is traced"
)
dropout = pytest.param("dropout", marks=needs_keras_3)

PLAIN: dict[str, Callable[[], list[Any]]] = {
    "last state": lambda: [layers.LSTM(UNITS), layers.Dense(4)],
    "all states": lambda: [layers.LSTM(UNITS, return_sequences=True)],
    "backwards": lambda: [layers.LSTM(UNITS, return_sequences=True, go_backwards=True), layers.Dense(4)],
    "no bias": lambda: [layers.LSTM(UNITS, use_bias=False)],
    "bias of zeros": lambda: [layers.LSTM(UNITS, unit_forget_bias=False)],
    "many units": lambda: [layers.LSTM(48, return_sequences=True), layers.Dense(4)],
    "frozen input": lambda: [layers.Dense(7, trainable=False), layers.LSTM(UNITS)],
    "dropout": lambda: [layers.LSTM(UNITS, dropout=0.4, seed=5, return_sequences=True)],
}


@pytest.mark.parametrize("name", [*(name for name in PLAIN if name != "dropout"), dropout])
def test_a_layer_is_operators(name: str, fused: Fused) -> None:
    check(sequential(*PLAIN[name]()), numbers(BATCH, TIME, FEATURES), fused, expected(1))


STACKED: dict[str, Callable[[], list[Any]]] = {
    "two layers": lambda: [layers.LSTM(UNITS, return_sequences=True), layers.LSTM(32), layers.Dense(4)],
    "both directions": lambda: [
        layers.Bidirectional(layers.LSTM(UNITS, return_sequences=True)),
        layers.Dense(4),
    ],
    "both directions, last states": lambda: [layers.Bidirectional(layers.LSTM(UNITS))],
}


@pytest.mark.parametrize("name", STACKED)
def test_several_layers_are_operators(name: str, fused: Fused) -> None:
    check(sequential(*STACKED[name]()), numbers(BATCH, TIME, FEATURES), fused, expected(2))


LOOPS: dict[str, Callable[[], list[Any]]] = {
    "hard sigmoid": lambda: [layers.LSTM(UNITS, recurrent_activation="hard_sigmoid")],
    "relu": lambda: [layers.LSTM(UNITS, activation="relu", return_sequences=True)],
    "masked": lambda: [layers.Masking(), layers.LSTM(UNITS)],
    "masked sequences": lambda: [layers.Masking(), layers.LSTM(UNITS, return_sequences=True)],
    "units in no blocks": lambda: [layers.LSTM(10, return_sequences=True)],
    "gru": lambda: [layers.GRU(UNITS)],
    "two cells in a loop": lambda: [layers.RNN([layers.LSTMCell(UNITS), layers.LSTMCell(UNITS)])],
    "simple": lambda: [layers.SimpleRNN(UNITS)],
}


@pytest.mark.parametrize("name", LOOPS)
def test_other_layers_stay_loops(name: str, fused: Fused) -> None:
    x = numbers(BATCH, TIME, FEATURES)
    x[0, TIME // 2 :] = 0
    check(sequential(*LOOPS[name]()), x, fused, 0)


@pytest.mark.parametrize("time", [1, 2, 3])
@pytest.mark.parametrize("sequences", [False, True])
def test_few_steps(time: int, sequences: bool, fused: Fused) -> None:
    model = sequential(layers.LSTM(UNITS, return_sequences=sequences), time=time)
    check(model, numbers(BATCH, time, FEATURES), fused, expected(1) if time > 1 else 0)


def test_a_batch_of_one(fused: Fused) -> None:
    model = sequential(layers.LSTM(UNITS, return_sequences=True), batch=1)
    check(model, numbers(1, TIME, FEATURES), fused, expected(1))


@needs_keras_3
def test_recurrent_dropout() -> None:
    model = sequential(layers.LSTM(UNITS, recurrent_dropout=0.3, seed=5))
    same(step_of(model), tf.constant(numbers(BATCH, TIME, FEATURES)), variables=model.variables)


# -- cells that are almost those of an LSTM ------------------------------------------------------------------


@tf.custom_gradient
def _clipped(x: Any) -> Any:
    return tf.identity(x), lambda dy: tf.clip_by_value(dy, -1e-3, 1e-3)


@tf.custom_gradient
def _doubled(x: Any) -> Any:
    return tf.identity(x), lambda dy: 2.0 * dy


class Cell(tf.keras.layers.Layer):
    """An LSTM's cell with a change somewhere."""

    def __init__(self, **changes: Callable[..., Any]) -> None:
        super().__init__()
        self.units, self.state_size, self.output_size = UNITS, [UNITS, UNITS], UNITS
        self.changes = changes

    def build(self, shape: Any) -> None:
        for name, rows in (("w", shape[-1]), ("r", UNITS), ("b", None)):
            size = (4 * UNITS,) if rows is None else (rows, 4 * UNITS)
            setattr(
                self,
                name,
                self.add_weight(shape=size, initializer="glorot_uniform" if rows else "zeros", name=name),
            )
        self.built = True

    def _changed(self, name: str, *values: Any) -> Any:
        return self.changes[name](*values) if name in self.changes else values[0]

    def call(self, x: Any, states: Any, training: Any = None) -> Any:
        h, c = states
        z = tf.matmul(x, self.w) + tf.matmul(self._changed("h", h), self.r) + self.b
        i, f, g, o = self._changed("order", tf.split(self._changed("z", z), 4, axis=1))
        i, f, o = tf.sigmoid(i), tf.sigmoid(f), tf.sigmoid(o)
        c = self._changed("c", f * self._changed("before", c) + i * tf.tanh(g))
        y = self._changed("y", o * tf.tanh(c), h, c)
        return self._changed("out", y, c), [y, c]


CHANGED: dict[str, dict[str, Callable[..., Any]]] = {
    "the cell's gradient ends here": {"before": tf.stop_gradient},
    "the state's gradient ends here": {"h": tf.stop_gradient},
    "clipped gradients": {"y": lambda y, h, c: _clipped(y)},
    "clipped gradients of gates": {"z": _clipped},
    "doubled gradients": {"c": _doubled},
    "half of the gradient": {"y": lambda y, h, c: 0.5 * y + tf.stop_gradient(0.5 * y)},
    "a state that is mixed": {"y": lambda y, h, c: 0.9 * y + 0.1 * h},
    "another order": {"order": lambda parts: [parts[k] for k in (0, 2, 1, 3)]},
    "two gates are one": {"order": lambda parts: [parts[k] for k in (0, 0, 2, 3)]},
    "cells are given, too": {"out": lambda y, c: tf.concat([y, c], 1)},
    "cells are given": {"out": lambda y, c: c},
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_cell_that_differs_stays_a_loop(name: str, fused: Fused) -> None:
    model = sequential(layers.RNN(Cell(**CHANGED[name]), return_sequences=True))
    check(model, numbers(BATCH, TIME, FEATURES), fused, 0)


def test_a_cell_of_ones_own_is_operators(fused: Fused) -> None:
    model = sequential(layers.RNN(Cell(), return_sequences=True), layers.Dense(4))
    check(model, numbers(BATCH, TIME, FEATURES), fused, expected(1))


def test_a_cell_that_writes_its_gradients_another_way_is_operators(fused: Fused) -> None:
    scaled = {"y": lambda y, h, c: 0.5 * y + 0.5 * y, "c": lambda c: c + 0.0 * c}
    model = sequential(layers.RNN(Cell(**scaled), return_sequences=True))
    check(model, numbers(BATCH, TIME, FEATURES), fused, None)


# -- uses ----------------------------------------------------------------------------------------------------


class States(tf.keras.Model):
    """A layer whose initial states are given and whose last states are results."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = layers.LSTM(UNITS, return_sequences=True, return_state=True)
        self.first = [layers.Dense(UNITS, activation="tanh") for _ in range(2)]

    def call(self, x: Any, training: bool | None = None) -> Any:
        start = [dense(x[:, 0]) for dense in self.first]
        y, h, c = self.lstm(x, initial_state=start, training=training)
        return tf.concat([tf.reshape(v, [BATCH, -1]) for v in (y, 2.0 * h, 3.0 * c)], 1)


class Shared(tf.keras.Model):
    """Two calls of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = layers.LSTM(UNITS, return_sequences=True)

    def call(self, x: Any, training: bool | None = None) -> Any:
        return self.lstm(x, training=training) + self.lstm(tf.reverse(x, [1]) * 0.5, training=training)


class Handed(tf.keras.Model):
    """The last states of a layer are the first ones of another."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = layers.LSTM(UNITS, return_state=True)
        self.writer = layers.LSTM(UNITS, return_sequences=True)

    def call(self, x: Any, training: bool | None = None) -> Any:
        _, *states = self.reader(x, training=training)
        return self.writer(x[:, : TIME // 2], initial_state=states, training=training)


@pytest.mark.parametrize(("kind", "count"), [(States, 1), (Shared, 2), (Handed, 2)])
def test_models_of_ones_own(kind: type, count: int, fused: Fused) -> None:
    model, x = kind(), numbers(BATCH, TIME, FEATURES)
    model(x)
    check(model, x, fused, expected(count))


@pytest.mark.parametrize("tapes", [1, 2])
def test_two_gradients_of_one_layer(tapes: int) -> None:
    model = sequential(layers.LSTM(UNITS, return_sequences=True))
    weights = model.trainable_variables

    def step(x: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape, tf.GradientTape() as other:
            y = model(x, training=True)
            one, two = distance(y), tf.reduce_sum(y[:, -1])
        return tape.gradient(one, weights), (tape if tapes == 1 else other).gradient(two, weights)

    same(step, tf.constant(numbers(BATCH, TIME, FEATURES)), variables=model.variables)


def test_gradients_of_gradients() -> None:
    model = sequential(layers.LSTM(UNITS, return_sequences=True))

    def step(x: Any) -> Any:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = distance(model(x, training=True))
            (slope,) = inner.gradient(loss, [x])
            penalty = tf.reduce_sum(tf.square(slope))
        return outer.gradient(penalty, model.trainable_variables)

    same(step, tf.constant(numbers(BATCH, TIME, FEATURES)), variables=model.variables)


def test_weights_that_change_between_calls(fused: Fused) -> None:
    """Gradients alone: the first call has the weights as constants, later ones as inputs."""
    model = sequential(layers.LSTM(UNITS, return_sequences=True), layers.LSTM(32))
    x = tf.constant(numbers(BATCH, TIME, FEATURES))

    @tf.function
    def gradients(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = distance(model(x, training=True))
        return loss, *tape.gradient(loss, model.trainable_variables)

    for factor in (1.0, 0.7, 1.2):
        for variable in model.trainable_variables:
            variable.assign(factor * variable)
        found = [v.numpy() for v in gradients(x)]
        with tf.device("/CPU:0"):
            wanted = [v.numpy() for v in tf.function(gradients.python_function)(x)]
        for one, other in zip(wanted, found, strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)
    assert fused() == expected(2)


def test_states_that_are_variables(fused: Fused) -> None:
    """Each step begins where the one before has ended."""
    model = sequential(layers.LSTM(UNITS, stateful=True, return_sequences=True))
    x = tf.constant(numbers(BATCH, TIME, FEATURES))
    model(x)
    saved, found = [v.numpy() for v in model.trainable_variables], []
    for device in ("/CPU:0", "/NPU:0"):
        for variable, value in zip(model.trainable_variables, saved, strict=True):
            variable.assign(value)
        for state in tf.nest.flatten(model.layers[-1].states):
            state.assign(tf.zeros_like(state))
        step = tf.function(step_of(model))
        with tf.device(device):
            found.append([v.numpy() for _ in range(3) for v in step(x)])
    for wanted, given in zip(*found, strict=True):
        np.testing.assert_allclose(given, wanted, rtol=1e-4, atol=1e-5)
    assert fused() == expected(1)


def test_fit_with_any_batch_size(fused: Fused) -> None:
    """The last batch is smaller than the others."""
    losses = []
    for device in ("/CPU:0", "/NPU:0"):
        tf.keras.utils.set_random_seed(4)
        with tf.device(device):
            model = sequential(
                layers.LSTM(UNITS, return_sequences=True), layers.LSTM(UNITS), layers.Dense(1), batch=None
            )
            model.compile(tf.keras.optimizers.Adam(1e-2), "mse", jit_compile=False)
            history = model.fit(
                numbers(10, TIME, FEATURES), numbers(10, 1, seed=2), 4, 3, verbose=0, shuffle=False
            )
            losses.append(history.history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert fused() == expected(2)


# -- narrower types ------------------------------------------------------------------------------------------


@needs_bfloat16
@pytest.mark.parametrize("name", ["last state", "all states", "no bias", dropout])
def test_a_policy_of_mixed_types(name: str, fused: Fused) -> None:
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        model = sequential(*PLAIN[name]())
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    check_narrow(model, numbers(BATCH, TIME, FEATURES), fused, expected(1, dtype="bfloat16"))


@needs_bfloat16
@pytest.mark.parametrize("name", ["last state", "all states", "backwards", "no bias", dropout])
def test_a_precision_mode(name: str, fused: Fused) -> None:
    before = tf_adapter.options.precision_mode
    tf_adapter.options.precision_mode = "allow_mix_precision_bf16"
    try:
        model = sequential(*PLAIN[name]())
        check_narrow(model, numbers(BATCH, TIME, FEATURES), fused, expected(1, dtype="bfloat16"))
    finally:
        tf_adapter.options.precision_mode = before
