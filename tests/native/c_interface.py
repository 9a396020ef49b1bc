"""npu/npu.h through ctypes: the library that C and C++ applications link, in the process of the tests."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import npu_runtime

RANK = 32


class Array(ctypes.Structure):
    """npu_array"""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("dims", ctypes.c_int64 * RANK),
        ("rank", ctypes.c_size_t),
    )


class TensorInfo(ctypes.Structure):
    """npu_tensor_info"""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("dtype", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("format", ctypes.c_char_p),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_size_t),
        ("bytes", ctypes.c_size_t),
        ("dynamic", ctypes.c_int32),
    )


class LoadOptions(ctypes.Structure):
    """npu_load_options"""

    _fields_ = (("size", ctypes.c_uint32), ("device", ctypes.c_int32), ("trust", ctypes.c_int32))


class Failed(Exception):
    """A status that is not NPU_OK."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.code = f"E{status}"


@functools.cache
def library() -> ctypes.CDLL:
    """libnpu.so, with the types of what is not an int."""
    found = ctypes.CDLL(str(Path(npu_runtime.__file__).parent / "libnpu.so"))
    for name in ("npu_model_name", "npu_last_error", "npu_dtype_name"):
        getattr(found, name).restype = ctypes.c_char_p
    for name in (
        "npu_model_input_count",
        "npu_model_output_count",
        "npu_model_gear_count",
        "npu_dtype_bytes",
    ):
        getattr(found, name).restype = ctypes.c_size_t
    found.npu_buffer_data.restype = ctypes.c_void_p
    return found


def check(status: int) -> None:
    """Raise where a call failed."""
    if status:
        raise Failed(status, library().npu_last_error().decode())


def array(values: np.ndarray) -> Array:
    """An array as C sees it."""
    return Array(values.ctypes.data, values.nbytes, (ctypes.c_int64 * RANK)(*values.shape), values.ndim)


class Model:
    """npu_model"""

    def __init__(self, source: Path | bytes, trust: bool = False, device: int = 0) -> None:
        self.handle = ctypes.c_void_p()
        options = ctypes.byref(LoadOptions(ctypes.sizeof(LoadOptions), device, trust))
        if isinstance(source, bytes):
            size = ctypes.c_size_t(len(source))
            check(library().npu_model_load_memory(source, size, options, ctypes.byref(self.handle)))
        else:
            check(library().npu_model_load(str(source).encode(), options, ctypes.byref(self.handle)))

    def __del__(self) -> None:
        library().npu_model_free(self.handle)

    def info(self, side: str, index: int = 0, gear: int = 0) -> TensorInfo:
        """The description of an "input" or "output"."""
        info = TensorInfo(ctypes.sizeof(TensorInfo))
        ask = getattr(library(), f"npu_model_{side}")
        check(ask(self.handle, ctypes.c_size_t(gear), ctypes.c_size_t(index), ctypes.byref(info)))
        return info

    def gear(self, feeds: Sequence[np.ndarray]) -> int:
        """The gear for some inputs."""
        found = ctypes.c_size_t()
        given = (Array * len(feeds))(*map(array, feeds))
        check(
            library().npu_model_find_gear(
                self.handle, given, ctypes.c_size_t(len(feeds)), ctypes.byref(found)
            )
        )
        return found.value

    def run(
        self, feeds: Sequence[np.ndarray], results: Sequence[np.ndarray], gear: int = 0, stream: Any = None
    ) -> Any:
        """Run into arrays; the output arrays as C sees them."""
        given, wanted = (Array * len(feeds))(*map(array, feeds)), (Array * len(results))(*map(array, results))
        sizes = [ctypes.c_size_t(len(side)) for side in (feeds, results)]
        arguments = (self.handle, ctypes.c_size_t(gear), given, sizes[0], wanted, sizes[1])
        if stream is None:
            check(library().npu_model_run(*arguments))
        else:
            check(library().npu_model_run_async(*arguments, stream))
        return wanted
