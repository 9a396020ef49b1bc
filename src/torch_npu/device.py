"""Making the device known: the name `npu`, `torch.npu`, methods of tensors and modules, storage formats."""

from __future__ import annotations

import functools
import sys
from importlib import metadata
from typing import Any

import torch
from torch.utils import backend_registration

from torch_npu import accelerator, devices, dispatch, distributed, generators, npu, storage

__all__ = ["get_npu_format", "npu_format_cast", "npu_format_cast_", "register"]

_ND = 2  # the format of plain tensors
_registered = False


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    """What PyTorch asks about the device."""

    def is_available(self) -> bool:
        return True

    def has_primary_context(self, dev_id: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


class _Guard(torch._C._acc.DeviceGuard):
    """Which device type this is."""

    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1


_HOOKS, _GUARD = _Hooks(), _Guard()


def register() -> None:
    """Register the device, once a process."""
    global _registered
    if _registered:
        return
    _registered = True
    torch.utils.rename_privateuse1_backend("npu")
    torch._register_device_module("npu", npu)
    sys.modules.setdefault("torch.npu", npu)
    torch._C._acc.register_python_privateuseone_hook(_HOOKS)
    torch._C._acc.register_python_privateuseone_device_guard(_GUARD)
    backend_registration.generate_methods_for_privateuse1_backend()
    dispatch.register()
    storage.register()
    _take_streams()
    _take_pinning()
    distributed.register()
    _announce_backend()
    _take_backward()
    _take_indices()
    generators.register()
    accelerator.register()


def _announce_backend() -> None:
    """Let torch.compile know "npu" by name; torchair is loaded when the name is used.

    An installed package says so in its metadata, and PyTorch's compiler need not be loaded here.
    """
    entry = metadata.EntryPoint("npu", "torchair.backend:npu_backend", "torch_dynamo_backends")
    if not metadata.entry_points(group=entry.group, name=entry.name):
        from torch._dynamo.backends.registry import _BACKENDS

        _BACKENDS.setdefault(entry.name, entry)


def _take_streams() -> None:
    """Let tensors be told of streams of this device: their memory is free only when its last user is done anyway."""
    of_torch = torch.Tensor.record_stream

    @functools.wraps(of_torch)
    def record_stream(self: torch.Tensor, s: Any) -> None:
        if not isinstance(s, npu.Stream):
            of_torch(self, s)

    torch.Tensor.record_stream = record_stream  # type: ignore[assignment]


def _take_pinning() -> None:
    """Let tensors of the host be pinned: the device reads their memory as it is."""

    def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        if self.device.type != "cpu":
            raise RuntimeError(f"cannot pin '{self.type()}': only dense CPU tensors can be pinned")
        return self

    torch.Tensor.pin_memory = pin_memory  # type: ignore[assignment]


def _take_backward() -> None:
    """Run backward passes on the thread that asks for them, as the CPU's do.

    PyTorch has a thread for each device that the guard counts, which is one in Python; and it frees what a pass held
    after the caller has gone on, which takes the process down when the interpreter ends meanwhile.
    """
    of_torch = torch.autograd.graph._engine_run_backward

    @functools.wraps(of_torch)
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autograd.set_multithreading_enabled(False):
            return of_torch(*args, **kwargs)

    for module in (torch.autograd, torch.autograd.graph):
        module._engine_run_backward = run  # type: ignore[attr-defined]


def _take_indices() -> None:
    """Let `npu` mean this thread's device where PyTorch itself would read it as the first one."""
    if devices.count() == 1:
        return

    def told(value: Any) -> Any:
        if isinstance(value, str) and value == "npu":
            return torch.device("npu", devices.current())
        if isinstance(value, torch.device) and value.type == "npu" and value.index is None:
            return torch.device("npu", devices.current())
        return value

    def indexed(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*[told(a) for a in args], **{k: told(v) for k, v in kwargs.items()})

        return call

    for owner, name in ((torch.Tensor, "to"), (torch, "tensor"), (torch, "as_tensor"), (torch, "asarray")):
        setattr(owner, name, indexed(getattr(owner, name)))


def npu_format_cast(tensor: torch.Tensor, acl_format: int) -> torch.Tensor:
    """The tensor itself: storage formats belong to compiled graphs, tensors are always plain."""
    return tensor


npu_format_cast_ = npu_format_cast


def get_npu_format(tensor: torch.Tensor) -> int:
    """The storage format of a tensor: plain (ND)."""
    return _ND
