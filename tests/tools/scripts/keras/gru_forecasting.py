"""Time series: a GRU reads windows of measurements and forecasts the next value."""

import keras
import numpy as np

t = np.arange(600, dtype="float32")
series = np.sin(0.1 * t) + 0.1 * np.random.default_rng(4).standard_normal(600).astype("float32")
windows = keras.utils.timeseries_dataset_from_array(
    series[:-24, None], targets=series[24:, None], sequence_length=24, batch_size=16, shuffle=False
)

model = keras.Sequential([keras.Input((24, 1)), keras.layers.GRU(16), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
model.fit(windows, epochs=1, verbose=0)
for x, y in windows.take(1):
    print(model.predict(x, verbose=0).shape, y.shape)
