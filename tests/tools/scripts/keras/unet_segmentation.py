"""Image segmentation with a small U-Net of separable convolutions and batch normalisation."""

import keras
import numpy as np
from keras import layers

rng = np.random.default_rng(8)
images = rng.random((128, 32, 32, 3), dtype="float32")
masks = (images.sum(-1, keepdims=True) > 1.5).astype("uint8")


def get_model(size, num_classes):
    inputs = keras.Input(shape=(*size, 3))
    x = layers.Conv2D(8, 3, strides=2, padding="same")(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.Activation("relu")(x)
    previous = x
    for filters in (16, 24):
        x = layers.SeparableConv2D(filters, 3, padding="same")(x)
        x = layers.BatchNormalization()(x)
        x = layers.Activation("relu")(x)
        x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
        residual = layers.Conv2D(filters, 1, strides=2, padding="same")(previous)
        x = layers.add([x, residual])
        previous = x
    for filters in (24, 16, 8):
        x = layers.Conv2DTranspose(filters, 3, padding="same")(x)
        x = layers.BatchNormalization()(x)
        x = layers.UpSampling2D(2)(layers.Activation("relu")(x))
        residual = layers.Conv2D(filters, 1, padding="same")(layers.UpSampling2D(2)(previous))
        x = layers.add([x, residual])
        previous = x
    outputs = layers.Conv2D(num_classes, 3, activation="softmax", padding="same")(x)
    return keras.Model(inputs, outputs)


model = get_model((32, 32), 2)
model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="sparse_categorical_crossentropy")
model.fit(images, masks, epochs=1, batch_size=8, verbose=0)
