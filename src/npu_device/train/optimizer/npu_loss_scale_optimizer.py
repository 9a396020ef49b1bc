"""Dynamic loss scaling for float16 training, with Keras 2 and Keras 3."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["NpuLossScaleOptimizer"]

INITIAL_SCALE = 2.0**15
GROWTH_STEPS = 2000
_KERAS_3 = not hasattr(tf.keras.mixed_precision.LossScaleOptimizer, "get_scaled_loss") and hasattr(
    tf.keras.optimizers, "LossScaleOptimizer"
)


def NpuLossScaleOptimizer(
    inner_optimizer: Any,
    dynamic: bool = True,
    initial_scale: float | None = None,
    dynamic_growth_steps: int | None = None,
) -> Any:
    """An optimizer that scales the loss, unscales the gradients, and skips steps that overflow.

    The scale doubles after `dynamic_growth_steps` finite steps and halves after an overflow. A fixed scale
    (dynamic=False) never changes; Keras 2 then applies every step. Use `get_scaled_loss` and `get_unscaled_gradients`
    in custom training loops.
    """
    if not dynamic and initial_scale is None:
        raise ValueError("a fixed loss scale needs initial_scale")
    if _KERAS_3:
        growth = dynamic_growth_steps or GROWTH_STEPS
        return _scaled_class()(
            inner_optimizer,
            initial_scale=initial_scale or INITIAL_SCALE,
            dynamic_growth_steps=growth if dynamic else _NEVER,
            fixed=not dynamic,
        )
    return tf.keras.mixed_precision.LossScaleOptimizer(
        inner_optimizer,
        dynamic=dynamic,
        initial_scale=initial_scale or INITIAL_SCALE,
        dynamic_growth_steps=(dynamic_growth_steps or GROWTH_STEPS) if dynamic else None,
    )


_NEVER = 2**31 - 1  # effectively never grows


def _scaled_class() -> type:
    """Keras 3's class with the methods of Keras 2's."""
    base: Any = tf.keras.optimizers.LossScaleOptimizer

    class ScaledOptimizer(base):
        """Keras 3's LossScaleOptimizer with `get_scaled_loss` and `get_unscaled_gradients`."""

        def __init__(self, inner_optimizer: Any, *, fixed: bool = False, **settings: Any) -> None:
            super().__init__(inner_optimizer, **settings)
            self._fixed = fixed
            self._unscaled_before = False

        def build(self, var_list: Any) -> None:
            self._make_scale()
            self.inner_optimizer.build(var_list)
            super(base, self).build(var_list)

        def _make_scale(self) -> None:
            """Create the scale, which the loss needs before the first step builds the variables."""
            if hasattr(self, "dynamic_scale"):
                return
            constant = tf.keras.initializers.Constant
            with tf.init_scope():
                counter = {"dtype": "int32", "initializer": constant(0), "name": "step_counter"}
                scale = {
                    "dtype": "float32",
                    "initializer": constant(self.initial_scale),
                    "name": "dynamic_scale",
                }
                self.step_counter = self.add_variable(shape=(), aggregation="none", **counter)
                self.dynamic_scale = self.add_variable(shape=(), aggregation="none", **scale)

        @property
        def loss_scale(self) -> Any:
            self._make_scale()
            return tf.convert_to_tensor(self.dynamic_scale)

        def get_scaled_loss(self, loss: Any) -> Any:
            return loss * tf.cast(self.loss_scale, tf.convert_to_tensor(loss).dtype)

        scale_loss = get_scaled_loss

        def get_unscaled_gradients(self, grads: Any) -> list[Any]:
            self._unscaled_before = True
            return [None if g is None else g / tf.cast(self.loss_scale, g.dtype) for g in grads]

        def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
            if self._unscaled_before:  # exact, since the scale is a power of two
                self._unscaled_before = False
                grads = [None if g is None else g * tf.cast(self.loss_scale, g.dtype) for g in grads]
            return super().apply(grads, trainable_variables)

        def _stateful_handle_non_finite_grads(self) -> None:
            if not self._fixed:
                super()._stateful_handle_non_finite_grads()

    return ScaledOptimizer
