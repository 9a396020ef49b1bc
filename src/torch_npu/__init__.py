"""The `npu` device for PyTorch tensors: import it, and `tensor.npu()`, `device="npu"` and `torch.npu` are there.

The functions and optimizers that libraries take from here beside (`npu_rms_norm`, `optim.NpuFusedAdamW`) are calls of
PyTorch. `torch.compile(backend="npu")` needs no further import.
"""

from __future__ import annotations

try:
    import torch as _torch
except ImportError as error:
    raise ImportError("torch_npu needs PyTorch: pip install torch") from error

from typing import Any

from torch_npu import functions, npu, optim
from torch_npu.attention import npu_fusion_attention, npu_fusion_attention_v2
from torch_npu.device import get_npu_format, npu_format_cast, npu_format_cast_, register
from torch_npu.functions import (
    fast_gelu,
    npu_add_layer_norm,
    npu_add_rms_norm,
    npu_apply_rotary_pos_emb,
    npu_confusion_transpose,
    npu_deep_norm,
    npu_dtype_cast,
    npu_fast_gelu,
    npu_geglu,
    npu_gelu,
    npu_group_norm_silu,
    npu_linear,
    npu_mish,
    npu_one_hot,
    npu_rms_norm,
    npu_rotary_mul,
    npu_scaled_masked_softmax,
    npu_silu,
    npu_silu_,
    npu_swiglu,
    npu_transpose,
)
from torch_npu.memory import as_cpu, as_npu, is_npu

__all__ = [
    "as_cpu",
    "as_npu",
    "fast_gelu",
    "get_npu_format",
    "is_npu",
    "npu",
    "npu_add_layer_norm",
    "npu_add_rms_norm",
    "npu_apply_rotary_pos_emb",
    "npu_confusion_transpose",
    "npu_deep_norm",
    "npu_dtype_cast",
    "npu_fast_gelu",
    "npu_format_cast",
    "npu_format_cast_",
    "npu_fusion_attention",
    "npu_fusion_attention_v2",
    "npu_geglu",
    "npu_gelu",
    "npu_group_norm_silu",
    "npu_linear",
    "npu_mish",
    "npu_one_hot",
    "npu_rms_norm",
    "npu_rotary_mul",
    "npu_scaled_masked_softmax",
    "npu_silu",
    "npu_silu_",
    "npu_swiglu",
    "npu_transpose",
    "optim",
]

del _torch
register()


def __getattr__(name: str) -> Any:
    """Functions that are not on this device can be imported; they say so when they are called."""
    if name in functions.NOT_AVAILABLE:
        return functions.not_available(name)
    raise AttributeError(f"module 'torch_npu' has no attribute {name!r}")
