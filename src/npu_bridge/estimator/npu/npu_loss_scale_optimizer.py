"""Loss scaling around any version-1 optimizer."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

from npu_bridge.estimator.npu.npu_loss_scale_manager import LossScaleManager
from npu_bridge.estimator.npu.npu_optimizer import reduced_pairs

__all__ = ["NPULossScaleOptimizer"]


class NPULossScaleOptimizer(tf.train.Optimizer):
    """Scales the loss, unscales the gradients, and skips steps with non-finite gradients."""

    def __init__(self, opt: Any, loss_scale_manager: LossScaleManager, is_distributed: bool = False) -> None:
        if not isinstance(opt, tf.train.Optimizer):
            raise ValueError(f"an optimizer of tf.train is needed, not {type(opt).__name__}")
        super().__init__(False, f"NPULossScaleOptimizer{type(opt).__name__}")
        self._opt = opt
        self._manager = loss_scale_manager
        self._is_distributed = is_distributed

    def compute_gradients(self, loss: Any, var_list: Any = None, **options: Any) -> list[tuple[Any, Any]]:
        """Gradients of the scaled loss, unscaled."""
        scale = tf.identity(self._manager.get_loss_scale())
        scaled = (
            (lambda: loss() * tf.cast(scale, loss().dtype))
            if callable(loss)
            else loss * tf.cast(scale, loss.dtype)
        )
        pairs = self._opt.compute_gradients(scaled, var_list, **options)
        return [(_divided(gradient, scale), variable) for gradient, variable in pairs]

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Apply the gradients if all are finite; count the step in any case."""
        pairs = list(grads_and_vars)
        if self._is_distributed:
            pairs = reduced_pairs(pairs)
        present = [_dense(gradient) for gradient, _ in pairs if gradient is not None]
        if not self._manager.get_enable_overflow_check():
            return self._opt.apply_gradients(pairs, global_step, name)
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in present])
        step = tf.cond(
            finite,
            lambda: tf.group(self._opt.apply_gradients(pairs, global_step)),
            lambda: tf.group(tf.no_op()),
        )
        with tf.control_dependencies([step]):
            return tf.group(step, self._manager.update_loss_scale(finite), name=name)

    def get_slot(self, *arguments: Any, **named: Any) -> Any:
        """A slot of the wrapped optimizer."""
        return self._opt.get_slot(*arguments, **named)

    def get_slot_names(self, *arguments: Any, **named: Any) -> Any:
        """Names of the slots of the wrapped optimizer."""
        return self._opt.get_slot_names(*arguments, **named)

    def variables(self) -> Any:
        """Variables of the wrapped optimizer."""
        return self._opt.variables()


def _divided(gradient: Any, scale: Any) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_divided(gradient.values, scale), gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(1.0 / scale, gradient.dtype)


def _dense(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
