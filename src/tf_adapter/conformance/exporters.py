"""The ONNX files that tf2onnx writes, with an open batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

__all__ = ["by_tf2onnx"]


def by_tf2onnx(network: Any, inputs: tuple[Any, ...], path: Path, version: int) -> None:
    import tf2onnx

    specs = [tf.TensorSpec((None, *x.shape[1:]), x.dtype, f"x{i}") for i, x in enumerate(inputs)]
    function = tf.function(lambda *x: network(x[0] if len(x) == 1 else list(x)), input_signature=specs)
    tf2onnx.convert.from_function(function, input_signature=specs, opset=version, output_path=str(path))
