"""Operators of one tensor."""

from __future__ import annotations

import types
from typing import Any

import tensorflow.compat.v1 as tf

__all__ = ["gelu", "npu_unary_ops"]


def gelu(x: Any) -> Any:
    """Gaussian error linear unit, by its tanh formula."""
    return tf.nn.gelu(x, approximate=True)


# Scripts import this name from this module.
npu_unary_ops = types.SimpleNamespace(gelu=gelu)
