"""`npu_device.ops`: activations and dropout for models."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from npu_device import gen_npu_ops
from npu_device.gen_npu_ops import fast_gelu, fused_layer_norm, gelu, prelu
from npu_device.symbolic import takes_symbolic

__all__ = ["dropout", "fast_gelu", "fused_layer_norm", "gelu", "prelu"]


@takes_symbolic
def dropout(
    x: Any, keep_prob: Any, noise_shape: Any = None, seed: int | None = None, name: str | None = None
) -> tf.Tensor:
    """Dropout: keep elements with probability `keep_prob` and rescale them; zero the others."""
    if isinstance(keep_prob, (int, float)) and not 0 < keep_prob <= 1:
        raise ValueError(f"keep_prob must be above 0 and at most 1, not {keep_prob}")
    x = tf.convert_to_tensor(x)
    if not x.dtype.is_floating:
        raise ValueError(f"x must be of a floating point type to be scaled, not {x.dtype.name}")
    if isinstance(keep_prob, (int, float)) and keep_prob == 1:
        return x
    shape = tf.shape(x) if noise_shape is None else noise_shape
    mask = gen_npu_ops.drop_out_gen_mask(shape, keep_prob, *_seeds(seed), name)
    return gen_npu_ops.drop_out_do_mask(x, mask, keep_prob, name)


def _seeds(seed: int | None) -> tuple[int, int]:
    first, second = tf.compat.v1.get_seed(seed)
    return first or 0, second or 0
