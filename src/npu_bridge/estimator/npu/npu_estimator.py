"""Estimators whose sessions run on the NPU."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.util import tf_decorator

from npu_bridge.estimator.npu.npu_config import NPURunConfig
from npu_bridge.estimator.npu.util import repeated
from npu_bridge.options import SessionOptions, configured

__all__ = ["NPUEstimator", "NPUEstimatorSpec"]


class NPUEstimatorSpec(tf.estimator.EstimatorSpec):
    """An EstimatorSpec; `host_call` adds a function of tensors that runs on the host after every step."""

    def __new__(cls, mode: Any, *arguments: Any, host_call: Any = None, **named: Any) -> Any:
        spec = super().__new__(cls, mode, *arguments, **named)
        return spec if host_call is None else _with_host_call(spec, host_call)


def _with_host_call(spec: Any, host_call: Any) -> Any:
    function, tensors = host_call
    values = function(*tensors) if isinstance(tensors, (list, tuple)) else function(**tensors)
    fetches = values if isinstance(values, (list, tuple)) else [values]
    with tf.control_dependencies([f for f in fetches if f is not None]):
        train_op = (
            tf.identity(spec.train_op) if isinstance(spec.train_op, tf.Tensor) else tf.group(spec.train_op)
        )
    return spec._replace(train_op=train_op)


class NPUEstimator(tf.estimator.Estimator):
    """An Estimator on the NPU.

    estimator = NPUEstimator(model_fn, config=NPURunConfig(model_dir="model"))
    """

    def __init__(
        self,
        model_fn: Any,
        model_dir: str | None = None,
        config: Any = None,
        params: Any = None,
        job_start_file: str = "",
        warm_start_from: Any = None,
    ) -> None:
        del job_start_file  # describes a cluster, which is not used here
        if config is None:
            config = NPURunConfig(model_dir=model_dir)
        elif not isinstance(config, NPURunConfig):
            config = config.replace(session_config=configured(config.session_config, {}))
        iterations = SessionOptions.of(config.session_config).iterations_per_loop
        if iterations > 1:
            model_fn = _repeating(model_fn, iterations)
        super().__init__(model_fn, model_dir, config, params, warm_start_from)


def _repeating(model_fn: Any, iterations: int) -> Any:
    """Wrap a model function so that its training operation runs several times per session call."""

    def repeating(*arguments: Any, **named: Any) -> Any:
        spec = model_fn(*arguments, **named)
        if spec.mode != tf.estimator.ModeKeys.TRAIN:
            return spec
        return spec._replace(train_op=repeated(spec.train_op, iterations))

    return tf_decorator.make_decorator(model_fn, repeating)
