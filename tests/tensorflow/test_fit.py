"""Training with Keras on the NPU: every way of it gives what plain TensorFlow gives, a step being one model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import config

import npu_device
import tf_adapter
from npu_runtime import tensorflow as native
from tests.tensorflow.comparing import CPU, NPU, needs_bfloat16
from tf_adapter import functions

keras = tf.keras
L = keras.layers
KERAS_3 = tuple(map(int, tf.__version__.split(".")[:2])) >= (2, 16)
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((24, 6)).astype(np.float32)
Y = RANDOM.integers(0, 3, 24)
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
Results = dict[str, Any]
Found = TypeVar("Found")


def model(**compiled: Any) -> Any:
    """A small classifier with everything a step has: normalisation, losses of weights, metrics."""
    made = keras.Sequential(
        [
            keras.Input((6,)),
            L.Dense(8, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-3)),
            L.BatchNormalization(),
            L.Dense(3),
        ]
    )
    settings = {"optimizer": keras.optimizers.Adam(0.01), "metrics": ["accuracy"], **compiled}
    made.compile(loss=LOSS, jit_compile=False, **settings)
    return made


def state(made: Any) -> Results:
    return {f"weight {i}": w for i, w in enumerate(made.get_weights())}


def fitted(made: Any, **given: Any) -> Results:
    """What a training leaves behind: the history and the weights."""
    history = made.fit(
        X, Y, **{"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0, **given}
    ).history
    return {**{k: np.array(v) for k, v in history.items()}, **state(made)}


# -- ways to train -------------------------------------------------------------------------------------------


def plain() -> Results:
    return fitted(model())


def class_weights() -> Results:
    return fitted(model(), class_weight={0: 1.0, 1: 2.0, 2: 0.5})


def sample_weights() -> Results:
    weights = np.linspace(0.1, 2.0, len(X)).astype(np.float32)
    return fitted(model(weighted_metrics=["accuracy"]), sample_weight=weights)


def validation() -> Results:
    return fitted(model(), validation_data=(X[:10], Y[:10]))


def validation_split() -> Results:
    return fitted(model(), validation_split=0.25)


def callbacks() -> Results:
    seen: list[Any] = []
    rates = keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 / (epoch + 1))
    watch = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append((batch, float(logs["loss"]))),
        on_epoch_end=lambda epoch, logs: seen.append((epoch, float(logs["accuracy"]))),
    )
    stop = keras.callbacks.EarlyStopping("loss", patience=5, restore_best_weights=True)
    return {**fitted(model(), callbacks=[rates, watch, stop]), "seen": np.array(seen)}


def several_steps_at_once() -> Results:
    return fitted(model(steps_per_execution=4))  # 6 batches: four, then the rest


def single_batches() -> Results:
    made = model()
    losses = [np.ravel(made.train_on_batch(X[:5], Y[:5], sample_weight=np.ones(5))) for _ in range(3)]
    losses += [np.ravel(made.test_on_batch(X[:5], Y[:5])), np.ravel(made.predict_on_batch(X[:5]))]
    return {**{f"loss {i}": v for i, v in enumerate(losses)}, **state(made)}


def own_step() -> Results:
    class Own(keras.Model):
        """A model whose step is its own: the loss of a doubled input, and a metric of its own."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = keras.Sequential([L.Dense(8, activation="tanh"), L.Dense(3)])
            self.mean = keras.metrics.Mean("mean")

        def call(self, x: Any) -> Any:
            return self.inner(x)

        def train_step(self, data: Any) -> Any:
            x, y = data[0], data[1]
            with tf.GradientTape() as tape:
                loss = LOSS(y, self(x * 2.0))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.mean.update_state(loss)
            return {"mean": self.mean.result()}

        @property
        def metrics(self) -> list[Any]:
            return [self.mean]

    made = Own()
    made.compile(keras.optimizers.SGD(0.1), jit_compile=False)
    return fitted(made)


