"""Runs CUDA scripts on the NPU: after importing this, `cuda` means `npu`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch.utils import _pytree as pytree

import torch_npu

__all__: list[str] = []

_FACTORIES = ("arange", "as_tensor", "empty", "empty_like", "empty_strided", "eye", "full", "full_like", "linspace",
              "load", "logspace", "ones", "ones_like", "rand", "rand_like", "randint", "randint_like", "randn",
              "randn_like", "randperm", "tensor", "tril_indices", "triu_indices", "zeros", "zeros_like")  # fmt: skip
_METHODS = ("to", "new_empty", "new_full", "new_ones", "new_tensor", "new_zeros", "type")
_TYPES = ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")


def _npu(value: Any) -> Any:
    """A device, or a type of its tensors, as it is called here."""
    if isinstance(value, str) and value.partition(":")[0] == "cuda":
        return "npu" + value[4:]
    if isinstance(value, str) and value.startswith("torch.cuda."):
        return "torch.npu." + value[11:]
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("npu", value.index or 0)
    return value


def _translated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*[_npu(a) for a in args], **{k: _npu(v) for k, v in kwargs.items()})

    return call


def _device_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """Only arguments that name devices are read: others may be strings of their own."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name in ("device", "device_type", "map_location"):
            if name in kwargs:
                kwargs[name] = _npu(kwargs[name])
        return function(*args, **kwargs)

    return call


def _on_npu(kind: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def make(*args: Any) -> Any:
        return kind(*args).npu()  # type: ignore[attr-defined]

    return make


def _all_to_one(
    self: Any, inputs: Any, kwargs: Any, device_ids: Any
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The whole of a batch for the one device there is."""
    del self, device_ids
    whole = pytree.tree_map(lambda v: v.to("npu") if isinstance(v, torch.Tensor) else v, (inputs, kwargs))
    return (whole[0],), (whole[1] or {},)


def _capability(device: Any = None) -> tuple[int, int]:
    """Older than every GPU: scripts, and PyTorch where it finds Triton, compare this with what they need of a GPU."""
    properties = torch_npu.npu.get_device_properties(device)
    return properties.major, properties.minor


def _transfer() -> None:
    space: Any = torch
    for name in _FACTORIES:
        setattr(space, name, _device_only(getattr(torch, name)))
    for name in _METHODS:
        setattr(torch.Tensor, name, _translated(getattr(torch.Tensor, name)))
    for owner in (torch.Tensor, torch.nn.Module):
        kind: Any = owner
        kind.cuda = _translated(kind.npu)
    torch.nn.Module.to = _translated(torch.nn.Module.to)  # type: ignore[method-assign]
    torch.Tensor.is_cuda = property(lambda self: self.device.type == "npu")  # type: ignore[assignment]
    for name in (*torch_npu.npu.__all__, "is_bf16_supported"):
        if name != "amp":
            found = getattr(torch_npu.npu, name)
            setattr(torch.cuda, name, _translated(found) if isinstance(found, FunctionType) else found)
    makers = (
        (torch_npu.npu.Stream, "__new__"),
        (torch_npu.npu.device, "__init__"),
        (type(torch.Generator), "__call__"),
    )
    for kind, maker in makers:
        setattr(kind, maker, _translated(getattr(kind, maker)))
    torch.cuda.get_device_capability = _translated(_capability)
    torch.cuda.is_current_stream_capturing = lambda: False
    for name in _TYPES:
        setattr(torch.cuda, f"{name}Tensor", _on_npu(getattr(torch, f"{name}Tensor")))
    torch.cuda.amp.autocast = torch_npu.npu.amp.autocast  # type: ignore[assignment,misc]
    torch.cuda.amp.GradScaler = torch_npu.npu.amp.GradScaler  # type: ignore[assignment,misc]
    torch.autocast.__init__ = _translated(torch.autocast.__init__)  # type: ignore[method-assign]
    torch.amp.GradScaler.__init__ = _translated(torch.amp.GradScaler.__init__)  # type: ignore[method-assign]
    for module in ("torch._utils", "torch.nn.parallel.data_parallel"):
        place: Any = sys.modules[module]
        place._get_available_device_type = lambda: "npu"
    torch.nn.DataParallel.scatter = _all_to_one  # type: ignore[method-assign]
    if torch.distributed.is_available():
        torch.distributed.init_process_group = _other_backend(torch.distributed.init_process_group)


def _other_backend(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        return function("hccl" if backend == "nccl" else backend, *args, **kwargs)

    return call


_transfer()
