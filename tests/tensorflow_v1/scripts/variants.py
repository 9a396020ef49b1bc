"""Lists of tensors and optional values with host operations among their makers and readers."""

import json

import numpy as np

from npu_bridge.npu_init import *

data = np.arange(4, dtype="f").reshape(1, 2, 2)
results = {}
for name, shape in (("known", [2, 2]), ("unknown", [None, None])):
    x = tf.placeholder(tf.float32, shape)
    m = tf.matmul(x, x)
    made = tf.raw_ops.TensorListFromTensor(tensor=m, element_shape=[2])
    with tf.control_dependencies([tf.py_func(lambda a: None, [m], [])]):
        later = tf.identity(made)
    stacked = tf.raw_ops.TensorListStack(input_handle=later, element_shape=[2], element_dtype=tf.float32) * 2
    iterator = tf.data.make_initializable_iterator(tf.data.Dataset.from_tensor_slices(data))
    read = tf.matmul(tf.data.experimental.get_next_as_optional(iterator).get_value(), x) + 1
    with tf.Session() as session:
        session.run(iterator.initializer)
        found = session.run([stacked, read], {x: np.eye(2) * 2})
        results[name] = [v.ravel().tolist() for v in found]
print(json.dumps(results))
