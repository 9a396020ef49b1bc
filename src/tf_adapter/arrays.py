"""NumPy arrays that become tensors of the device: copied once.

TensorFlow copies an array, so that the tensor does not change with it, and copies the copy into memory of its own where
its address suits no tensor. Most large arrays of NumPy lie at such addresses: of those the second copy is enough. Other
arrays, and what datasets are made of, are copied to pages of their own, which suit a tensor and which the system has
back when the tensor or the dataset is gone.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tensorflow.python.framework import dtypes, ops

__all__ = ["converting_for_datasets", "converting_once"]

_ALIGNMENT = 32  # the least that a build of TensorFlow asks of a tensor's address
_LARGE = 64 << 10  # bytes from which a second copy matters
_LARGE_DATA = 1 << 20  # and from which pages of its own are worth while
_NO_NUMBERS = "OSUMm"  # kinds of element types that TensorFlow converts in its own way
_HOST = "/job:localhost/replica:0/task:0/device:CPU:0"

Function = Callable[..., Any]


class _Place(threading.local):
    in_dataset = False


_place = _Place()


def converting_once(is_ours: Callable[[Any], bool]) -> Callable[[Function], Function]:
    """What to put around TensorFlow's conversion of values to eager tensors; `is_ours` knows our devices' names."""

    def make(original: Function) -> Function:
        def convert(value: Any, ctx: Any, dtype: Any = None) -> Any:
            if not _is_large(value) or not is_ours(ctx.device_name):
                return original(value, ctx, dtype)
            ctx.ensure_initialized()
            copied_anyway = _lies_askew(value) and _copies_what_lies_askew()
            if value.nbytes >= _LARGE_DATA and (_place.in_dataset or not copied_anyway):
                value = _mapped_copy(value)
            elif not copied_anyway:
                return original(value, ctx, dtype)
            kind = None if dtype is None else dtypes.as_dtype(dtype).as_datatype_enum
            return ops.EagerTensor(value, ctx.device_name, kind)

        return convert

    return make


def converting_for_datasets(original: Function) -> Function:
    """What to put around TensorFlow's conversion of what a dataset is made of."""

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


def _lies_askew(array: np.ndarray) -> bool:
    """Whether an array lies where no tensor can."""
    return array.flags.c_contiguous and array.ctypes.data % _ALIGNMENT != 0


def _mapped_copy(array: np.ndarray) -> np.ndarray:
    """A copy in pages of its own, where a tensor can lie."""
    pages = np.frombuffer(mmap.mmap(-1, array.nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    copy = pages.view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@functools.cache
def _copies_what_lies_askew() -> bool:
    """Whether this TensorFlow does what is said above, found out by changing an array behind a tensor's back."""
    room = np.zeros(4 * _ALIGNMENT, np.uint8)
    start = (_ALIGNMENT // 2 - room.ctypes.data) % _ALIGNMENT
    array = room[start : start + _ALIGNMENT]
    tensor = ops.EagerTensor(array, _HOST, None)
    array[:] = 1
    return not tensor.numpy().any()
