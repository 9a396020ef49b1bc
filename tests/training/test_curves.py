"""Loss curves of whole networks over 20 steps, compiled with variables updated in place, against TensorFlow's."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tests.support.sampling import slow_except  # noqa: E402
from tests.support.tf_training import Batch, TrainStep, keras_step  # noqa: E402

L = tf.keras.layers
K = tf.keras
STEPS = 20
Subject = tuple[Callable[..., Any], list[Batch]]


def images(count: int, shape: tuple[int, ...], classes: int) -> list[Batch]:
    random = np.random.default_rng(2)
    return [
        (
            random.standard_normal(shape).astype(np.float32),
            random.integers(0, classes, shape[0]).astype(np.int32),
        )
        for _ in range(count)
    ]


def encoder_layer(x: Any, heads: int, width: int) -> Any:
    attended = L.MultiHeadAttention(heads, width // heads, dropout=0.1, seed=1)(x, x)
    x = L.LayerNormalization()(x + L.Dropout(0.1, seed=2)(attended))
    hidden = L.Dense(width)(L.Dense(4 * width, activation="gelu")(x))
    return L.LayerNormalization()(x + hidden)


def bert() -> Subject:
    ids = K.Input((16,), dtype="int32")
    x = L.Embedding(50, 32)(ids) + L.Embedding(16, 32)(np.arange(16)[None])
    for _ in range(2):
        x = encoder_layer(L.LayerNormalization()(x), 4, 32)
    model = K.Model(ids, L.Dense(3)(L.Dense(32, activation="tanh")(x[:, 0])))
    random = np.random.default_rng(2)
    batches = [
        (random.integers(0, 50, (8, 16)).astype(np.int32), random.integers(0, 3, 8).astype(np.int32))
        for _ in range(STEPS)
    ]
    loss = K.losses.SparseCategoricalCrossentropy(from_logits=True)
    return keras_step(model, loss, K.optimizers.AdamW(1e-3, global_clipnorm=1.0)), batches


def lstm() -> Subject:
    model = K.Sequential([K.Input((12, 6)), L.LSTM(16, return_sequences=True), L.GRU(12), L.Dense(4)])
    loss = K.losses.SparseCategoricalCrossentropy(from_logits=True)
    return keras_step(model, loss, K.optimizers.Adam(0.01)), images(STEPS, (8, 12, 6), 4)


def unet() -> Subject:
    x = inputs = K.Input((16, 16, 3))
    kept = []
    for width in (8, 16):
        x = L.Activation("relu")(L.BatchNormalization()(L.Conv2D(width, 3, padding="same")(x)))
        kept.append(x)
        x = L.MaxPooling2D()(x)
    x = L.Conv2D(32, 3, padding="same", activation="relu")(x)
    for width in (16, 8):
        x = L.Conv2DTranspose(width, 2, strides=2, padding="same")(x)
        x = L.Conv2D(width, 3, padding="same", activation="relu")(L.Concatenate()([x, kept.pop()]))
    model = K.Model(inputs, L.Conv2D(1, 1)(x))
    random = np.random.default_rng(2)
    batches = [
        (
            random.standard_normal((2, 16, 16, 3)).astype(np.float32),
            random.integers(0, 2, (2, 16, 16, 1)).astype(np.float32),
        )
        for _ in range(STEPS)
    ]
    return keras_step(
        model, K.losses.BinaryCrossentropy(from_logits=True), K.optimizers.RMSprop(1e-3)
    ), batches


def gan() -> Subject:
    """Both networks are trained in one step, each by its own optimizer."""
    maker = K.Sequential(
        [
            K.Input((8,)),
            L.Dense(4 * 4 * 8),
            L.BatchNormalization(),
            L.LeakyReLU(),
            L.Reshape((4, 4, 8)),
            L.Conv2DTranspose(1, 4, strides=2, padding="same", activation="tanh"),
        ]
    )
    judge = K.Sequential(
        [K.Input((8, 8, 1)), L.Conv2D(8, 3, strides=2), L.LeakyReLU(), L.Flatten(), L.Dense(1)]
    )
    first, second = K.optimizers.Adam(1e-3), K.optimizers.Adam(1e-3)
    first.build(maker.trainable_variables)
    second.build(judge.trainable_variables)
    entropy = K.losses.BinaryCrossentropy(from_logits=True)

    def train(noise: Any, real: Any) -> Any:
        with tf.GradientTape() as making, tf.GradientTape() as judging:
            made = maker(noise, training=True)
            real_score, made_score = judge(real, training=True), judge(made, training=True)
            maker_loss = entropy(tf.ones_like(made_score), made_score)
            judge_loss = entropy(tf.ones_like(real_score), real_score)
            judge_loss += entropy(tf.zeros_like(made_score), made_score)
        for loss, tape, model, optimizer in (
            (maker_loss, making, maker, first),
            (judge_loss, judging, judge, second),
        ):
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return maker_loss + judge_loss, maker_loss

    random = np.random.default_rng(2)
    batches = [
        (
            random.standard_normal((4, 8)).astype(np.float32),
            random.standard_normal((4, 8, 8, 1)).astype(np.float32),
        )
        for _ in range(STEPS)
    ]
    return train, batches


def vae() -> Subject:
    """Samples with a seed that is part of the state."""
    encode = K.Sequential([K.Input((12,)), L.Dense(16, activation="relu"), L.Dense(8)])
    decode = K.Sequential([K.Input((4,)), L.Dense(16, activation="relu"), L.Dense(12)])
    weights = [*encode.trainable_variables, *decode.trainable_variables]
    optimizer = K.optimizers.Adamax(0.01)
    optimizer.build(weights)
    turn = tf.Variable([3, 0], dtype=tf.int32)

    def train(x: Any) -> Any:
        turn.assign_add([0, 1])
        with tf.GradientTape() as tape:
            mean, spread = tf.split(encode(x), 2, axis=1)
            noise = tf.random.stateless_normal(tf.shape(mean), turn)
            found = decode(mean + noise * tf.exp(0.5 * spread))
            error = tf.reduce_sum(tf.square(found - x), 1)
            distance = -0.5 * tf.reduce_sum(1 + spread - tf.square(mean) - tf.exp(spread), 1)
            loss = tf.reduce_mean(error + distance)
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    random = np.random.default_rng(2)
    return train, [(random.standard_normal((8, 12)).astype(np.float32),) for _ in range(STEPS)]


def recommender() -> Subject:
    tables = [
        tf.Variable(np.random.default_rng(i).standard_normal((20, 6)).astype(np.float32)) for i in range(3)
    ]
    bottom = K.Sequential([K.Input((5,)), L.Dense(12, activation="relu"), L.Dense(6, activation="relu")])
    top = K.Sequential([K.Input((12,)), L.Dense(8, activation="relu"), L.Dense(1)])
    weights = [*tables, *bottom.trainable_variables, *top.trainable_variables]
    optimizer = K.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(weights)

    def train(dense: Any, ids: Any, clicked: Any) -> Any:
        with tf.GradientTape() as tape:
            x = bottom(dense)
            rows = tf.stack([x, *(tf.nn.embedding_lookup(t, ids[:, i]) for i, t in enumerate(tables))], 1)
            pairs = tf.matmul(rows, rows, transpose_b=True)
            crossed = tf.boolean_mask(pairs, np.tri(4, k=-1, dtype=bool), axis=1)
            logits = top(tf.concat([x, crossed], 1))[:, 0]
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(clicked, logits))
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    random = np.random.default_rng(2)
    batches = [
        (
            random.standard_normal((16, 5)).astype(np.float32),
            random.integers(0, 20, (16, 3)).astype(np.int32),
            random.integers(0, 2, 16).astype(np.float32),
        )
        for _ in range(STEPS)
    ]
    return train, batches


SUBJECTS = {f.__name__: f for f in (bert, lstm, unet, gan, vae, recommender)}


@pytest.mark.parametrize("name", slow_except(("lstm", "recommender"), SUBJECTS))
def test_the_loss_falls_as_in_tensorflow(name: str) -> None:
    K.utils.set_random_seed(11)
    function, batches = SUBJECTS[name]()
    step = TrainStep(function, batches[0])
    for number, batch in enumerate(batches):
        expected, found = step.reference(*batch), step(*batch)
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-3, err_msg=f"step {number}")


def test_two_runs_are_the_same_to_the_bit() -> None:
    def run() -> list[np.ndarray]:
        K.utils.set_random_seed(11)
        function, batches = unet()
        step = TrainStep(function, batches[0])
        losses = [step(*batch)[0] for batch in batches]
        return [*losses, *step.state.values()]

    for one, other in zip(run(), run(), strict=True):
        np.testing.assert_array_equal(one, other)
