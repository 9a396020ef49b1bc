"""Converts NumPy arrays to device tensors with a single copy.

TensorFlow copies an array, so that the tensor does not change with it, and copies the copy into memory of its own where
its address suits no tensor. Most large NumPy arrays have such addresses: for them the second copy is enough.
Others are copied straight to memory of TensorFlow's, in which a variable can be written: a variable in memory of
NumPy's would be copied when it changes first. The arrays of a dataset are copied to pages of their own, which go
back to the system with the dataset.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tensorflow.python.framework import dtypes, ops
from tensorflow.python.ops import gen_array_ops

from tf_adapter.device import host_name

__all__ = ["converting_for_datasets", "converting_once"]

_ALIGNMENT = 32  # the least that a build of TensorFlow asks of a tensor's address
_LARGE = 64 << 10  # bytes from which a second copy matters
_LARGE_DATA = 1 << 20  # and from which memory of its own kind is worth while
_NO_NUMBERS = "OSUMm"  # kinds of element types that TensorFlow converts in its own way

Function = Callable[..., Any]


class _Place(threading.local):
    in_dataset = False


_place = _Place()


def converting_once(is_ours: Callable[[Any], bool]) -> Callable[[Function], Function]:
    """Wrapper of TensorFlow's conversion of values to eager tensors; `is_ours` recognises our devices' names."""

    def make(original: Function) -> Function:
        def convert(value: Any, ctx: Any, dtype: Any = None) -> Any:
            if not _is_large(value) or not is_ours(ctx.device_name):
                return original(value, ctx, dtype)
            ctx.ensure_initialized()
            own = dtypes.as_dtype(value.dtype)
            asked = own if dtype is None else dtypes.as_dtype(dtype)
            if _place.in_dataset and value.nbytes >= _LARGE_DATA:
                value = _mapped_copy(value)
            elif not (_is_misaligned(value) and _copies_misaligned()):
                if asked != own or value.nbytes < _LARGE_DATA or value.dtype.isbuiltin != 1:
                    return original(value, ctx, dtype)  # of types of others there may be no buffers
                return _copied_by_host(value, own)._copy_to_device(ctx.device_name)
            return ops.EagerTensor(value, ctx.device_name, asked.as_datatype_enum)

        return convert

    return make


def converting_for_datasets(original: Function) -> Function:
    """Wrapper of TensorFlow's conversion of a dataset's source arrays."""

    def normalize(*args: Any, **named: Any) -> Any:
        with _in_dataset():
            return original(*args, **named)

    return normalize


@contextlib.contextmanager
def _in_dataset() -> Iterator[None]:
    before, _place.in_dataset = _place.in_dataset, True
    try:
        yield
    finally:
        _place.in_dataset = before


def _is_large(value: Any) -> bool:
    if type(value) is not np.ndarray or value.nbytes < _LARGE:
        return False
    return bool(value.dtype.isbuiltin) and value.dtype.kind not in _NO_NUMBERS


def _is_misaligned(array: np.ndarray) -> bool:
    """True if an array's address is not aligned for tensors."""
    return array.flags.c_contiguous and array.ctypes.data % _ALIGNMENT != 0


def _mapped_copy(array: np.ndarray) -> np.ndarray:
    """A copy in separate pages, aligned for tensors."""
    pages = np.frombuffer(mmap.mmap(-1, array.nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    copy = pages.view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _copied_by_host(array: np.ndarray, kind: dtypes.DType) -> Any:
    """A tensor of the host with an array's contents, in memory that TensorFlow has allocated."""
    with ops.device(host_name()):
        tensor = gen_array_ops.empty(array.shape, kind)
    address = np.asarray(memoryview(tensor)).ctypes.data
    room = (ctypes.c_char * array.nbytes).from_address(address)
    np.frombuffer(memoryview(room), array.dtype).reshape(array.shape)[...] = array
    return tensor


@functools.cache
def _copies_misaligned() -> bool:
    """True if this TensorFlow copies misaligned arrays as described above; tested by modifying an array."""
    room = np.zeros(4 * _ALIGNMENT, np.uint8)
    start = (_ALIGNMENT // 2 - room.ctypes.data) % _ALIGNMENT
    array = room[start : start + _ALIGNMENT]
    tensor = ops.EagerTensor(array, host_name(), None)
    array[:] = 1
    return not tensor.numpy().any()
