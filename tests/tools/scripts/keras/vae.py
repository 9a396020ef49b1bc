"""Variational autoencoder with a sampling layer and a train_step of its own."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers


class Sampling(layers.Layer):
    """Uses (z_mean, z_log_var) to sample z, the vector that encodes a digit."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(7)

    def call(self, inputs):
        mean, log_var = inputs
        epsilon = keras.random.normal(shape=tf.shape(mean), seed=self.seeds)
        return mean + tf.exp(0.5 * log_var) * epsilon


encoder_inputs = keras.Input(shape=(16, 16, 1))
x = layers.Conv2D(8, 3, activation="relu", strides=2, padding="same")(encoder_inputs)
x = layers.Flatten()(x)
x = layers.Dense(16, activation="relu")(x)
z_mean = layers.Dense(2, name="z_mean")(x)
z_log_var = layers.Dense(2, name="z_log_var")(x)
encoder = keras.Model(encoder_inputs, [z_mean, z_log_var, Sampling()([z_mean, z_log_var])])
latent_inputs = keras.Input(shape=(2,))
x = layers.Dense(8 * 8 * 8, activation="relu")(latent_inputs)
x = layers.Reshape((8, 8, 8))(x)
decoder = keras.Model(
    latent_inputs, layers.Conv2DTranspose(1, 3, strides=2, activation="sigmoid", padding="same")(x)
)


class VAE(keras.Model):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.total_loss_tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.total_loss_tracker]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            z_mean, z_log_var, z = self.encoder(data)
            pixels = keras.losses.binary_crossentropy(data, self.decoder(z))
            reconstruction = tf.reduce_mean(tf.reduce_sum(pixels, axis=(1, 2)))
            kl = -0.5 * (1 + z_log_var - tf.square(z_mean) - tf.exp(z_log_var))
            total = reconstruction + tf.reduce_mean(tf.reduce_sum(kl, axis=1))
        grads = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights))
        self.total_loss_tracker.update_state(total)
        return {"loss": self.total_loss_tracker.result()}


digits = np.random.default_rng(6).random((256, 16, 16, 1), dtype="float32")
vae = VAE(encoder, decoder)
vae.compile(optimizer=keras.optimizers.Adam())
vae.fit(digits, epochs=1, batch_size=16, verbose=0)
