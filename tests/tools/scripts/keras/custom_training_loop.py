"""A training loop from scratch: datasets, tf.function, metrics, a learning-rate schedule."""

import keras
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(9)
x_train = rng.standard_normal((512, 20)).astype("float32")
y_train = (x_train[:, :3].argmax(1)).astype("int64")
train_dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(512, seed=1).batch(16)

inputs = keras.Input(shape=(20,), name="digits")
x = keras.layers.Dense(32, activation="relu", name="dense_1")(inputs)
x = keras.layers.Dense(32, activation="relu", name="dense_2")(x)
model = keras.Model(inputs, keras.layers.Dense(3, name="predictions")(x))
schedule = keras.optimizers.schedules.ExponentialDecay(1e-2, decay_steps=10, decay_rate=0.9)
optimizer = keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
accuracy = keras.metrics.SparseCategoricalAccuracy()


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = loss_fn(y, logits)
    grads = tape.gradient(loss, model.trainable_weights)
    optimizer.apply(grads, model.trainable_weights)
    accuracy.update_state(y, logits)
    return loss


for _epoch in range(2):
    for x_batch, y_batch in train_dataset:
        train_step(x_batch, y_batch)
    print("accuracy", float(accuracy.result()))
    accuracy.reset_state()
