"""Storages on the NPU: PyTorch has no allocator for the device, so they are taken from tensors."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from torch_npu import devices
from torch_npu.memory import as_cpu, as_npu

__all__ = ["capacity", "copy_storage", "new_storage", "register", "resize_storage", "storage_bytes"]

_PRIORITY = 5  # before the loaders of other devices


def _on_npu(device: Any) -> bool:
    return device is not None and torch.device(device).type == "npu"


def _made(nbytes: int, device: Any) -> torch.UntypedStorage:
    return as_npu(
        torch.empty(nbytes, dtype=torch.uint8, device="cpu"), devices.index_of(device)
    ).untyped_storage()


def new_storage(original: Any) -> Any:
    """A patch of `UntypedStorage.__new__`: a storage on the NPU is that of a tensor."""

    def new(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if not _on_npu(device):
            return original(cls, *args, **({} if device is None else {"device": device}), **kwargs)
        if args and not isinstance(args[0], int):
            data = torch.tensor(list(args[0]), dtype=torch.uint8, device="cpu")
            return as_npu(data, devices.index_of(device)).untyped_storage()
        return _made(int(args[0]) if args else 0, device)

    return new


def _tag(storage: Any) -> str | None:
    return f"npu:{storage.device.index or 0}" if storage.device.type == "npu" else None


def _restore(storage: Any, location: str) -> Any:
    if not location.startswith("npu"):
        return None
    index = devices.index_of(location)
    if storage.device == torch.device("npu", index):
        return storage
    return as_npu(_bytes(storage), index).untyped_storage()


def copy_storage(original: Any) -> Any:
    """A patch of `UntypedStorage.copy_`: bytes from a storage into another one, either of which may be the NPU's."""

    def copy_(self: Any, source: Any, non_blocking: bool = False) -> Any:
        if "npu" not in (self.device.type, source.device.type):
            return original(self, source, non_blocking)
        target, origin = (_bytes(s) for s in (self, source))
        target.copy_(origin)
        return self

    return copy_


def capacity(storage: Any) -> int:
    """The bytes that a storage has memory for, released or not."""
    return torch._C.StorageBase.nbytes(storage)  # type: ignore[attr-defined]


def resize_storage(original: Any) -> Any:
    """A patch of `UntypedStorage.resize_`: storages on the NPU are released and restored, at one size.

    FSDP resizes storages of parameters that are not in use to zero, and asks for their size to know whether to gather
    them again. A released storage reports no bytes; its memory is freed with the storage.
    """

    def resize_(self: Any, size: int) -> Any:
        if self.device.type != "npu":
            return original(self, size)
        if size not in (0, capacity(self)):
            raise RuntimeError(
                f"Trying to resize storage that is not resizable: a storage on {self.device} keeps the size it was "
                "made with. Make a new tensor, or call resize_ of a tensor that nothing else shares memory with."
            )
        self._npu_released = size == 0
        return self

    return resize_


def storage_bytes(original: Any) -> Any:
    """A patch of `UntypedStorage.nbytes`: a released storage has none."""

    def nbytes(self: Any) -> int:
        return 0 if getattr(self, "_npu_released", False) else original(self)

    return nbytes


def _bytes(storage: Any) -> torch.Tensor:
    tensor = torch.empty(0, dtype=torch.uint8, device=storage.device)
    tensor.set_(storage, 0, (storage.nbytes(),), (1,))
    return as_cpu(tensor) if storage.device.type == "npu" else tensor


def _sent(storage: Any) -> Any:
    """A storage on its way to another process, by value: its memory need not outlive the message."""
    if storage.device.type != "npu":
        return reductions.reduce_storage(storage)
    return _received, (_bytes(storage).numpy().tobytes(), storage.device.index)


def _received(data: bytes, index: int) -> torch.UntypedStorage:
    whole = torch.empty(len(data), dtype=torch.uint8, device="cpu")
    if data:
        whole.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return as_npu(whole, index).untyped_storage()


def register() -> None:
    """Make saving, loading and sending of storages work on the device."""
    ForkingPickler.register(torch.UntypedStorage, _sent)
    torch.serialization.register_package(_PRIORITY, _tag, _restore)
