"""Operators of one tensor."""

from __future__ import annotations

import types

from npu_device.gen_npu_ops import gelu

__all__ = ["gelu", "npu_unary_ops"]

# Scripts import this name from this module.
npu_unary_ops = types.SimpleNamespace(gelu=gelu)
