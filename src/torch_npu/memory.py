"""NPU tensors and CPU tensors over the same memory: a DLPack capsule with its device field rewritten."""

from __future__ import annotations

from typing import Any

import torch

from npu_runtime import set_dlpack_device

__all__ = ["as_cpu", "as_npu", "host", "is_npu", "lazy_host", "made_npu", "with_bits"]

_CPU, _NPU = 1, 12  # device types of DLPack: kDLCPU, kDLExtDev
_to_dlpack: Any = torch._C._to_dlpack
_from_dlpack: Any = torch._C._from_dlpack


def _tagged(tensor: torch.Tensor, device: int, index: int = 0) -> torch.Tensor:
    capsule = _to_dlpack(tensor)
    set_dlpack_device(capsule, device, index)
    found: torch.Tensor = _from_dlpack(capsule)
    return found


def made_npu(tensor: torch.Tensor, index: int = 0) -> torch.Tensor:
    """`as_npu` of a tensor that was just made: strided, and no conjugate of another one."""
    return _tagged(tensor, _NPU, index)


def is_npu(value: Any) -> bool:
    """Whether a value is a tensor on the NPU."""
    return isinstance(value, torch.Tensor) and value.device.type == "npu"


def host(tensor: torch.Tensor) -> torch.Tensor:
    """`as_cpu` of a tensor that has passed PyTorch's dispatcher, which resolves conjugates and negatives."""
    if not tensor.numel():
        return torch.empty_strided(
            tuple(tensor.shape), tuple(tensor.stride()), dtype=tensor.dtype, device="cpu"
        )
    return _tagged(tensor, _CPU)


def as_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the memory of an NPU tensor, without autograd."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        from torch_npu import layouts

        return layouts.as_cpu(tensor)
    return lazy_host(tensor)


def lazy_host(tensor: torch.Tensor) -> torch.Tensor:
    """`as_cpu` of a strided tensor that may be the conjugate or the negative of its memory."""
    return with_bits(host(tensor), tensor)


def with_bits(found: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor seen as the conjugate or the negative of its memory, as another one is."""
    if tensor.is_conj():
        found = torch._conj(found)
    return torch._neg_view(found) if tensor.is_neg() else found


def as_npu(tensor: torch.Tensor, index: int = 0) -> torch.Tensor:
    """An NPU tensor over the memory of a CPU tensor, without autograd."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        from torch_npu import layouts

        return layouts.as_npu(tensor, index)
    if tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor():
        tensor = tensor.resolve_conj().resolve_neg().clone()
    return _tagged(tensor, _NPU, index)
