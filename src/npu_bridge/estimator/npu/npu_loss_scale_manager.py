"""Loss scale managers, which keep 16-bit gradients from underflowing."""

from __future__ import annotations

import abc
from typing import Any

import tensorflow.compat.v1 as tf

__all__ = ["ExponentialUpdateLossScaleManager", "FixedLossScaleManager", "LossScaleManager"]


class LossScaleManager(abc.ABC):
    """Provides the loss scale and updates it depending on the gradients."""

    @abc.abstractmethod
    def get_loss_scale(self) -> Any:
        """The loss scale, a float32 scalar tensor."""

    @abc.abstractmethod
    def update_loss_scale(self, finite_grads: Any) -> Any:
        """An operation that updates the scale; `finite_grads` is true if all gradients were finite."""

    def get_enable_overflow_check(self) -> bool:
        """True if steps with infinite or NaN gradients are skipped."""
        return True


class FixedLossScaleManager(LossScaleManager):
    """A constant scale."""

    def __init__(self, loss_scale: float, enable_overflow_check: bool = True) -> None:
        if loss_scale < 1:
            raise ValueError(f"a loss scale must be at least 1, not {loss_scale}")
        self._loss_scale = tf.convert_to_tensor(float(loss_scale), tf.float32)
        self._enable_overflow_check = enable_overflow_check

    def get_enable_overflow_check(self) -> bool:
        """True if steps with infinite or NaN gradients are skipped."""
        return self._enable_overflow_check

    def get_loss_scale(self) -> Any:
        """The loss scale."""
        return self._loss_scale

    def update_loss_scale(self, finite_grads: Any) -> Any:
        """Nothing to update."""
        del finite_grads
        return tf.no_op()


class ExponentialUpdateLossScaleManager(LossScaleManager):
    """Increases the scale after many finite steps and decreases it after overflows."""

    def __init__(
        self,
        init_loss_scale: float,
        incr_every_n_steps: int,
        decr_every_n_nan_or_inf: int = 2,
        incr_ratio: float = 2.0,
        decr_ratio: float = 0.8,
    ) -> None:
        self._incr_every_n_steps = incr_every_n_steps
        self._decr_every_n_nan_or_inf = decr_every_n_nan_or_inf
        self._incr_ratio = incr_ratio
        self._decr_ratio = decr_ratio
        self._loss_scale = _state("loss_scale", float(init_loss_scale), tf.float32)
        self._num_good_steps = _state("good_steps", 0, tf.int32)
        self._num_bad_steps = _state("bad_steps", 0, tf.int32)

    def get_loss_scale(self) -> Any:
        """The current loss scale."""
        return self._loss_scale

    def update_loss_scale(self, finite_grads: Any) -> Any:
        """Count the step, and change the scale when the count reaches its limit."""
        scale, good, bad = (
            tf.identity(v) for v in (self._loss_scale, self._num_good_steps, self._num_bad_steps)
        )
        good_now, bad_now = tf.where(finite_grads, good + 1, 0), tf.where(finite_grads, bad, bad + 1)
        grow, shrink = good_now >= self._incr_every_n_steps, bad_now >= self._decr_every_n_nan_or_inf
        grown = scale * self._incr_ratio
        larger = tf.where(tf.math.is_finite(grown), grown, scale)
        smaller = tf.maximum(1.0, scale * self._decr_ratio)
        changed = tf.logical_or(grow, shrink)
        with tf.control_dependencies([scale, good, bad]):
            return tf.group(
                tf.assign(self._loss_scale, tf.where(grow, larger, tf.where(shrink, smaller, scale))),
                tf.assign(self._num_good_steps, tf.where(changed, 0, good_now)),
                tf.assign(self._num_bad_steps, tf.where(changed, 0, bad_now)),
            )


def _state(name: str, value: Any, dtype: Any) -> Any:
    return tf.Variable(value, trainable=False, dtype=dtype, name=name, use_resource=True)
