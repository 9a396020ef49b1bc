"""`torch.accelerator` on the NPU: PyTorch asks a C++ allocator and guard, which a device in Python does not have."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from torch_npu import npu

__all__ = ["FUNCTIONS", "MEMORY"]


class _DeviceIndex(npu.device):
    """A block on the device of an index; none for an empty one."""

    def __init__(self, device: int | None, /) -> None:
        super().__init__(device)


def _memory_stats(device: Any = None, /) -> OrderedDict[str, Any]:
    return OrderedDict(sorted(npu.memory_stats(device).items()))


def _capability(device: Any = None, /) -> dict[str, Any]:
    npu.get_device_capability(device)
    kinds = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
             torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)  # fmt: skip
    return {"supported_dtypes": set(kinds)}


def _synchronize(device: Any = None, /) -> None:
    """A function of its own: Dynamo takes one handler a function, and `torch.cuda` may have the device's."""
    npu.synchronize(device)


def _current_stream(device: Any = None, /) -> npu.Stream:
    return npu.current_stream(device)


def _set_stream(stream: npu.Stream) -> None:
    npu.set_stream(stream)
    npu.set_device(stream.device)


def _nothing() -> None:
    """Memory of the host that tensors have left is not kept."""


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "current_device_index": npu.current_device,
    "current_device_idx": npu.current_device,
    "set_device_index": npu.set_device,
    "set_device_idx": npu.set_device,
    "device_index": _DeviceIndex,
    "synchronize": _synchronize,
    "current_stream": _current_stream,
    "set_stream": _set_stream,
    "get_device_capability": _capability,
}
MEMORY: dict[str, Callable[..., Any]] = {
    "empty_cache": npu.empty_cache,
    "empty_host_cache": _nothing,
    "memory_stats": _memory_stats,
    "memory_allocated": npu.memory_allocated,
    "max_memory_allocated": npu.max_memory_allocated,
    "memory_reserved": npu.memory_reserved,
    "max_memory_reserved": npu.max_memory_reserved,
    "reset_accumulated_memory_stats": npu.reset_accumulated_memory_stats,
    "reset_peak_memory_stats": npu.reset_peak_memory_stats,
    "get_memory_info": npu.mem_get_info,
}