def evaluated_and_predicted() -> Results:
    made = model()
    fitted(made)
    results = {
        "evaluate": np.array(made.evaluate(X[:10], Y[:10], batch_size=4, verbose=0)),
        "predict": made.predict(X[:10], batch_size=4, verbose=0),
    }
    made.compile(loss=LOSS, steps_per_execution=2, jit_compile=False)
    results["evaluate many"] = np.array(made.evaluate(X, Y, batch_size=4, verbose=0))
    results["predict many"] = made.predict(X, batch_size=4, verbose=0)
    return results


def from_a_dataset() -> Results:
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    made = model()
    history = made.fit(data, epochs=2, validation_data=data.take(2), verbose=0).history
    return {**{k: np.array(v) for k, v in history.items()}, **state(made)}


def from_a_generator() -> Results:
    def batches() -> Any:
        while True:
            for start in range(0, 24, 4):
                yield X[start : start + 4], Y[start : start + 4]

    made = model()
    history = made.fit(batches(), steps_per_epoch=6, epochs=2, verbose=0).history
    return {**{k: np.array(v) for k, v in history.items()}, **state(made)}


def clipping() -> Results:
    results = {}
    for name, value in (("clipnorm", 0.1), ("global_clipnorm", 0.1), ("clipvalue", 0.01)):
        keras.utils.set_random_seed(2)
        found = fitted(model(optimizer=keras.optimizers.SGD(0.1, **{name: value})))
        results.update({f"{name} {k}": v for k, v in found.items()})
    return results


def averages() -> Results:
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=4)
    return fitted(model(optimizer=optimizer))


def weight_decay() -> Results:
    made = model(optimizer=keras.optimizers.AdamW(0.01, weight_decay=0.1))
    made.optimizer.exclude_from_weight_decay(var_names=["bias"])
    return fitted(made)


def accumulation() -> Results:
    if KERAS_3:
        optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=3)
        return fitted(model(optimizer=optimizer))
    return plain()  # Keras 2 has none


def learning_rate_schedule() -> Results:
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 10, warmup_target=0.2, warmup_steps=3)
    return fitted(model(optimizer=keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True)))


def loss_scaled() -> Results:
    scaled = keras.mixed_precision.LossScaleOptimizer
    return fitted(
        model(optimizer=scaled(keras.optimizers.SGD(0.1), initial_scale=256.0, dynamic_growth_steps=4))
    )


def npu_loss_scaled() -> Results:
    optimizer = npu_device.train.optimizer.NpuLossScaleOptimizer(
        keras.optimizers.SGD(0.1), initial_scale=256.0, dynamic_growth_steps=4
    )
    made = model(optimizer=optimizer)
    found = fitted(made)
    scale = optimizer.loss_scale() if callable(optimizer.loss_scale) else optimizer.loss_scale
    return {**found, "scale": np.asarray(scale)}


WAYS: tuple[Callable[[], Results], ...] = (
    class_weights,
    validation,
    callbacks,
    several_steps_at_once,
    single_batches,
    own_step,
    clipping,
    accumulation,
    loss_scaled,
)
# Variations of these, left to `make test-all`.
MORE_WAYS: tuple[Callable[[], Results], ...] = (
    plain,
    sample_weights,
    validation_split,
    evaluated_and_predicted,
    from_a_dataset,
    from_a_generator,
    averages,
    weight_decay,
    learning_rate_schedule,
    npu_loss_scaled,
)
ALL_WAYS = [*WAYS, *(pytest.param(way, marks=pytest.mark.slow) for way in MORE_WAYS)]


def run(way: Callable[[], Found], device: str) -> Found:
    keras.utils.set_random_seed(1)
    with tf.device(device):
        return way()


@pytest.mark.parametrize("way", ALL_WAYS, ids=lambda w: w.__name__)
def test_it_trains_as_plain_tensorflow_does(way: Callable[[], Results]) -> None:
    wanted, found = run(way, CPU), run(way, NPU)
    assert wanted.keys() == found.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-3, atol=2e-5, err_msg=name)


