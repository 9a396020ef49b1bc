"""Storages on the NPU: PyTorch has no allocator for the device, so they are taken from tensors."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from torch_npu import devices
from torch_npu.memory import as_cpu, as_npu

__all__ = ["register"]

_PRIORITY = 5  # before the loaders of other devices
_new = torch.UntypedStorage.__new__


def _on_npu(device: Any) -> bool:
    return device is not None and torch.device(device).type == "npu"


def _made(nbytes: int, device: Any) -> torch.UntypedStorage:
    return as_npu(
        torch.empty(nbytes, dtype=torch.uint8, device="cpu"), devices.index_of(device)
    ).untyped_storage()


def _storage(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
    """A storage; on the NPU, that of a tensor."""
    if not _on_npu(device):
        return _new(cls, *args, **({} if device is None else {"device": device}), **kwargs)
    if args and not isinstance(args[0], int):
        data = torch.tensor(list(args[0]), dtype=torch.uint8, device="cpu")
        return as_npu(data, devices.index_of(device)).untyped_storage()
    return _made(int(args[0]) if args else 0, device)


def _tag(storage: Any) -> str | None:
    return f"npu:{storage.device.index or 0}" if storage.device.type == "npu" else None


def _restore(storage: Any, location: str) -> Any:
    if not location.startswith("npu"):
        return None
    index = devices.index_of(location)
    if storage.device == torch.device("npu", index):
        return storage
    return as_npu(_bytes(storage), index).untyped_storage()


def _copy(self: Any, source: Any, non_blocking: bool = False) -> Any:
    """Bytes from a storage into another one, either of which may be the NPU's."""
    target, origin = (_bytes(s) for s in (self, source))
    target.copy_(origin)
    return self


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
    """Make saving, loading and copying of storages work on the device."""
    kind: Any = torch.UntypedStorage
    kind.__new__ = _storage
    plain_copy = kind.copy_

    def copy_(self: Any, source: Any, non_blocking: bool = False) -> Any:
        if "npu" in (self.device.type, source.device.type):
            return _copy(self, source, non_blocking)
        return plain_copy(self, source, non_blocking)

    plain_resize = kind.resize_

    def resize_(self: Any, size: int) -> Any:
        if self.device.type != "npu":
            return plain_resize(self, size)
        if size != self.nbytes():
            raise RuntimeError(
                f"Trying to resize storage that is not resizable: a storage on {self.device} keeps the size it was "
                "made with. Make a new tensor, or call resize_ of a tensor that nothing else shares memory with."
            )
        return self

    kind.copy_ = copy_
    kind.resize_ = resize_
    ForkingPickler.register(torch.UntypedStorage, _sent)
    torch.serialization.register_package(_PRIORITY, _tag, _restore)
