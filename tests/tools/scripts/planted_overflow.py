"""A ported script: force_fp16, detection of overflows, and, where one is given, a mixlist. One layer overflows."""

import sys

import numpy as np
import tensorflow as tf

import npu_device

options = npu_device.global_options()
options.precision_mode = "force_fp16"
options.dump_config.enable_dump_debug = True
if len(sys.argv) > 1:
    options.modify_mixlist = sys.argv[1]
npu_device.open().as_default()

rng = np.random.default_rng(0)
first = tf.Variable(rng.standard_normal((16, 32)).astype("float32"))
huge = tf.Variable(3e4 * rng.standard_normal((32, 32)).astype("float32"))
last = tf.Variable(1e-5 * rng.standard_normal((32, 4)).astype("float32"))


@tf.function
def predict(x):
    x = tf.nn.relu(tf.matmul(x, first))
    x = tf.matmul(x, huge)  # overflows in fp16
    return tf.matmul(x, last)


batch = tf.constant(rng.standard_normal((8, 16)).astype("float32"))
for _ in range(20):
    result = predict(batch)
print("finite:", bool(np.isfinite(result.numpy()).all()))
