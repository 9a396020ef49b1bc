"""The walk of a Keras call in docs/architecture.md."""

from __future__ import annotations

import tensorflow as tf

from tests.support.walks import Entered, check_walk


def test_a_function_of_a_keras_model() -> None:
    model = tf.keras.Sequential([tf.keras.layers.Input((8, 8, 3)), tf.keras.layers.Conv2D(4, 3)])
    function = tf.function(model)
    with Entered() as entered:
        function(tf.ones([1, 8, 8, 3]))
    check_walk("A Keras ResNet50 call", entered)
