"""Keras models for measurements, with either Keras: networks of keras.applications, and transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = ["MODELS", "KerasModel"]

layers = tf.keras.layers


@dataclass(frozen=True)
class KerasModel:
    """A model at two sizes: how it is made and what it is fed."""

    kind: str  # "cnn" or "transformer"
    build: Callable[[bool], Any]
    feed: Callable[[int, bool], np.ndarray]


def _image(size: int, small: int) -> Callable[[int, bool], np.ndarray]:
    def feed(batch: int, quick: bool) -> np.ndarray:
        side = small if quick else size
        return np.random.default_rng(0).standard_normal((batch, side, side, 3)).astype(np.float32)

    return feed


def _application(name: str) -> Callable[[bool], Any]:
    def build(quick: bool) -> Any:
        side = 64 if quick else 224
        maker = getattr(tf.keras.applications, name)
        # Probabilities of an untrained network are all alike: logits tell more.
        classes = {"classes": 10 if quick else 1000, "classifier_activation": None}
        return maker(weights=None, input_shape=(side, side, 3), **classes)

    return build


def _encoder(x: Any, width: int, heads: int, pre_norm: bool) -> Any:
    """Attention and a perceptron with residuals."""
    y = layers.LayerNormalization(epsilon=1e-6)(x) if pre_norm else x
    y = layers.MultiHeadAttention(heads, width // heads)(y, y)
    x = layers.Add()([x, y])
    x = x if pre_norm else layers.LayerNormalization(epsilon=1e-6)(x)
    y = layers.LayerNormalization(epsilon=1e-6)(x) if pre_norm else x
    y = layers.Dense(width)(layers.Dense(4 * width, activation="gelu")(y))
    x = layers.Add()([x, y])
    return x if pre_norm else layers.LayerNormalization(epsilon=1e-6)(x)


def _bert(quick: bool) -> Any:
    depth, width, heads, words, length = (2, 64, 2, 100, 16) if quick else (12, 768, 12, 30522, 128)
    tokens = layers.Input((length,), dtype="int32")
    x = layers.Embedding(words, width)(tokens)
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    for _ in range(depth):
        x = _encoder(x, width, heads, pre_norm=False)
    return tf.keras.Model(tokens, layers.Dense(width, activation="tanh")(x[:, 0]))


def _vit(quick: bool) -> Any:
    depth, width, heads, side, patch = (2, 48, 2, 32, 8) if quick else (12, 384, 6, 224, 16)
    images = layers.Input((side, side, 3))
    x = layers.Conv2D(width, patch, strides=patch)(images)
    x = layers.Reshape(((side // patch) ** 2, width))(x)
    for _ in range(depth):
        x = _encoder(x, width, heads, pre_norm=True)
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization(epsilon=1e-6)(x))
    return tf.keras.Model(images, layers.Dense(10 if quick else 1000)(x))


def _tokens(batch: int, quick: bool) -> np.ndarray:
    words, length = (100, 16) if quick else (30522, 128)
    return np.random.default_rng(0).integers(0, words, (batch, length)).astype(np.int32)


MODELS = {
    "ResNet50": KerasModel("cnn", _application("ResNet50"), _image(224, 64)),
    "MobileNetV2": KerasModel("cnn", _application("MobileNetV2"), _image(224, 64)),
    "EfficientNetB0": KerasModel("cnn", _application("EfficientNetB0"), _image(224, 64)),
    "DenseNet121": KerasModel("cnn", _application("DenseNet121"), _image(224, 64)),
    "BERT": KerasModel("transformer", _bert, _tokens),
    "ViT": KerasModel("transformer", _vit, _image(224, 32)),
}
