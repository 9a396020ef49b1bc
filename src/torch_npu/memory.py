"""NPU tensors and CPU tensors over the same memory: a DLPack capsule whose device is written anew."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

__all__ = ["as_cpu", "as_npu", "host_of", "is_npu", "made_npu"]

_CPU, _NPU = 1, 12  # device types of DLPack: kDLCPU, kDLExtDev
_DEVICE_OFFSET = ctypes.sizeof(ctypes.c_void_p)  # after the data pointer

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_int32 = ctypes.c_int32.from_address


def _tagged(tensor: torch.Tensor, device: int) -> torch.Tensor:
    capsule: Any = torch._C._to_dlpack(tensor)
    _int32(_pointer(capsule, b"dltensor") + _DEVICE_OFFSET).value = device
    found: torch.Tensor = torch._C._from_dlpack(capsule)
    return found


_SMALL = 16 << 10  # bytes up to which tensors are remembered
_MOST = 256
_recent: dict[
    int, torch.Tensor
] = {}  # the CPU tensors of small NPU tensors made last, by address; they hold the memory


def host_of(tensor: torch.Tensor) -> torch.Tensor:
    """`as_cpu`, without making a tensor anew where the NPU tensor is a small one made a short while ago."""
    address = tensor.data_ptr()
    found = _recent.get(address)
    if (
        found is not None
        and found.data_ptr() == address  # an operator may have given it other memory
        and found.dtype is tensor.dtype
        and found.shape == tensor.shape
        and found.stride() == tensor.stride()
    ):
        return found
    made = as_cpu(tensor)
    _remember(made)
    return made


def made_npu(tensor: torch.Tensor) -> torch.Tensor:
    """`as_npu` of a tensor that nobody else has; small ones are remembered."""
    found = as_npu(tensor)
    _remember(tensor)
    return found


def _remember(tensor: torch.Tensor) -> None:
    if 0 < tensor.nbytes <= _SMALL:
        if len(_recent) >= _MOST:
            _recent.pop(next(iter(_recent)), None)
        _recent[tensor.data_ptr()] = tensor


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
