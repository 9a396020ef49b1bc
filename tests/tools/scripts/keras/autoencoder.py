"""Convolutional autoencoder that removes noise from images."""

import keras
import numpy as np
from keras import layers

rng = np.random.default_rng(1)
images = rng.random((256, 16, 16, 1), dtype="float32")
noisy = np.clip(images + 0.4 * rng.standard_normal(images.shape).astype("float32"), 0.0, 1.0)

inputs = layers.Input(shape=(16, 16, 1))
x = layers.Conv2D(8, (3, 3), activation="relu", padding="same")(inputs)
x = layers.MaxPooling2D((2, 2), padding="same")(x)
x = layers.Conv2D(8, (3, 3), activation="relu", padding="same")(x)
x = layers.MaxPooling2D((2, 2), padding="same")(x)
x = layers.Conv2DTranspose(8, (3, 3), strides=2, activation="relu", padding="same")(x)
x = layers.Conv2DTranspose(8, (3, 3), strides=2, activation="relu", padding="same")(x)
x = layers.Conv2D(1, (3, 3), activation="sigmoid", padding="same")(x)
autoencoder = keras.Model(inputs, x)
autoencoder.compile(optimizer="adam", loss="binary_crossentropy")
autoencoder.fit(noisy, images, epochs=1, batch_size=16, shuffle=True, verbose=0)
print(autoencoder.predict(noisy[:8], verbose=0).shape)
