"""NPU tensors and CPU tensors over the same memory: a DLPack capsule whose device is written anew."""

from __future__ import annotations

from typing import Any

import torch

from npu_runtime import set_dlpack_device

__all__ = ["as_cpu", "as_npu", "is_npu", "made_npu"]

_CPU, _NPU = 1, 12  # device types of DLPack: kDLCPU, kDLExtDev
_to_dlpack: Any = torch._C._to_dlpack
_from_dlpack: Any = torch._C._from_dlpack


def _tagged(tensor: torch.Tensor, device: int) -> torch.Tensor:
    capsule = _to_dlpack(tensor)
    set_dlpack_device(capsule, device)
    found: torch.Tensor = _from_dlpack(capsule)
    return found


def made_npu(tensor: torch.Tensor) -> torch.Tensor:
    """`as_npu` of a tensor that was just made: no conjugate of another one."""
    return _tagged(tensor, _NPU)


def is_npu(value: Any) -> bool:
    """Whether a value is a tensor on the NPU."""
    return isinstance(value, torch.Tensor) and value.device.type == "npu"


def as_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the memory of an NPU tensor, without autograd."""
    if not tensor.numel():
        return torch.empty_strided(tuple(tensor.shape), tuple(tensor.stride()), dtype=tensor.dtype)
    return _tagged(tensor, _CPU)


def as_npu(tensor: torch.Tensor) -> torch.Tensor:
    """An NPU tensor over the memory of a CPU tensor, without autograd."""
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return _tagged(tensor, _NPU)
