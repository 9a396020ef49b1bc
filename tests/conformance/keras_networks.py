"""Networks for exporters of Keras models: the layers of common architectures, small."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

__all__ = ["ALL"]

L = tf.keras.layers
IMAGE = (2, 16, 16, 3)


def _functional(shape: tuple[int, ...], body: Callable[[Any], Any]) -> Callable[[], Any]:
    def make() -> Any:
        tf.keras.utils.set_random_seed(0)
        x = tf.keras.Input(shape[1:])
        return tf.keras.Model(x, body(x))

    return make


def _residual(x: Any) -> Any:
    x = L.Conv2D(8, 3, 2, "same")(x)
    y = L.ReLU()(L.BatchNormalization()(L.Conv2D(8, 3, padding="same")(x)))
    return L.Dense(5, "softmax")(L.GlobalAveragePooling2D()(L.Add()([x, L.Conv2D(8, 3, padding="same")(y)])))


def _inverted(x: Any) -> Any:
    y = L.Activation("swish")(L.Conv2D(12, 1)(x))
    y = L.DepthwiseConv2D(3, 2, "same")(L.ZeroPadding2D(1)(y))
    gate = L.Conv2D(12, 1, activation="sigmoid")(L.GlobalAveragePooling2D(keepdims=True)(y))
    return L.Dense(4)(L.Flatten()(L.AveragePooling2D(3)(L.Multiply()([y, gate]))))


def _dense_blocks(x: Any) -> Any:
    for _ in range(2):
        x = L.Concatenate()([x, L.Conv2D(4, 3, padding="same", activation="elu")(x)])
    return L.Dense(4)(L.GlobalMaxPooling2D()(L.MaxPooling2D(3, 2, "same")(x)))


def _segmentation(x: Any) -> Any:
    down = L.LeakyReLU()(L.Conv2D(6, 3, 2, "same")(x))
    up = L.Concatenate()(
        [L.Conv2DTranspose(6, 3, 2, "same")(down), L.UpSampling2D(interpolation="bilinear")(down)]
    )
    return L.SeparableConv2D(2, 3, padding="same", activation="sigmoid")(L.Cropping2D(1)(up))


def _attention(x: Any) -> Any:
    y = L.LayerNormalization()(x)
    x = x + L.MultiHeadAttention(2, 4)(y, y, use_causal_mask=True)
    return L.Dense(3)(L.Dense(16, "silu")(L.UnitNormalization()(x)))


ALL: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "keras dense": (_functional((2, 7), lambda x: L.Dense(3, "tanh")(L.Dense(9, "selu")(x))), (2, 7)),
    "keras residual": (_functional(IMAGE, _residual), IMAGE),
    "keras inverted": (_functional(IMAGE, _inverted), IMAGE),
    "keras dense blocks": (_functional(IMAGE, _dense_blocks), IMAGE),
    "keras segmentation": (_functional(IMAGE, _segmentation), IMAGE),
    "keras attention": (_functional((2, 6, 8), _attention), (2, 6, 8)),
    "keras lstm": (
        _functional((2, 6, 5), lambda x: L.Dense(2)(L.LSTM(4)(L.LSTM(4, return_sequences=True)(x)))),
        (2, 6, 5),
    ),
    "keras gru": (
        _functional((2, 6, 5), lambda x: L.Bidirectional(L.GRU(4, return_sequences=True))(x)),
        (2, 6, 5),
    ),
    "keras time": (
        _functional(
            (2, 12, 3),
            lambda x: L.GlobalAveragePooling1D()(L.Conv1D(4, 3, padding="causal", dilation_rate=2)(x)),
        ),
        (2, 12, 3),
    ),
    "keras volumes": (
        _functional((2, 6, 6, 6, 2), lambda x: L.MaxPooling3D()(L.Conv3D(3, 3, activation="relu")(x))),
        (2, 6, 6, 6, 2),
    ),
    "keras recurrent images": (
        _functional((2, 3, 6, 6, 2), lambda x: L.ConvLSTM2D(3, 3)(x)),
        (2, 3, 6, 6, 2),
    ),
    "keras norms": (
        _functional(IMAGE, lambda x: L.GroupNormalization(3)(L.Conv2D(6, 3)(L.Rescaling(2.0, 1.0)(x)))),
        IMAGE,
    ),
}
