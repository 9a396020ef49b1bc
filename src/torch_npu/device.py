"""Registers the device: the name `npu`, `torch.npu`, methods of tensors and modules, storage formats."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Any

import torch
from torch.utils import backend_registration

from torch_npu import compatibility, dispatch, distributed, npu, storage

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
    """Register the device, once per process."""
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
    distributed.register()
    _announce_backend()
    compatibility.PATCHES.apply()


def _announce_backend() -> None:
    """Let torch.compile know "npu" by name; torchair is loaded when the name is used.

    An installed package says so in its metadata, and PyTorch's compiler need not be loaded here.
    """
    entry = metadata.EntryPoint("npu", "torchair.backend:npu_backend", "torch_dynamo_backends")
    if not metadata.entry_points(group=entry.group, name=entry.name):
        from torch._dynamo.backends.registry import _BACKENDS

        _BACKENDS.setdefault(entry.name, entry)


def npu_format_cast(tensor: torch.Tensor, acl_format: int) -> torch.Tensor:
    """The tensor itself: storage formats belong to compiled graphs, tensors are always plain."""
    return tensor


npu_format_cast_ = npu_format_cast


def get_npu_format(tensor: torch.Tensor) -> int:
    """The storage format of a tensor: plain (ND)."""
    return _ND
