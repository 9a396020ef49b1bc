"""Memory that callers hold as addresses: allocations, borrowed Python objects, range checks."""

from __future__ import annotations

import bisect
import collections
import ctypes
import os
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from acl import _gpu
from acl import constants as c
from acl._conventions import AclError

__all__ = [
    "Block",
    "Memory",
    "check_range",
    "check_visible",
    "copy",
    "fill",
    "gpu_of",
    "lend",
    "memory",
    "physical_bytes",
    "read",
    "room",
]

ALIGN = 64
KEPT_EXPORTS = 16


@dataclass(frozen=True)
class Block:
    """One allocation; freed with the last reference to its owner."""

    address: int
    nbytes: int
    device: bool
    owner: Any
    gpu: int | None = None  # number of the GPU, if it is GPU memory


class Memory:
    """All live allocations of the process, found by address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: dict[int, Block] = {}
        self._starts: list[int] = []

    def allocate(self, nbytes: int, device: int | None, *, visible: bool = False) -> Block:
        """Allocate an aligned block on a device (None: host); `visible`: readable by the host."""
        if not isinstance(nbytes, int) or nbytes <= 0:
            raise AclError(c.ACL_ERROR_INVALID_PARAM, f"cannot allocate {nbytes!r} bytes")
        block = _host_block(nbytes) if device is None else _device_block(nbytes, device, visible)
        with self._lock:
            self._blocks[block.address] = block
            bisect.insort(self._starts, block.address)
        return block

    def release(self, address: Any, *, device: bool) -> None:
        """Free a block by its start address."""
        with self._lock:
            block = self._blocks.get(address) if isinstance(address, int) else None
            if block is None or block.device != device:
                where = "device" if device else "host"
                raise AclError(
                    c.ACL_ERROR_RT_PARAM_INVALID, f"{address!r} is not the start of live {where} memory"
                )
            del self._blocks[address]
            self._starts.remove(address)

    def find(self, address: int, nbytes: int = 0) -> Block | None:
        """Find the block that contains a whole range."""
        with self._lock:
            place = bisect.bisect_right(self._starts, address) - 1
            if place < 0:
                return None
            block = self._blocks[self._starts[place]]
        return block if address + nbytes <= block.address + block.nbytes else None

    def starts_in_block(self, address: int) -> bool:
        """True if an address is inside a block."""
        block = self.find(address)
        return block is not None and address < block.address + block.nbytes

    def clear(self) -> None:
        """Free all blocks."""
        with self._lock:
            self._blocks.clear()
            self._starts.clear()


memory = Memory()


def _device_block(nbytes: int, device: int, visible: bool) -> Block:
    import npu_runtime

    try:
        if _gpu.enabled() and not visible:
            from ge.model.cuda.arrays import LentMemory
            from npu_runtime import cuda

            memory = cuda.Memory(device, nbytes, "acl.rt.malloc")
            return Block(memory.address, nbytes, True, LentMemory(memory, device), device)
        device = 0 if _gpu.enabled() else device
        buffer = npu_runtime.DeviceBuffer(nbytes, "acl.rt.malloc", device)
    except npu_runtime.OutOfDeviceMemory as error:
        raise AclError(c.ACL_ERROR_RT_MEMORY_ALLOCATION, str(error)) from error
    return Block(buffer.address, nbytes, True, buffer)


def _host_block(nbytes: int) -> Block:
    if nbytes > physical_bytes():
        raise AclError(c.ACL_ERROR_RT_MEMORY_ALLOCATION, f"{nbytes} bytes are more than this machine has")
    owner = np.empty(nbytes + ALIGN, np.uint8)
    return Block(-(-owner.ctypes.data // ALIGN) * ALIGN, nbytes, False, owner)


_lent: dict[int, tuple[int, Any]] = {}  # address -> bytes, weak reference
_kept: collections.deque[Any] = collections.deque(maxlen=KEPT_EXPORTS)


def lend(item: np.ndarray | bytes | bytearray | memoryview) -> int:
    """The address of an object's memory, registered as long as the object lives.

    Objects without weak references (`bytes`), and temporaries whose address outlives them by a moment, are
    kept alive for the next few calls.
    """
    array = item if isinstance(item, np.ndarray) else np.frombuffer(item, np.uint8)
    address = int(array.__array_interface__["data"][0])
    _kept.append(item)
    if isinstance(item, np.ndarray):
        _lent[address] = (array.nbytes, weakref.ref(item, lambda _: _lent.pop(address, None)))
    return address


def check_range(address: Any, nbytes: Any, *, write: bool) -> Block | None:
    """Reject a range outside this process's memory; return the block that contains it, if any."""
    if not isinstance(address, int) or not isinstance(nbytes, int) or address <= 0 or nbytes < 0:
        raise AclError(c.ACL_ERROR_INVALID_PARAM, f"{address!r} with {nbytes!r} bytes is not a memory range")
    block = memory.find(address, nbytes)
    if block is not None:
        return block
    if memory.starts_in_block(address):
        raise AclError(
            c.ACL_ERROR_RT_PARAM_INVALID, f"{nbytes} bytes at {address:#x} reach beyond their memory"
        )
    if not (_is_lent(address, nbytes) or _is_mapped(address, nbytes, write)):
        raise AclError(
            c.ACL_ERROR_RT_PARAM_INVALID, f"{nbytes} bytes at {address:#x} are not accessible memory"
        )
    return None


