"""Keras models, frozen and as SavedModels, compiled and compared with TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest

import ge
from ge.errors import UnsupportedOperatorsError
from ge.parsers.tensorflow.parser import parse, parse_model

tf = pytest.importorskip("tensorflow")

from tests.support.tf_models import concrete, export, feeds, freeze_keras, parse_function  # noqa: E402

keras, layers = tf.keras, tf.keras.layers


def randomised(model: Any) -> Any:
    """The model with weights that make every part of it matter."""
    random = np.random.default_rng(1)
    weights = []
    for variable, value in zip(model.weights, model.get_weights(), strict=True):
        if "variance" in variable.name:
            weights.append(np.abs(random.standard_normal(value.shape)) + 0.5)
        else:
            spread = 0.5 if value.ndim < 2 else np.prod(value.shape[:-1]) ** -0.5
            weights.append(random.standard_normal(value.shape) * spread)
    model.set_weights(weights)
    return model


def lstm() -> Any:
    both = layers.Bidirectional(layers.LSTM(4))
    return keras.Sequential(
        [keras.Input((7, 5)), layers.LSTM(6, return_sequences=True), both, layers.Dense(3)]
    )


def recurrent() -> Any:
    gru = layers.GRU(6, return_sequences=True, go_backwards=True)
    return keras.Sequential([keras.Input((7, 5)), gru, layers.SimpleRNN(4), layers.Dense(3)])


def masked() -> Any:
    words = keras.Input((7,), dtype="int32")
    return keras.Model(words, layers.LSTM(6)(layers.Embedding(10, 5, mask_zero=True)(words)))


def transformer() -> Any:
    words = keras.Input((8,), dtype="int32")
    x = layers.Embedding(20, 16)(words)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8)(x, x, use_causal_mask=True))
    x = layers.LayerNormalization()(x + layers.Dense(16)(layers.Dense(32, activation="gelu")(x)))
    return keras.Model(words, layers.Dense(20, activation="softmax")(layers.GlobalAveragePooling1D()(x)))


def images() -> Any:
    image = keras.Input((12, 12, 3))
    x = layers.PReLU()(layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same", strides=2)(image)))
    x = layers.Conv2DTranspose(4, 3, strides=2, padding="same")(
        layers.SeparableConv2D(8, 3, padding="same")(x)
    )
    x = layers.Cropping2D(1)(layers.ZeroPadding2D(1)(layers.UpSampling2D(2, interpolation="bilinear")(x)))
    x = layers.GroupNormalization(2)(layers.AveragePooling2D(2)(x))
    x = layers.Conv2D(6, 3, dilation_rate=2, padding="same", groups=2)(x)
    x = layers.Reshape((6, 144))(layers.Permute((3, 1, 2))(x))
    x = layers.Conv1D(4, 3, padding="causal", activation="swish")(x)
    return keras.Model(
        image, layers.RepeatVector(2)(layers.Flatten()(layers.TimeDistributed(layers.Dense(5))(x)))
    )


MODELS: dict[str, Callable[[], Any]] = {
    "lstm": lstm,
    "recurrent": recurrent,
    "masked": masked,
    "transformer": transformer,
    "images": images,
}


def inputs_of(model: Any, batch: int) -> list[np.ndarray]:
    random = np.random.default_rng(2)
    return [
        random.integers(0, 9, a.shape).astype(a.dtype) if a.dtype.kind == "i" else a
        for a in feeds(model, batch)
    ]


def check(found: list[np.ndarray], expected: Any) -> None:
    theirs = expected.numpy()
    assert theirs.std() > 1e-3, "the model's output says nothing"
    np.testing.assert_allclose(found[0], theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_keras_model_frozen(name: str, tmp_path: Path) -> None:
    model = randomised(MODELS[name]())
    arrays = inputs_of(model, 2)
    freeze_keras(model, tmp_path / "model.pb", batch=None)
    shapes = {t.name: a.shape for t, a in zip(model.inputs, arrays, strict=True)}
    parsed = parse_model(tmp_path / "model.pb", input_shapes=shapes)
    check(ge.compile(parsed.graph).run(arrays), model(arrays[0]))
    assert parsed.warnings == ()


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_keras_model_exported(name: str, tmp_path: Path) -> None:
    model = randomised(MODELS[name]())
    arrays = inputs_of(model, 1)
    parsed = parse_model(export(model, tmp_path / "saved"))
    check(ge.compile(parsed.graph).run(arrays), model(arrays[0]))
    assert "batch size" in parsed.warnings[0]


def test_mobilenet() -> None:
    model = randomised(
        keras.applications.MobileNetV2(weights=None, alpha=0.35, input_shape=(32, 32, 3), classes=10)
    )
    arrays = inputs_of(model, 1)
    check(ge.compile(parse(freeze_keras(model))).run(arrays), model(arrays[0]))


def test_unrolled_and_stateful_recurrence_agree_with_the_loop() -> None:
    x = np.random.default_rng(0).standard_normal((1, 5, 3)).astype(np.float32)
    looped = keras.Sequential([keras.Input((5, 3)), layers.LSTM(4)])
    unrolled = keras.Sequential([keras.Input((5, 3)), layers.LSTM(4, unroll=True)])
    unrolled.set_weights(looped.get_weights())
    graphs = [parse(freeze_keras(m)) for m in (looped, unrolled)]
    first, second = (ge.compile(g).run([x])[0] for g in graphs)
    np.testing.assert_allclose(first, second, rtol=1e-5)


def test_all_unmapped_operators_are_reported_at_once() -> None:
    def function(x: Any) -> Any:
        text = tf.strings.as_string(x)
        values, vectors = tf.linalg.eigh(x * tf.eye(4))
        return tf.strings.length(text), tf.strings.length(text + "!"), values, vectors

    with pytest.raises(UnsupportedOperatorsError) as caught:
        parse_function(concrete(function, [np.ones(4, np.float32)]))
    found = {item.operator: item for item in caught.value.items}
    assert {"AsString", "StringLength", "SelfAdjointEigV2"} <= set(found)
    assert found["StringLength"].count == 2
    assert found["StringLength"].nodes
    assert "process text on the host" in found["StringLength"].remedy


def test_all_unsupported_uses_are_reported_at_once() -> None:
    def function(x: Any, k: Any) -> Any:
        return tf.reshape(x, [k, -1]), tf.tile(x, [k]), tf.sqrt(x)

    with pytest.raises(UnsupportedOperatorsError) as caught:
        parse_function(concrete(function, [np.ones(4, np.float32), np.int32(2)]))
    found = {item.operator: item for item in caught.value.items}
    assert set(found) == {"Reshape", "Tile"}
    assert "decides a shape" in found["Tile"].reason
    assert found["Tile"].nodes == ("Tile",)
