"""Writes the models of the zoo as the files people have: ONNX, frozen TensorFlow graphs, quantised ONNX.

Files are kept in `build/models` under a name that holds a digest of what they were made from.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.models.port import KerasPort
from benchmarks.models.zoo import ZooModel

__all__ = [
    "cached",
    "channels_last",
    "freeze",
    "frozen_file",
    "keras_model",
    "onnx_file",
    "quantised_file",
    "write_frozen",
    "write_onnx",
]

CACHE = Path(__file__).resolve().parents[2] / "build" / "models"


@functools.cache
def _digest() -> str:
    """Changes when any builder or PyTorch changes."""
    digest = hashlib.sha256(torch.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:10]


def cached(name: str, write: Callable[[Path], None]) -> Path:
    """The file of that name, written on first need (atomically: no half-written file is ever found)."""
    stem, suffix = os.path.splitext(name)
    path = CACHE / f"{stem}-{_digest()}{suffix}"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            partial = Path(folder) / f"partial{suffix}"
            write(partial)
            partial.replace(path)
    return path


def write_onnx(module: nn.Module, inputs: Sequence[np.ndarray], names: Sequence[str], path: Path) -> None:
    """Export a module with static shapes."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            tuple(map(torch.from_numpy, inputs)),
            path,
            dynamo=True,
            verbose=False,
            external_data=False,
            input_names=list(names),
            output_names=["y"],
        )


def onnx_file(model: ZooModel, batch: int, module: nn.Module | None = None) -> Path:
    """The model as an ONNX file with static shapes."""

    def write(path: Path) -> None:
        write_onnx(module or model.module(), model.inputs(batch), model.input_names, path)

    return cached(f"{_slug(model)}-b{batch}.onnx", write)


def channels_last(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """PyTorch-layout inputs as TensorFlow takes them: images channels last."""
    return [np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if x.ndim == 4 else x for x in inputs]


def keras_model(model: ZooModel, batch: int, module: nn.Module, policy: str = "float32") -> Any:
    """The model in Keras with the module's weights; float32 out whatever the policy."""
    import keras

    ports = [
        keras.Input(batch_shape=x.shape, dtype=x.dtype.name, name=name)
        for x, name in zip(channels_last(model.inputs(batch)), model.input_names, strict=True)
    ]
    output = model.rebuild(KerasPort(module, policy), *ports)
    if policy != "float32":
        output = keras.ops.cast(output, "float32")
    return keras.Model(ports if len(ports) > 1 else ports[0], output, name=model.name)


def freeze(function: Callable[..., Any], specs: Sequence[Any]) -> Any:
    """A function of tensors as one TensorFlow graph whose variables are constants."""
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    return convert_variables_to_constants_v2(tf.function(function).get_concrete_function(*specs))


def write_frozen(keras: Any, path: Path) -> None:
    """Write a Keras model as a frozen graph whose inputs have the model's names and whose output is `y`."""
    import tensorflow as tf

    specs = [tf.TensorSpec(x.shape, x.dtype, name=x.name) for x in keras.inputs]
    frozen = freeze(lambda *x: tf.identity(keras(_packed(x), training=False), name="y"), specs)
    path.write_bytes(frozen.graph.as_graph_def().SerializeToString())


def frozen_file(model: ZooModel, batch: int, module: nn.Module | None = None) -> Path:
    """The model as a frozen TensorFlow graph (`.pb`), float32, channels last."""

    def write(path: Path) -> None:
        write_frozen(keras_model(model, batch, module or model.module()), path)

    return cached(f"{_slug(model)}-b{batch}.pb", write)


def quantised_file(model: ZooModel, batch: int) -> Path:
    """The ONNX model statically quantised to int8 (QDQ form), calibrated on random inputs."""

    def write(path: Path) -> None:
        from onnxruntime import quantization

        source = onnx_file(model, batch)
        calibration = (
            dict(zip(model.input_names, model.inputs(batch, seed), strict=True)) for seed in range(10, 14)
        )

        class Reader(quantization.CalibrationDataReader):
            def get_next(self) -> dict[str, np.ndarray] | None:
                return next(calibration, None)

        logging.disable(logging.WARNING)
        try:
            quantization.quantize_static(
                source,
                path,
                Reader(),
                quant_format=quantization.QuantFormat.QDQ,
                per_channel=True,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
            )
        finally:
            logging.disable(logging.NOTSET)

    return cached(f"{_slug(model)}-b{batch}-int8.onnx", write)


def _packed(inputs: Sequence[Any]) -> Any:
    """Inputs as a Keras model takes them: bare when single."""
    return inputs[0] if len(inputs) == 1 else list(inputs)


def _slug(model: ZooModel) -> str:
    return model.title.lower().replace(" ", "-").replace("/", "-").replace("×", "x").strip("()")
