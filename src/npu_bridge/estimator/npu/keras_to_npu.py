"""Keras models as estimators on the NPU."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

from npu_bridge.estimator.npu.npu_config import NPURunConfig
from npu_bridge.options import configured

__all__ = ["model_to_npu_estimator"]


def model_to_npu_estimator(
    keras_model: Any = None,
    keras_model_path: str | None = None,
    custom_objects: Any = None,
    model_dir: str | None = None,
    checkpoint_format: str = "saver",
    config: Any = None,
    job_start_file: str = "",
) -> Any:
    """An Estimator of a compiled Keras model whose sessions run on the NPU."""
    del job_start_file
    if config is None:
        config = NPURunConfig(model_dir=model_dir)
    elif not isinstance(config, NPURunConfig):
        config = config.replace(session_config=configured(config.session_config, {}))
    return tf.keras.estimator.model_to_estimator(
        keras_model=keras_model,
        keras_model_path=keras_model_path,
        custom_objects=custom_objects,
        model_dir=model_dir,
        config=config,
        checkpoint_format=checkpoint_format,
    )