def test_a_scale_that_overflows_leaves_steps_out() -> None:
    def way() -> float:
        optimizer = keras.mixed_precision.LossScaleOptimizer(
            keras.optimizers.SGD(0.1), initial_scale=2.0**126
        )
        made = model(optimizer=optimizer, loss_weights=[1e4])  # times the scale: infinite in both steps
        before = [v.numpy() for v in made.trainable_variables]
        fitted(made, epochs=1, batch_size=12)
        for variable, value in zip(made.trainable_variables, before, strict=True):
            np.testing.assert_array_equal(variable.numpy(), value)
        return float(optimizer.dynamic_scale if KERAS_3 else optimizer.loss_scale)

    assert run(way, CPU) == run(way, NPU) == 2.0**124


# -- the step is one model -----------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 3])
def test_the_whole_step_is_one_model(steps: int) -> None:
    with tf.device(NPU):
        made = model(steps_per_execution=steps)
        fitted(made, epochs=1)
        native.take_counts()
        fitted(made, epochs=1)
        counts = native.take_counts()
    # 2 products forward, 3 backward: one function has them all, and is called once a batch.
    heavy = {n: npu for n, (npu, _) in counts.items() if npu and n in functions._known and _products(n) >= 5}
    assert list(heavy.values()) == [6]
    (name,) = heavy
    assert _writes(name) >= len(made.trainable_variables) * 3 + 2  # weights, both moments, statistics
    # Nothing of the step is left on the host: only what moves data.
    for step, (_, host) in counts.items():
        if host and functions.is_step(step):
            operators = {n.op for n in functions.step_of(step).graph.nodes.values()}
            assert operators <= MOVING, operators


MOVING = {"_Arg", "Const", "NoOp", "Identity", "IteratorGetNext", "IteratorGetNextAsOptional"} | {
    "OptionalFromValue",
    "OptionalGetValue",
    "OptionalHasValue",
    "OptionalNone",
    "LogicalAnd",  # turns of the loop over steps are counted there, too
    "Less",
    "AddV2",
    "Cast",
    "Assert",
    "If",
    "ReadVariableOp",
}


def _npu_plan(name: str) -> Any:
    report = functions.last_report(name)
    assert report is not None and isinstance(report.plan, functions.NpuRun)
    return report.plan.lowered.model.plan


def _products(name: str) -> int:
    return sum(task.kind == "matmul" for task in _npu_plan(name).tasks)


def _writes(name: str) -> int:
    return len(_npu_plan(name).donated)


# -- precision -----------------------------------------------------------------------------------------------


def test_a_bfloat16_policy_keeps_float32_weights_and_learns() -> None:
    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        wanted, found = run(plain, CPU), run(plain, NPU)
    finally:
        keras.mixed_precision.set_global_policy(before)
    assert all(v.dtype == np.float32 for k, v in found.items() if k.startswith("weight"))
    np.testing.assert_allclose(found["loss"], wanted["loss"], rtol=3e-2)
    assert found["loss"][-1] < found["loss"][0]


@needs_bfloat16
def test_the_precision_mode_trains_in_bfloat16() -> None:
    wanted = run(plain, NPU)
    with tf_adapter.options.override(precision_mode="allow_mix_precision_bf16"):
        found = run(plain, NPU)
    np.testing.assert_allclose(found["loss"], wanted["loss"], rtol=3e-2)
    assert np.any(found["weight 0"] != wanted["weight 0"])


def test_two_runs_are_the_same_to_the_bit() -> None:
    tf.config.experimental.enable_op_determinism()
    try:
        first, second = (run(_with_dropout, NPU) for _ in range(2))
    finally:
        config.disable_op_determinism()
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value, err_msg=name)


def _with_dropout() -> Results:
    made = keras.Sequential([keras.Input((6,)), L.Dense(32, "relu"), L.Dropout(0.3), L.Dense(3)])
    made.compile("adam", LOSS, jit_compile=False)
    return fitted(made, shuffle=True)
