"""A session of TensorFlow 1 inside a script for TensorFlow 2."""

import numpy as np

import npu_device
from npu_device.compat.v1.npu_init import *

npu_device.compat.enable_v1()
tf.compat.v1.disable_eager_execution()

a = tf.placeholder(tf.float32, [2, 3])
b = tf.nn.softmax(tf.matmul(a, tf.constant(np.ones([3, 4], np.float32))) * 0.5)
config = tf.compat.v1.ConfigProto()
custom_op = config.graph_options.rewrite_options.custom_optimizers.add()
custom_op.name = "NpuOptimizer"
custom_op.parameter_map["use_off_line"].b = True
custom_op.parameter_map["precision_mode"].s = tf.compat.as_bytes("must_keep_origin_dtype")
config.graph_options.rewrite_options.remapping = RewriterConfig.OFF
with tf.Session(config=config) as sess:
    found = sess.run(b, {a: np.ones([2, 3], np.float32)})
np.testing.assert_allclose(found, np.full([2, 4], 0.25), rtol=1e-6)
print("session", found.shape)
