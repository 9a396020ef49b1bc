"""The native runtime: devices, memory, programs of tasks, and the kernels that run them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np

try:
    from ._native import (
        DeviceBuffer,
        Fetcher,
        KernelHandle,
        ObjectError,
        OutOfDeviceMemory,
        Program,
        TaskError,
        UnsupportedTask,
        aicpu_kernels,
        caches,
        chunk_sums,
        count_host_call,
        device_count,
        is_recording,
        load_kernels,
        load_object,
        memory_info,
        num_threads,
        processors,
        reclaim,
        reset_peak,
        select_device,
        selected_device,
        set_dlpack_device,
        set_memory_limit,
        set_num_threads,
        set_recording,
        take_guests_of,
        take_recording,
        trim,
        version,
    )
    from ._native import run_aicpu as _run_aicpu
except ImportError as error:
    raise ImportError(
        f"the native runtime could not be loaded ({error}). In a source tree, build it with 'make build' or "
        "'pip install --no-build-isolation -e .'"
    ) from error

from npu_runtime.environment import check_native, check_spelling

__all__ = [
    "DeviceBuffer",
    "Fetcher",
    "KernelHandle",
    "ObjectError",
    "OutOfDeviceMemory",
    "Program",
    "TaskError",
    "UnsupportedTask",
    "aicpu_kernels",
    "caches",
    "checksum",
    "count_host_call",
    "device_count",
    "is_recording",
    "load_kernels",
    "load_object",
    "memory_info",
    "num_threads",
    "numpy_dtype",
    "on_device",
    "processors",
    "reclaim",
    "reset_peak",
    "run_aicpu",
    "selected_device",
    "set_dlpack_device",
    "set_memory_limit",
    "set_num_threads",
    "set_recording",
    "take_guests_of",
    "take_recording",
    "trim",
    "version",
]

check_native()
check_spelling()


@contextmanager
def on_device(device: int) -> Iterator[None]:
    """The programs that this thread runs inside run on this device: in its memory and its threads."""
    before = select_device(device)
    try:
        yield
    finally:
        select_device(before)


def checksum(data: Any) -> bytes:
    """32 bytes that tell whether a buffer has changed, at the speed of memory; no proof against forgery.

    >>> checksum(b"weights") == checksum(b"weighty")
    False
    """
    view = memoryview(data)
    return hashlib.sha256(view.nbytes.to_bytes(8, "little") + chunk_sums(view)).digest()


_NUMPY_ONLY_NAMES = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of one of the runtime's dtype names."""
    return _NUMPY_ONLY_NAMES.get(name) or np.dtype(name)


def run_aicpu(
    op: str,
    inputs: Sequence[np.ndarray[Any, Any]],
    out_descs: Sequence[tuple[str, Sequence[int]]],
    attrs: Mapping[str, Any] | None = None,
) -> list[np.ndarray[Any, Any]]:
    """Runs one AI CPU kernel on arrays.

    ``out_descs`` gives dtype and shape of each output, at its largest; outputs whose size the kernel decides
    come back with their actual shape.
    """
    dense = [np.ascontiguousarray(array).reshape(array.shape) for array in inputs]
    outputs = [np.zeros(tuple(shape), numpy_dtype(dtype)) for dtype, shape in out_descs]
    shapes = _run_aicpu(
        op,
        [(array, array.dtype.name, array.shape) for array in dense],
        [(array, array.dtype.name, array.shape) for array in outputs],
        dict(attrs or {}),
    )
    return [_trimmed(array, shape) for array, shape in zip(outputs, shapes, strict=True)]


def _trimmed(array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The array's first elements in another shape."""
    if array.shape == shape:
        return array
    count = int(np.prod(shape, dtype=np.int64))
    return array.reshape(-1)[:count].reshape(shape)
