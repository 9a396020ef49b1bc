"""Simple convnet on images of the size of MNIST, with random digits."""

import keras
import numpy as np
from keras import layers

rng = np.random.default_rng(0)
x_train = rng.random((256, 28, 28, 1), dtype="float32")
y_train = keras.utils.to_categorical(rng.integers(0, 10, 256), 10)

model = keras.Sequential(
    [
        keras.Input(shape=(28, 28, 1)),
        layers.Conv2D(16, kernel_size=(3, 3), activation="relu"),
        layers.MaxPooling2D(pool_size=(2, 2)),
        layers.Conv2D(32, kernel_size=(3, 3), activation="relu"),
        layers.MaxPooling2D(pool_size=(2, 2)),
        layers.Flatten(),
        layers.Dropout(0.5),
        layers.Dense(10, activation="softmax"),
    ]
)
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=16, epochs=1, validation_split=0.1, verbose=0)
print("Test loss:", model.evaluate(x_train[:32], y_train[:32], verbose=0)[0])