def _is_lent(address: int, nbytes: int) -> bool:
    known = _lent.get(address)
    return known is not None and known[1]() is not None and nbytes <= known[0]


def _is_mapped(address: int, nbytes: int, write: bool) -> bool:
    """True if the whole range is mapped with the required access."""
    end, wanted = address + nbytes, "rw" if write else "r"
    try:
        with open("/proc/self/maps") as file:
            for line in file:
                bounds, rights, _ = line.split(maxsplit=2)
                start, stop = (int(part, 16) for part in bounds.split("-"))
                if start <= address < stop and rights.startswith(wanted):
                    address = stop
                    if address >= end:
                        return True
    except OSError:
        return True
    return nbytes == 0


def gpu_of(address: int) -> int | None:
    """The GPU that owns an address; None for host memory."""
    block = memory.find(address)
    return None if block is None else block.gpu


def copy(dst: int, src: int, nbytes: int) -> None:
    """Copy between checked ranges, overlapping or not."""
    target, source = gpu_of(dst), gpu_of(src)
    if target is None and source is None:
        ctypes.memmove(dst, src, nbytes)
    else:
        _gpu.copy(dst, target, src, source, nbytes)


def fill(address: int, value: int, nbytes: int) -> None:
    """Fill a checked range with a byte."""
    gpu = gpu_of(address)
    if gpu is None:
        ctypes.memset(address, value & 0xFF, nbytes)
    elif nbytes:
        _gpu.fill(address, gpu, value, nbytes)


def read(address: int, nbytes: int) -> bytes:
    """Copy the bytes of a checked range."""
    if not nbytes:
        return b""
    if gpu_of(address) is None:
        return ctypes.string_at(address, nbytes)
    found = np.empty(nbytes, np.uint8)
    copy(found.ctypes.data, address, nbytes)
    return found.tobytes()


def check_visible(address: int) -> None:
    """Reject memory that only a GPU can read."""
    if gpu_of(address) is not None:
        raise AclError(
            c.ACL_ERROR_RT_PARAM_INVALID,
            f"{address:#x} is memory of a GPU, which the host cannot read: copy it with acl.rt.memcpy, and take "
            "acl.media.dvpp_malloc for pictures",
        )


def physical_bytes() -> int:
    """Total memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def room(device: int) -> tuple[int, int]:
    """Free and total bytes of a device."""
    if _gpu.enabled():
        return _gpu.room(device)
    import npu_runtime

    info = npu_runtime.memory_info(device)
    total = int(info["limit"]) or physical_bytes()
    return max(total - int(info["current"]), 0), total
