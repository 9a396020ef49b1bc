"""A training loop of its own with the names for several workers and a loss scale."""

import numpy as np
import tensorflow as tf

import npu_device

npu_device.global_options().precision_mode = "allow_mix_precision"
npu_device.global_options().hcom_parallel = True
npu_device.global_options().is_tailing_optimization = True
npu_device.open().as_default()
npu_device.set_npu_loop_size(5)

tf.keras.utils.set_random_seed(1)
x = np.random.default_rng(0).standard_normal((256, 6)).astype("float32")
y = x @ np.float32([[1.0], [2.0], [0.0], [-1.0], [0.5], [0.0]])
dataset = tf.data.Dataset.from_tensor_slices((x, y))
dataset, batch_size = npu_device.distribute.shard_and_rebatch_dataset(dataset, 64)
dataset = dataset.batch(batch_size, drop_remainder=True)
model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(1)])
npu_device.distribute.broadcast(model.trainable_variables, root_rank=0)
optimizer = npu_device.distribute.npu_distributed_keras_optimizer_wrapper(tf.keras.optimizers.SGD(0.1))
optimizer = npu_device.train.optimizer.NpuLossScaleOptimizer(optimizer)


@tf.function
def train_step(images, labels):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(images, training=True) - labels))
        scaled = optimizer.get_scaled_loss(loss)
    gradients = tape.gradient(scaled, model.trainable_variables)
    gradients = optimizer.get_unscaled_gradients(gradients)
    gradients = npu_device.distribute.all_reduce(gradients, "mean")
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


losses = [float(train_step(*batch)) for _ in range(12) for batch in dataset]
assert losses[-1] < 0.05 * losses[0], losses
print("final loss", losses[-1])
