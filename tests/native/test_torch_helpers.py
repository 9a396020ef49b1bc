"""What the runtime has for PyTorch's tensors: the device of a DLPack capsule, and memory fetched ahead."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import npu_runtime

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def test_the_device_of_a_capsule_is_written() -> None:
    array = np.arange(6.0)
    capsule = array.__dlpack__()
    head = (ctypes.c_int64 * 2).from_address(_pointer(capsule, b"dltensor"))
    before = head[0], head[1]
    npu_runtime.set_dlpack_device(capsule, 12)
    assert head[0] == before[0] == array.ctypes.data
    assert ctypes.c_int32(head[1]).value == 12
    assert head[1] >> 32 == before[1] >> 32  # the number of the device stays
    npu_runtime.set_dlpack_device(capsule, 1)
    assert (head[0], head[1]) == before


@pytest.mark.parametrize("wrong", [3, np.ones(2)])
def test_other_objects_are_no_capsules(wrong: object) -> None:
    with pytest.raises(ValueError, match="PyCapsule"):
        npu_runtime.set_dlpack_device(wrong, 12)


def test_fetching_is_a_hint() -> None:
    array = np.ones(1 << 10)
    fetch = npu_runtime.Fetcher([0, 64, array.ctypes.data, id(array), (1 << 64) - 64])
    assert fetch() is None
    assert npu_runtime.Fetcher([])() is None
    assert array.sum() == 1 << 10
