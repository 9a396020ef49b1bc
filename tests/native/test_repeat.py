"""A program that works through its inputs in steps of a batch."""

from __future__ import annotations

import numpy as np
import pytest

import npu_runtime as rt


def _copy_program(times: int) -> rt.Program:
    program = rt.Program("steps")
    x, y = program.input(0, 12), program.output(0, 12)
    program.task("copy", "copy", [(x, "float32", (3,), (1,), 0)], [(y, "float32", (3,), (1,), 0)], {})
    program.repeat(times, [12], [12])
    program.finalize(0)
    return program


def test_inputs_and_outputs_advance() -> None:
    x = np.arange(12, dtype=np.float32)
    y = np.zeros(12, np.float32)
    program = _copy_program(4)
    for _ in range(2):
        y[:] = 0
        program.run([x], [y])
        np.testing.assert_array_equal(y, x)


def test_arrays_that_are_too_small_are_refused() -> None:
    with pytest.raises(ValueError, match="bytes"):
        _copy_program(4).run([np.zeros(9, np.float32)], [np.zeros(12, np.float32)])
