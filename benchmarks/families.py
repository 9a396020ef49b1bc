"""The keras.applications families, with random weights that pass on rounding errors as a trained network's do.

Needs TensorFlow alone (2.15 with Keras 2 or newer with Keras 3), so that both environments can use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["FAMILIES", "Family", "freeze_model", "save_model"]

CLASSES = 100
BYTES = (0, 255)  # families that scale pixels themselves


@dataclass(frozen=True)
class Family:
    """One architecture: image sizes at full and at small scale, what makes it small, pixel range."""

    name: str
    image: int
    small_image: int
    shrink: Mapping[str, Any] = field(default_factory=dict)
    pixels: tuple[float, float] = (-1, 1)

    def build(self, small: bool) -> Any:
        """A Keras model without its final softmax, the same at every call."""
        import keras

        keras.utils.set_random_seed(7)
        model = self._raw(small)
        _settle(model, self.inputs(small, batch=32 if small else 8, seed=1))
        return model

    def build_bf16(self, model: Any, small: bool) -> Any:
        """The same model under Keras's mixed_bfloat16 policy."""
        import keras

        keras.config.set_dtype_policy("mixed_bfloat16")
        try:
            lowered = self._raw(small)
        finally:
            keras.config.set_dtype_policy("float32")
        lowered.set_weights(model.get_weights())
        return lowered

    def _raw(self, small: bool) -> Any:
        import keras

        size = self.small_image if small else self.image
        return getattr(keras.applications, self.name)(
            weights=None,
            input_shape=(size, size, 3),
            classes=CLASSES,
            classifier_activation=None,
            **(self.shrink if small else {}),
        )

    def inputs(self, small: bool, batch: int = 1, seed: int = 0) -> np.ndarray:
        """Random images in the pixel range the family takes, channels last."""
        low, high = self.pixels
        images = _images(batch, self.small_image if small else self.image, np.random.default_rng(seed))
        return (low + (images + 1) / 2 * (high - low)).astype(np.float32)


def _images(count: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Random images from -1 to 1 with what photographs have in common: amplitudes fall with frequency, colours go
    together."""
    rows = np.fft.fftfreq(size)
    frequency = np.hypot(rows[:, None], rows[None])
    frequency[0, 0] = 1 / size
    noise = np.fft.fft2(rng.standard_normal((count, size, size, 4)), axes=(1, 2))
    layers = np.fft.ifft2(noise / frequency[:, :, None], axes=(1, 2)).real
    layers /= layers.std(axis=(1, 2), keepdims=True)
    return np.clip((layers[..., :1] + 0.4 * layers[..., 1:]) / 3, -1, 1)


def _settle(model: Any, batch: np.ndarray) -> None:
    """Give batch normalisations the statistics of a batch and layer scales a visible size.

    What goes into an activation is shifted so that most of it passes, what is added without one is small: a deep
    network of random weights whose activations are centred doubles any rounding error every few layers, which a
    trained one does not.
    """
    norms = []
    for layer in model.layers:
        kind = type(layer).__name__
        if kind == "BatchNormalization":
            norms.append((layer, layer.momentum))
            layer.momentum = 0.0
            shift, scale = (0.0, 0.25) if _linear(layer) else (1.0, 1.0)
            if layer.center:
                layer.beta.assign(np.full(layer.beta.shape, shift, np.float32))
            if layer.scale:
                layer.gamma.assign(np.full(layer.gamma.shape, scale, np.float32))
        elif kind == "LayerScale":
            layer.set_weights([np.full_like(w, 0.1) for w in layer.get_weights()])
    if norms:
        model(batch, training=True)
    for layer, momentum in norms:
        layer.momentum = momentum


def _linear(layer: Any) -> bool:
    """Whether a layer's output reaches the next convolution without an activation."""
    readers = [getattr(node, "operation", None) or node.layer for node in layer._outbound_nodes]
    kinds = {type(reader).__name__ for reader in readers}
    if kinds & {"Add", "Dropout"}:
        return any(_linear(reader) for reader in readers)
    return "Conv2D" in kinds


FAMILIES = (
    Family("ResNet50", 224, 64),
    Family("MobileNet", 224, 64, {"alpha": 0.5}),
    Family("MobileNetV2", 224, 64, {"alpha": 0.5}),
    Family("MobileNetV3Small", 224, 64, pixels=BYTES),
    Family("EfficientNetB0", 224, 64, pixels=BYTES),
    Family("EfficientNetV2B0", 224, 64, pixels=BYTES),
    Family("DenseNet121", 224, 64),
    Family("InceptionV3", 299, 96),
    Family("Xception", 299, 96),
    Family("VGG16", 224, 64),
    Family("NASNetMobile", 224, 64),
    Family("ConvNeXtTiny", 224, 64, pixels=BYTES),
)


def freeze_model(model: Any, x: np.ndarray, path: Path) -> Path:
    """Write a Keras model as a frozen graph with input `x` and output `y`."""
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    function = tf.function(lambda x: tf.identity(model(x, training=False), name="y"))
    concrete = function.get_concrete_function(tf.TensorSpec(x.shape, x.dtype, name="x"))
    graph = convert_variables_to_constants_v2(concrete).graph.as_graph_def()
    path.write_bytes(graph.SerializeToString())
    return path


def save_model(model: Any, x: np.ndarray, path: Path) -> Path:
    """Write a Keras model as a SavedModel with one signature of static shape."""
    import tensorflow as tf

    holder = tf.Module()
    holder.model = model
    spec = tf.TensorSpec(x.shape, x.dtype, name="x")
    holder.serve = tf.function(lambda x: {"y": model(x, training=False)}, input_signature=[spec])
    tf.saved_model.save(holder, str(path), signatures={"serving_default": holder.serve})
    return path
