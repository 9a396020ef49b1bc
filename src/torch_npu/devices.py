"""The available NPUs, and the current NPU of each thread."""

from __future__ import annotations

import threading
from typing import Any

import torch

import npu_runtime

__all__ = ["count", "current", "index_of", "set_current"]


class _Current(threading.local):
    """The device of each thread: new threads begin with the first one."""

    def __init__(self) -> None:
        self.index = 0


_current = _Current()
_COUNT = int(npu_runtime.device_count())  # not at each call: Dynamo traces no native function


def count() -> int:
    """Number of devices; NPU_DEVICE_COUNT sets it before the first import."""
    return _COUNT


def current() -> int:
    """Index of this thread's device."""
    return _current.index


def set_current(index: int) -> int:
    """Make a device this thread's own; returns the index of the one before."""
    before, _current.index = _current.index, index
    return before


def index_of(device: Any) -> int:
    """The index a device has; this thread's where none is said.

    >>> index_of("npu:0")
    0
    """
    index = device
    if device is not None and not isinstance(device, int):
        device = torch.device(device)
        if device.type != "npu":
            raise ValueError(f"Expected an npu device, but got: {device}")
        index = device.index
    if index is None or index == -1:
        return _current.index
    if not 0 <= index < count():
        known = ", ".join(f"npu:{i}" for i in range(count()))
        raise RuntimeError(
            f"NPU error: invalid device ordinal npu:{index}: the devices are {known}; set NPU_DEVICE_COUNT before "
            "the process starts to have more"
        )
    return index
