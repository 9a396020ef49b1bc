"""Numbers that are checked before they are read: all layouts, and the errors that name a place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npu_runtime as rt
from tests.native.native_support import Array, view

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def _check(x: Array, *, copies: bool = False, **attrs: Any) -> Array:
    """Check an array that lies in its base's memory."""
    base = x if x.base is None else x.base
    program = rt.Program("check")
    source = program.input(0, base.nbytes)
    place = (x.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // x.itemsize
    strides = tuple(s // x.itemsize for s in x.strides)
    given = (source, str(x.dtype), x.shape, strides, place)
    made = np.empty(x.shape, x.dtype)
    outputs = [view(program.output(0, made.nbytes), made)] if copies else []
    program.task("check", "the_task", [given], outputs, attrs)
    program.finalize(0)
    program.run([base], [made] if copies else [])
    return made


@pytest.mark.parametrize("dtype", INTEGERS)
def test_numbers_pass_or_are_named(dtype: str) -> None:
    x = np.array([[0, 3], [2, 4]], dtype)
    np.testing.assert_array_equal(_check(x, copies=True, limits=[5]), x)
    np.testing.assert_array_equal(_check(x, copies=True, limits=[3, 5]), x)
    with pytest.raises(rt.TaskError, match=r"rows\[1,1\] = 4 is not in \[0, 4\)"):
        _check(x, limits=[4], what="rows")
    with pytest.raises(rt.TaskError, match=r"\[0,0\] = 0 is not in \[1, 5\)"):
        _check(x, limits=[5], least=1)
    with pytest.raises(rt.TaskError, match=r"zero at \[0,0\] of d$") as caught:
        _check(x, what="d", message="zero at {place} of {what}")
    assert (caught.value.task, caught.value.kind) == ("the_task", "division")
    if dtype.startswith("int"):
        with pytest.raises(rt.TaskError, match=r"\[1\] = -5 is not in \[-4, 4\)") as caught:
            _check(np.array([-4, -5], dtype), limits=[4], from_end=True)
        assert caught.value.kind == "index"


def test_every_place_of_every_layout_is_looked_at() -> None:
    whole = np.zeros((3, 4, 5), np.int64)
    layouts = (
        whole,
        whole[:, 1],
        whole[:, :, 2],
        whole[1:, ::2, 1:4],
        whole.transpose(2, 0, 1),
        whole[:1, :, 3],
    )
    for x in layouts:
        for place in np.ndindex(x.shape):
            x[place] = 7
            words = ",".join(map(str, place))
            with pytest.raises(rt.TaskError, match=rf"\[{words}\] = 7 is not in \[0, 7\)"):
                _check(x, limits=[7])
            _check(x, limits=[8])
            x[place] = 0


def test_columns_have_limits_of_their_own() -> None:
    x = np.zeros((4, 6), np.int32)[::2, ::2]
    x[:] = [1, 2, 3]
    _check(x, limits=[2, 3, 4])
    with pytest.raises(rt.TaskError, match=r"\[0,1\] = 2 is not in \[0, 2\)"):
        _check(x, limits=[2, 2, 4])


def test_tasks_that_make_no_sense_are_refused() -> None:
    with pytest.raises(rt.UnsupportedTask, match="no integers"):
        _check(np.zeros(3, np.float32), limits=[1])
    with pytest.raises(rt.UnsupportedTask, match="one limit for each position"):
        _check(np.zeros(3, np.int32), limits=[1, 2])
