"""Optimizers of Keras and of tf.compat.v1: after several steps, losses and all variables are TensorFlow's."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tests.support.sampling import one_in  # noqa: E402
from tests.support.tf_training import TrainStep, keras_step, losses_of  # noqa: E402

O = tf.keras.optimizers  # noqa: E741
L = tf.keras.layers
STEPS = 6


def batches(count: int = STEPS) -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(3)
    return [
        (random.standard_normal((8, 5)).astype(np.float32), random.standard_normal((8, 3)).astype(np.float32))
        for _ in range(count)
    ]


def network() -> Any:
    tf.keras.utils.set_random_seed(4)
    model = tf.keras.Sequential([L.Dense(7, activation="tanh"), L.Dense(3)])
    model(batches(1)[0][0])
    return model


def assert_same(step: TrainStep, count: int = STEPS, tolerance: float = 1e-4) -> None:
    mine, theirs = losses_of(step, batches(count))
    np.testing.assert_allclose(mine, theirs, rtol=tolerance)
    wrong = {name: error for name, error in step.differences().items() if error > 10 * tolerance}
    assert not wrong


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: O.SGD(0.05),
    "SGD momentum": lambda: O.SGD(0.05, momentum=0.9),
    "SGD nesterov": lambda: O.SGD(0.05, momentum=0.9, nesterov=True),
    "SGD weight decay": lambda: O.SGD(0.05, momentum=0.9, weight_decay=0.01),
    "SGD clipnorm": lambda: O.SGD(0.5, clipnorm=0.3),
    "SGD clipvalue": lambda: O.SGD(0.5, clipvalue=0.1),
    "SGD global clipnorm": lambda: O.SGD(0.5, global_clipnorm=0.3),
    "SGD schedule": lambda: O.SGD(O.schedules.CosineDecay(0.1, 4)),
    "SGD piecewise": lambda: O.SGD(O.schedules.PiecewiseConstantDecay([2, 4], [0.1, 0.05, 0.01])),
    "SGD warmup": lambda: O.SGD(O.schedules.CosineDecay(0.0, 6, warmup_target=0.1, warmup_steps=2)),
    "SGD exponential": lambda: O.SGD(O.schedules.ExponentialDecay(0.1, 2, 0.9, staircase=True)),
    "SGD polynomial": lambda: O.SGD(O.schedules.PolynomialDecay(0.1, 3, 0.01, power=2.0, cycle=True)),
    "SGD inverse": lambda: O.SGD(O.schedules.InverseTimeDecay(0.1, 2, 0.5)),
    "SGD ema": lambda: O.SGD(0.05, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2),
    "SGD accumulation": lambda: O.SGD(0.05, gradient_accumulation_steps=3),
    "Adam": lambda: O.Adam(0.01),
    "Adam amsgrad": lambda: O.Adam(0.01, amsgrad=True),
    "Adam accumulation": lambda: O.Adam(0.01, gradient_accumulation_steps=2),
    "Adam loss scale": lambda: O.Adam(0.01, loss_scale_factor=8.0),
    "AdamW": lambda: O.AdamW(0.01, weight_decay=0.05),
    "AdamW ema": lambda: O.AdamW(0.01, use_ema=True, global_clipnorm=1.0),
    "Adamax": lambda: O.Adamax(0.01),
    "Nadam": lambda: O.Nadam(0.01),
    "RMSprop": lambda: O.RMSprop(0.01),
    "RMSprop centered": lambda: O.RMSprop(0.01, momentum=0.5, centered=True),
    "Adagrad": lambda: O.Adagrad(0.05),
    "Adadelta": lambda: O.Adadelta(0.5),
    "Ftrl": lambda: O.Ftrl(0.05),
    "Ftrl regularised": lambda: O.Ftrl(
        0.05, l1_regularization_strength=0.01, l2_regularization_strength=0.02, beta=0.1
    ),
    "Ftrl shrinkage": lambda: O.Ftrl(0.05, l2_shrinkage_regularization_strength=0.05),
    "Lion": lambda: O.Lion(0.005),
    "Lamb": lambda: O.Lamb(0.01, weight_decay=0.01),
    "Adafactor": lambda: O.Adafactor(0.01),
    "Adafactor unscaled": lambda: O.Adafactor(0.01, relative_step=False, clip_threshold=0.5),
    "Muon": lambda: O.Muon(0.01),
    "LossScaleOptimizer": lambda: O.LossScaleOptimizer(O.Adam(0.01), dynamic_growth_steps=2),
}


@pytest.mark.parametrize("name", one_in(4, OPTIMIZERS))
def test_optimizers_of_keras(name: str) -> None:
    try:
        optimizer = OPTIMIZERS[name]()
    except (AttributeError, TypeError, ValueError):
        pytest.skip("this Keras does not have it")
    model = network()
    step = TrainStep(keras_step(model, tf.keras.losses.MeanSquaredError(), optimizer), batches(1)[0])
    assert_same(step)


V1: dict[str, Callable[[], Any]] = {
    "GradientDescent": lambda: tf.compat.v1.train.GradientDescentOptimizer(0.05),
    "Momentum": lambda: tf.compat.v1.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
    "Adam": lambda: tf.compat.v1.train.AdamOptimizer(0.01),
    "Adagrad": lambda: tf.compat.v1.train.AdagradOptimizer(0.05),
    "AdagradDA": lambda: tf.compat.v1.train.AdagradDAOptimizer(0.05, tf.Variable(1, dtype=tf.int64)),
    "Adadelta": lambda: tf.compat.v1.train.AdadeltaOptimizer(0.5),
    "RMSProp": lambda: tf.compat.v1.train.RMSPropOptimizer(0.01, momentum=0.3),
    "RMSProp centered": lambda: tf.compat.v1.train.RMSPropOptimizer(0.01, centered=True),
    "Ftrl": lambda: tf.compat.v1.train.FtrlOptimizer(0.05, l1_regularization_strength=0.01),
    "ProximalGradientDescent": lambda: tf.compat.v1.train.ProximalGradientDescentOptimizer(0.05, 0.01, 0.02),
    "ProximalAdagrad": lambda: tf.compat.v1.train.ProximalAdagradOptimizer(
        0.05, l1_regularization_strength=0.01
    ),
}


@pytest.mark.parametrize("name", one_in(2, V1))
def test_optimizers_of_version_1(name: str) -> None:
    optimizer = V1[name]()
    random = np.random.default_rng(1)
    w, b = tf.Variable(random.standard_normal((5, 3)).astype(np.float32)), tf.Variable(tf.zeros([3]))

    def train(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, w) + b - y))
        optimizer.apply_gradients(zip(tape.gradient(loss, [w, b]), [w, b], strict=True))
        return loss

    tf.function(train)(*map(tf.constant, batches(1)[0]))  # makes the slots
    assert_same(TrainStep(train, batches(1)[0]))


SPARSE: dict[str, Callable[[], Any]] = {
    "SGD": lambda: O.SGD(0.05, momentum=0.9),
    "Adam": lambda: O.Adam(0.01),
    "Ftrl": lambda: O.Ftrl(0.05),
    "v1 Adam": lambda: tf.compat.v1.train.AdamOptimizer(0.01),
    "v1 Adagrad": lambda: tf.compat.v1.train.AdagradOptimizer(0.05),
    "v1 Momentum": lambda: tf.compat.v1.train.MomentumOptimizer(0.05, 0.9),
    "v1 RMSProp": lambda: tf.compat.v1.train.RMSPropOptimizer(0.01),
    "v1 Ftrl": lambda: tf.compat.v1.train.FtrlOptimizer(0.05),
    "v1 GradientDescent": lambda: tf.compat.v1.train.GradientDescentOptimizer(0.05),
}


@pytest.mark.parametrize("name", SPARSE)
def test_gradients_of_rows(name: str) -> None:
    """Rows that occur twice in a batch are summed."""
    random = np.random.default_rng(1)
    table = tf.Variable(random.standard_normal((9, 4)).astype(np.float32))
    optimizer = SPARSE[name]()
    if hasattr(optimizer, "build"):
        optimizer.build([table])

    def train(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.gather(table, x) - 1.0))
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        return loss

    ids = [random.integers(0, 9, 6).astype(np.int32) for _ in range(STEPS)]
    if not hasattr(optimizer, "build"):
        tf.function(train)(tf.constant(ids[0]))  # makes the slots
    step = TrainStep(train, [ids[0]])
    mine, theirs = losses_of(step, [(i,) for i in ids])
    np.testing.assert_allclose(mine, theirs, rtol=1e-4)
    assert max(step.differences().values()) < 1e-3


def test_an_overflow_skips_the_step_and_lowers_the_scale() -> None:
    if not hasattr(O, "LossScaleOptimizer"):
        pytest.skip("this Keras does not have it")
    model = network()
    optimizer = O.LossScaleOptimizer(O.SGD(0.05), initial_scale=64.0, dynamic_growth_steps=2)
    weights = model.trainable_variables
    optimizer.build(weights)

    def train(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
            scaled = optimizer.scale_loss(loss)
        optimizer.apply_gradients(zip(tape.gradient(scaled, weights), weights, strict=True))
        return loss

    step = TrainStep(train, batches(1)[0])
    for number, (x, y) in enumerate(batches(5)):
        given = x * np.float32(np.inf) if number == 2 else x
        expected, found = step.reference(given, y), step(given, y)
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-4)
    assert max(step.differences().values()) < 1e-4
