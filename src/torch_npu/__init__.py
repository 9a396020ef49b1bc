"""The `npu` device for PyTorch tensors: import it, and `tensor.npu()`, `device="npu"` and `torch.npu` are there.

The operators and optimizers that libraries take from here beside (`npu_rms_norm`, `optim.NpuFusedAdamW`) are calls of
PyTorch; `surface` lists them. `torch.compile(backend="npu")` needs no further import.
"""

from __future__ import annotations

try:
    import torch as _torch
except ImportError as error:
    raise ImportError("torch_npu needs PyTorch: pip install torch") from error

from typing import Any

from torch_npu import npu, optim, profiler, surface, utils
from torch_npu.device import register
from torch_npu.memory import as_cpu, as_npu, is_npu

__all__ = ["as_cpu", "as_npu", "is_npu", "npu", "optim", "profiler", "utils", *surface.OPERATORS]

del _torch
register()
surface.register()
globals().update(surface.OPERATORS)


def __getattr__(name: str) -> Any:
    raise AttributeError(f"module 'torch_npu' has no attribute {name!r}")
