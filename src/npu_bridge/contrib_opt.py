"""Optimizers of `tf.contrib.opt` on top of TensorFlow's own."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

__all__ = ["AdamWOptimizer", "LazyAdamOptimizer", "MomentumWOptimizer"]


class _DecoupledWeightDecay:
    """Mixin that adds decoupled weight decay to an optimizer."""

    def __init__(self, weight_decay: Any, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._weight_decay = weight_decay

    def apply_gradients(
        self,
        grads_and_vars: Any,
        global_step: Any = None,
        name: str | None = None,
        decay_var_list: Any = None,
    ) -> Any:
        """Decay the weights, then apply the gradients."""
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        decayed = pairs if decay_var_list is None else [(g, v) for g, v in pairs if v in set(decay_var_list)]
        decays = [v.assign_sub(self._weight_decay * v, read_value=False) for _, v in decayed]
        with tf.control_dependencies(decays):
            return super().apply_gradients(pairs, global_step, name)  # type: ignore[misc]


class AdamWOptimizer(_DecoupledWeightDecay, tf.train.AdamOptimizer):
    """Adam with decoupled weight decay."""


class MomentumWOptimizer(_DecoupledWeightDecay, tf.train.MomentumOptimizer):
    """Momentum with decoupled weight decay."""


class LazyAdamOptimizer(tf.train.AdamOptimizer):
    """Adam that updates only the rows of a sparse gradient."""

    def _apply_sparse(self, grad: Any, var: Any) -> Any:
        beta1_power, beta2_power = (tf.cast(p, var.dtype.base_dtype) for p in self._get_beta_accumulators())
        rate, beta1, beta2, epsilon = (
            tf.cast(t, var.dtype.base_dtype)
            for t in (self._lr_t, self._beta1_t, self._beta2_t, self._epsilon_t)
        )
        rate = rate * tf.sqrt(1 - beta2_power) / (1 - beta1_power)
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        m_rows = beta1 * tf.gather(m, grad.indices) + (1 - beta1) * grad.values
        v_rows = beta2 * tf.gather(v, grad.indices) + (1 - beta2) * tf.square(grad.values)
        step = rate * m_rows / (tf.sqrt(v_rows) + epsilon)
        return tf.group(
            tf.scatter_update(m, grad.indices, m_rows),
            tf.scatter_update(v, grad.indices, v_rows),
            tf.scatter_sub(var, grad.indices, step),
        )
