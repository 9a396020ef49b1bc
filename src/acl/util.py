"""acl.util: addresses of Python objects, Python objects at addresses, threads for callbacks."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from acl import _memory
from acl import constants as c
from acl._conventions import AclError, returns_code, returns_value

__all__ = [
    "bytes_to_ptr",
    "get_ptr",
    "numpy_contiguous_to_ptr",
    "numpy_to_ptr",
    "ptr_to_bytes",
    "ptr_to_numpy",
    "start_thread",
    "stop_thread",
    "vdec_start_thread",
]

_threads: dict[int, threading.Thread] = {}
STOP_SECONDS = 10.0


def numpy_to_ptr(array: np.ndarray) -> int:
    """The address of an array's data.

    >>> import numpy as np
    >>> a = np.arange(3, dtype=np.int32)
    >>> ptr_to_numpy(numpy_to_ptr(a), (3,), 5)
    array([0, 1, 2], dtype=int32)
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"a NumPy array is needed, got {type(array).__name__}")
    return _memory.lend(array)


def numpy_contiguous_to_ptr(array: np.ndarray) -> tuple[int, np.ndarray]:
    """Address of a contiguous copy of an array, and the copy, which must be kept alive."""
    whole = np.asarray(array, order="C")
    return numpy_to_ptr(whole), whole


def bytes_to_ptr(data: bytes) -> int:
    """The address of the content of a `bytes` object.

    >>> ptr_to_bytes(bytes_to_ptr(b"abc"), 3)
    b'abc'
    """
    if not isinstance(data, bytes | bytearray):
        raise TypeError(f"bytes are needed, got {type(data).__name__}")
    return _memory.lend(data)


get_ptr = bytes_to_ptr


def ptr_to_bytes(ptr: int, size: int) -> bytes:
    """Copy the bytes at an address."""
    _readable(ptr, size)
    return _memory.read(ptr, size)


def ptr_to_numpy(ptr: int, shape: Sequence[int], numpy_type: int) -> np.ndarray:
    """The memory at an address as an array (no copy); `numpy_type` is NumPy's number of an element type."""
    if numpy_type not in c.NPY_DTYPES:
        raise ValueError(f"{numpy_type} is not the number of a NumPy element type")
    dtype = np.dtype(c.NPY_DTYPES[numpy_type])
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    owner = _readable(ptr, size, visible=True)
    memory: Any = (ctypes.c_uint8 * size).from_address(ptr)
    memory.owner = owner  # the block outlives acl.rt.free as long as the array
    return np.frombuffer(memory, dtype).reshape(tuple(shape))


def _readable(ptr: int, size: int, *, visible: bool = False) -> object:
    try:
        if visible:
            _memory.check_visible(ptr)
        return _memory.check_range(ptr, size, write=False)
    except AclError as error:
        raise ValueError(str(error)) from error


@returns_value(0)
def start_thread(func: Callable[[Any], Any], args: Any) -> int:
    """Run `func(args)` in a new thread, for acl.rt.process_report. Returns (thread_id, ret)."""
    started = threading.Event()

    def run() -> None:
        started.set()
        func(args)

    thread = threading.Thread(target=run, name="acl-callback", daemon=True)
    thread.start()
    started.wait()
    assert thread.ident is not None
    _threads[thread.ident] = thread
    return thread.ident


vdec_start_thread = start_thread


@returns_code
def stop_thread(thread_id: int) -> None:
    """Wait for a thread to end. Returns ret."""
    thread = _threads.pop(thread_id, None)
    if thread is None:
        raise AclError(c.ACL_ERROR_INVALID_PARAM, f"{thread_id!r} is not a thread of acl.util.start_thread")
    thread.join(STOP_SECONDS)
    if thread.is_alive():
        raise AclError(c.ACL_ERROR_FAILURE, "the thread does not end")
