"""Exports a model or function to the same file that `atc` writes.

tf_adapter.export(model, "resnet50.om", tf.TensorSpec([1, 224, 224, 3]))
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from ge.errors import GeError
from ge.offline import Request, compile_model
from tf_adapter.options import options

__all__ = ["export"]

Signature = Any
"""A tf.TensorSpec, a sequence of them, or a mapping of names to them."""


def export(model: Any, path: str | Path, signature: Signature | None = None) -> Path:
    """Compile a Keras model or a function for inference and write it as an `.om` file; returns its path.

    signature: descriptions of the inputs, one, in order or by name; without it, those of the model. An open
    batch size becomes 1, other open dimensions are an error. What cannot be compiled raises
    tf.errors.UnimplementedError naming every operator at fault.

    >>> tf_adapter.export(model, "m.om", tf.TensorSpec([1, 224, 224, 3]))     # doctest: +SKIP
    """
    concrete = _concrete(model, signature)
    target = Path(path)
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / (target.stem or "model")
        _save(concrete, saved)
        request = Request(saved, target, given=options.given())
        try:
            return compile_model(request).path
        except GeError as error:
            kind = tf.errors.UnimplementedError if error.code == "E10501" else tf.errors.InvalidArgumentError
            raise kind(None, None, str(error)) from error


def _concrete(model: Any, signature: Signature | None) -> Any:
    if hasattr(model, "captured_inputs") and signature is None:
        return model
    specs = _specs(model, signature)
    if isinstance(model, tf.keras.Model):
        return _of_keras(model, specs)
    function = model if hasattr(model, "get_concrete_function") else tf.function(model)
    if specs is None:
        return function.get_concrete_function()
    return function.get_concrete_function(*specs)


def _specs(model: Any, signature: Signature | None) -> list[tf.TensorSpec] | None:
    """The inputs in order, each with a name."""
    if signature is None:
        if not isinstance(model, tf.keras.Model):
            return None
        given = {_plain(t.name): tf.TensorSpec(t.shape, t.dtype) for t in model.inputs}
    elif isinstance(signature, Mapping):
        given = dict(signature)
    else:
        listed = [signature] if isinstance(signature, tf.TensorSpec) else list(signature)
        given = {spec.name or f"input_{i}": spec for i, spec in enumerate(listed)}
    return [tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in given.items()]


def _plain(name: str) -> str:
    return name.split(":")[0].replace("/", "_")


def _of_keras(model: Any, specs: Sequence[tf.TensorSpec] | None) -> Any:
    def call(*tensors: Any) -> Any:
        return model(tensors[0] if len(tensors) == 1 else list(tensors), training=False)

    return tf.function(call, autograph=False).get_concrete_function(*(specs or ()))


def _save(concrete: Any, folder: Path) -> None:
    """A SavedModel of one function and the variables it reads."""
    module = tf.Module()
    module.read = list(concrete.graph.variables)
    with tf.device("/CPU:0"):
        tf.saved_model.save(module, str(folder), signatures=concrete)
