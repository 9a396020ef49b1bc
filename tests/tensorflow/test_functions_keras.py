"""Keras models on the NPU: the same answers as on the CPU, with nearly all of the arithmetic there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.sampling import slow_except
from tests.tensorflow.comparing import CPU, NPU, equal
from tf_adapter.explanation import explain

keras = tf.keras
layers = keras.layers
_RANDOM = np.random.RandomState(0)
SEQUENCE = _RANDOM.rand(2, 8, 6).astype(np.float32)
IMAGE = _RANDOM.rand(2, 16, 16, 3).astype(np.float32)
TOKENS = _RANDOM.randint(0, 50, (2, 8)).astype(np.int32)
VIDEO = _RANDOM.rand(2, 4, 12, 12, 3).astype(np.float32)


def _stack(shape: tuple[int, ...], *made: Any, dtype: str = "float32") -> Any:
    given = layers.Input(shape, dtype=dtype)
    value = given
    for layer in made:
        value = layer(value)
    return keras.Model(given, value)


def _transformer() -> Any:
    given = layers.Input((8,), dtype="int32")
    h = layers.Embedding(50, 12, mask_zero=True)(given)
    attended = layers.MultiHeadAttention(2, 6, dropout=0.1)(h, h, use_causal_mask=True)
    h = layers.LayerNormalization()(layers.Add()([h, attended]))
    h = layers.Dropout(0.1)(layers.Dense(12, activation="gelu")(h))
    return keras.Model(given, layers.Dense(4, activation="softmax")(layers.GlobalAveragePooling1D()(h)))


def _attention() -> Any:
    given = layers.Input((8, 6))
    both = [layers.Attention()([given, given]), layers.AdditiveAttention()([given, given])]
    return keras.Model(given, layers.Concatenate()(both))


NETWORKS: dict[str, tuple[Callable[[], Any], np.ndarray]] = {
    "lstm": (lambda: _stack((8, 6), layers.LSTM(5, return_sequences=True), layers.Dense(3)), SEQUENCE),
    "gru": (lambda: _stack((8, 6), layers.GRU(5)), SEQUENCE),
    "simple": (lambda: _stack((8, 6), layers.SimpleRNN(5)), SEQUENCE),
    "bidirectional": (lambda: _stack((8, 6), layers.Bidirectional(layers.LSTM(5))), SEQUENCE),
    "masked": (
        lambda: _stack((8,), layers.Embedding(50, 6, mask_zero=True), layers.LSTM(5), dtype="int32"),
        TOKENS,
    ),
    "cells": (lambda: _stack((8, 6), layers.RNN([layers.LSTMCell(4), layers.GRUCell(3)])), SEQUENCE),
    "conv_lstm": (lambda: _stack((4, 12, 12, 3), layers.ConvLSTM2D(4, 3)), VIDEO),
    "transformer": (_transformer, TOKENS),
    "attention": (_attention, SEQUENCE),
    "distributed": (lambda: _stack((8, 6), layers.TimeDistributed(layers.Dense(4))), SEQUENCE),
    "convolutions": (
        lambda: _stack(
            (16, 16, 3),
            layers.SeparableConv2D(4, 3),
            layers.Conv2DTranspose(4, 3, strides=2),
            layers.UpSampling2D(interpolation="bilinear"),
            layers.ZeroPadding2D(),
            layers.Cropping2D(2),
            layers.AveragePooling2D(2),
            layers.PReLU(),
        ),
        IMAGE,
    ),
    "three_dimensions": (
        lambda: _stack((4, 12, 12, 3), layers.Conv3D(4, 3), layers.GlobalAveragePooling3D()),
        VIDEO,
    ),
    "preprocessing": (
        lambda: _stack(
            (16, 16, 3),
            layers.Rescaling(1 / 255.0),
            layers.Resizing(12, 12),
            layers.CenterCrop(8, 8),
            layers.RandomFlip(),
            layers.Conv2D(4, 3),
        ),
        IMAGE,
    ),
    "normalisation": (
        lambda: _stack((8, 6), layers.Normalization(mean=[0.1] * 6, variance=[2.0] * 6), layers.Dense(3)),
        SEQUENCE,
    ),
}


def _both(call: Callable[[], Any]) -> list[Any]:
    results = []
    for device in (CPU, NPU):
        with tf.device(device):
            results.append(call())
    return results


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str) -> None:
    build, x = NETWORKS[name]
    with tf.device(NPU):
        model = build()
    call = tf.function(lambda a: model(a, training=False))
    wanted, given = _both(lambda: [call(tf.constant(x)).numpy() for _ in range(2)])
    for one, other in zip(wanted, given, strict=True):
        equal(one, other)
    assert explain(call, tf.constant(x)).flops_share >= 0.99


@pytest.mark.parametrize("name", ["lstm", "transformer", "convolutions"])
def test_predict(name: str) -> None:
    build, x = NETWORKS[name]
    with tf.device(NPU):
        model = build()
    many = np.concatenate([x] * 3)[:5]
    wanted, given = _both(lambda: model.predict(many, batch_size=2, verbose=0))
    equal(wanted, given)


def test_text() -> None:
    vectorise = layers.TextVectorization(max_tokens=20, output_sequence_length=5)
    vectorise.adapt(["a b c", "d e f g"])
    given = layers.Input((), dtype="string")
    value = layers.LSTM(16)(layers.Embedding(20, 16)(vectorise(given)))
    model = keras.Model(given, layers.Dense(3)(value))
    words = tf.constant(["a b", "c d zz"])
    call = tf.function(lambda a: model(a, training=False))
    wanted, there = _both(lambda: call(words).numpy())
    equal(wanted, there)
    assert explain(call, words).flops_share >= 0.99


def test_training_in_one_function() -> None:
    def trained() -> Any:
        keras.utils.set_random_seed(3)
        model = _stack(
            (16, 16, 3),
            layers.Conv2D(4, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Flatten(),
            layers.Dense(10),
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, jit_compile=False)
        x, y = np.concatenate([IMAGE] * 4), np.arange(8) % 10
        history = model.fit(x, y, batch_size=4, epochs=3, shuffle=False, verbose=0).history["loss"]
        return history, model.predict(x, verbose=0)

    (losses, outputs), (npu_losses, npu_outputs) = _both(trained)
    np.testing.assert_allclose(npu_losses, losses, rtol=1e-3)
    np.testing.assert_allclose(npu_outputs, outputs, rtol=1e-2, atol=1e-3)


APPLICATIONS = {
    "MobileNetV2": 32,
    "MobileNetV3Small": 32,
    "EfficientNetB0": 32,
    "ResNet50": 32,
}
# Every family, larger members too; some are in one of the two Keras versions only.
MORE_APPLICATIONS = {
    "ResNet101": 32,
    "ResNet152": 32,
    "ResNet50V2": 32,
    "ResNet101V2": 32,
    "MobileNet": 32,
    "MobileNetV3Large": 32,
    "EfficientNetB3": 32,
    "EfficientNetV2B0": 32,
    "EfficientNetV2S": 32,
    "DenseNet121": 32,
    "DenseNet169": 32,
    "DenseNet201": 32,
    "NASNetMobile": 32,
    "NASNetLarge": 32,
    "VGG16": 32,
    "VGG19": 32,
    "InceptionV3": 75,
    "InceptionResNetV2": 75,
    "Xception": 71,
    "ConvNeXtTiny": 32,
    "ConvNeXtBase": 32,
    "RegNetX002": 32,
    "RegNetY002": 32,
    "RegNetX032": 32,
    "ResNetRS50": 32,
    "ResNetRS101": 32,
}


def _check_application(name: str, side: int) -> None:
    make = getattr(keras.applications, name)
    x = tf.constant(np.random.RandomState(1).rand(1, side, side, 3).astype(np.float32) * 255)
    with tf.device(NPU):
        # Probabilities of an untrained network are all alike: logits tell more.
        model = make(weights=None, input_shape=(side, side, 3), classes=10, classifier_activation=None)
    call = tf.function(lambda a: model(a, training=False), autograph=False)
    wanted, given = _both(lambda: call(x).numpy())
    largest = float(np.abs(wanted).max())
    assert largest > 0
    equal(wanted / largest, given / largest, rtol=0, atol=1e-4)
    assert explain(call, x).flops_share >= 0.99


@pytest.mark.parametrize("name", slow_except(("MobileNetV2",), APPLICATIONS))
def test_applications(name: str) -> None:
    _check_application(name, APPLICATIONS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MORE_APPLICATIONS if hasattr(keras.applications, name)])
def test_more_applications(name: str) -> None:
    _check_application(name, MORE_APPLICATIONS[name])
