"""The `npu` device for PyTorch tensors: import it, and `tensor.npu()`, `device="npu"` and `torch.npu` are there."""

from __future__ import annotations

try:
    import torch as _torch
except ImportError as error:
    raise ImportError("torch_npu needs PyTorch: pip install torch") from error

from torch_npu import npu
from torch_npu.device import get_npu_format, npu_format_cast, npu_format_cast_, register
from torch_npu.memory import as_cpu, as_npu, is_npu

__all__ = ["as_cpu", "as_npu", "get_npu_format", "is_npu", "npu", "npu_format_cast", "npu_format_cast_"]

del _torch
register()
