"""Text classification with a convolution over word vectors, as for reviews of films."""

import keras
import numpy as np
from keras import layers

max_features, embedding_dim, length = 500, 16, 40
rng = np.random.default_rng(2)
words = rng.integers(1, max_features, (256, length)).astype("int64")
labels = (words[:, 0] > max_features // 2).astype("float32")

inputs = keras.Input(shape=(None,), dtype="int64")
x = layers.Embedding(max_features, embedding_dim)(inputs)
x = layers.Dropout(0.5)(x)
x = layers.Conv1D(32, 7, padding="valid", activation="relu", strides=3)(x)
x = layers.GlobalMaxPooling1D()(x)
x = layers.Dense(32, activation="relu")(x)
predictions = layers.Dense(1, activation="sigmoid", name="predictions")(x)
model = keras.Model(inputs, predictions)
model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(words, labels, batch_size=16, epochs=1, verbose=0)
