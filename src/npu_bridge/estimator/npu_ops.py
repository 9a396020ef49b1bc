"""Operators under the names that version-1 scripts use."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

from npu_device import gen_npu_ops

__all__ = ["LARS", "LARSV2", "dropout", "initialize_system", "shutdown_system"]


def dropout(
    x: Any, keep_prob: Any, noise_shape: Any = None, seed: int | None = None, name: str | None = None
) -> Any:
    """Dropout that keeps elements with probability `keep_prob` and rescales them."""
    if isinstance(keep_prob, (int, float)) and not 0 < keep_prob <= 1:
        raise ValueError(f"keep_prob must be above 0 and at most 1, not {keep_prob}")
    return tf.nn.dropout(x, rate=1 - keep_prob, noise_shape=noise_shape, seed=seed, name=name)


def LARSV2(
    input_weight: Any,
    input_grad: Any,
    weight_decay: Any,
    learning_rate: Any,
    hyperpara: float = 0.001,
    epsilon: float = 0.00001,
    use_clip: bool = False,
    name: str | None = None,
) -> Any:
    """Scale a gradient by the ratio of the weight's and its own norm (layer-wise adaptive rate scaling)."""
    return gen_npu_ops.lars_v2(
        input_weight, input_grad, weight_decay, learning_rate, hyperpara, epsilon, use_clip, name
    )


def LARS(
    inputs_w: Any, inputs_g: Any, weight_decay: Any, hyperpara: float = 0.001, epsilon: float = 0.00001,
    name: str | None = None,
) -> list[Any]:  # fmt: skip
    """`LARSV2` for lists of weights and gradients."""
    pairs = zip(inputs_w, inputs_g, strict=True)
    return [LARSV2(w, g, weight_decay, 1.0, hyperpara, epsilon, name=name) for w, g in pairs]


def initialize_system(name: str | None = None) -> Any:
    """An operation that initialises the device; does nothing here."""
    return tf.no_op(name=name or "InitializeSystem")


def shutdown_system(name: str | None = None) -> Any:
    """An operation that releases the device; does nothing here."""
    return tf.no_op(name=name or "ShutdownSystem")
