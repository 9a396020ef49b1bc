"""What is made of tf.where's positions: shapes and element types are TensorFlow's, however many there are."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_adapter")

USES = {
    "squeezed": lambda x: tf.squeeze(tf.where(x)),
    "squeezed along an axis": lambda x: tf.squeeze(tf.where(x), axis=-1),
    "of two axes, squeezed": lambda x: tf.squeeze(tf.where(tf.stack([x, x]))),
    "a vector": lambda x: tf.reshape(tf.where(x), [-1]),
    "a row": lambda x: tf.reshape(tf.where(x), [1, -1]),
    "a column": lambda x: tf.reshape(tf.where(x), [-1, 1]),
    "of two axes, a vector": lambda x: tf.reshape(tf.where(tf.stack([x, x])), [-1]),
    "cast": lambda x: tf.cast(tf.where(x), tf.int32),
    "of two axes, cast": lambda x: tf.cast(tf.where(tf.stack([x, x])), tf.float32),
    "cast, then a vector": lambda x: tf.reshape(tf.cast(tf.where(x), tf.float16), [-1]),
    "cast twice": lambda x: tf.cast(tf.cast(tf.where(x), tf.int8), tf.float32),
    "a column cast": lambda x: tf.cast(tf.where(x)[:, 0], tf.int32),
    "indices, squeezed": lambda x: tf.gather(2 * x, tf.squeeze(tf.where(x))),
    "indices, cast": lambda x: tf.gather(2 * x, tf.cast(tf.squeeze(tf.where(x), 1), tf.int32)),
    "indices of rows": lambda x: tf.gather_nd(tf.stack([x, x], 1), tf.where(x)),
}


@pytest.mark.parametrize("use", USES)
def test_results_are_those_of_tensorflow(use: str) -> None:
    function = tf.function(USES[use])
    for numbers in ([1.0], [0.0], [0.0, 3.0], [1.0, 0.0, 2.0]):
        x = tf.constant(numbers)
        with tf.device("/CPU:0"):
            wanted = USES[use](x)
        with tf.device("/NPU:0"):
            found = function(x)
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), numbers
        np.testing.assert_array_equal(found.numpy(), wanted.numpy())
