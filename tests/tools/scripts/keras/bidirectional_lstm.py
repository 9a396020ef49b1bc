"""Two bidirectional LSTMs that classify reviews."""

import keras
import numpy as np
from keras import layers

max_features, maxlen = 300, 20
rng = np.random.default_rng(3)
x_train = rng.integers(1, max_features, (192, maxlen)).astype("int32")
y_train = rng.integers(0, 2, 192).astype("float32")

inputs = keras.Input(shape=(maxlen,), dtype="int32")
x = layers.Embedding(max_features, 16)(inputs)
x = layers.Bidirectional(layers.LSTM(12, return_sequences=True))(x)
x = layers.Bidirectional(layers.LSTM(12))(x)
outputs = layers.Dense(1, activation="sigmoid")(x)
model = keras.Model(inputs, outputs)
model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=16, epochs=1, verbose=0)
