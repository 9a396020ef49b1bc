"""Trials: check that the candidates of a library call give the same results on random operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

import tbe
from ge.ir.types import numpy_dtype
from ge.plan import Task, View
from npu_runtime import cuda

if TYPE_CHECKING:
    from ge.model.cuda.program import _Loaded

__all__ = ["Trial"]

_BLOCK = 1 << 20
_NAN_BYTE = 0xFF  # repeated, it is NaN in every float type
# The largest difference relative to the largest result: float32 sums in other orders, and rounding of the result.
_TOLERANCES = {"float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2, "int32": 0.0}


class Trial:
    """One task on random operands: `keep` records the reference result, `agrees` compares another with it."""

    def __init__(self, program: _Loaded, task: Task) -> None:
        self.program = program
        self.result = task.outputs[0]
        for view in task.inputs:
            if program.plan.buffers[view.buffer].kind in ("arena", "input"):
                self._randomise(view)
        self.bytes = _reach(self.result) * numpy_dtype(self.result.dtype).itemsize
        self.right = cuda.Memory(program.device, self.bytes, "a result to compare with")
        self.found = cuda.Memory(program.device, 8, "differences")
        self._compare = self._comparison()

    def keep(self) -> None:
        """Record the current result as the reference."""
        self.program.stream.copy(self.right.address, self.program.address(self.result), self.bytes)

    def poison(self) -> None:
        """Fill the result with NaN, so that elements which a candidate does not write are detected."""
        if _is_dense(self.result):
            self.program.stream.fill(self.program.address(self.result), _NAN_BYTE, self.bytes)

    def agrees(self) -> bool:
        """True if the result differs from the reference only by rounding."""
        self._compare()
        numbers = np.empty(2, np.float32)
        self.found.download(self.program.stream, numbers.view(np.uint8))
        difference, largest = (float(n) for n in numbers)
        return difference <= _TOLERANCES[self.result.dtype] * max(largest, 1e-30)  # false for NaN

    def _randomise(self, view: View) -> None:
        block = np.random.default_rng(0).standard_normal(_BLOCK, np.float32)
        block *= 40 if view.dtype == "int8" else 1
        values = block.astype(numpy_dtype(view.dtype)).view(np.uint8)
        memory = cuda.Memory(self.program.device, values.nbytes, "random operands")
        memory.upload(self.program.stream, values)
        begin, left = self.program.address(view), _reach(view) * numpy_dtype(view.dtype).itemsize
        while left > 0:
            size = min(left, values.nbytes)
            self.program.stream.copy(begin, memory.address, size)
            begin, left = begin + size, left - size
        self.program.stream.synchronize()

    def _comparison(self) -> Callable[[], None]:
        """A kernel for the largest difference and the largest result; gaps between the rows of a view count too."""
        sizes = _factors(_reach(self.result))
        found, right = (tbe.placeholder(sizes, self.result.dtype) for _ in range(2))
        wide = [tbe.cast(t, "float32") for t in (found, right)]
        pair = [tbe.unary("abs", wide[0] - wide[1]), tbe.unary("abs", wide[1])]
        rows = [tbe.reduce("max", t, [1]) for t in pair]
        first = self.program.built([found, right], rows)
        between = [cuda.Memory(self.program.device, 4 * sizes[0], "differences") for _ in range(2)]
        lines = [tbe.placeholder((1, sizes[0]), "float32") for _ in range(2)]
        second = self.program.built(lines, [tbe.reduce("max", t, [1]) for t in lines])
        numbers = [cuda.Memory(self.program.device, 4, "differences") for _ in range(2)]
        steps = [
            self.program.launcher(
                first, [self.program.address(self.result), self.right.address, *(m.address for m in between)]
            ),
            self.program.launcher(second, [m.address for m in (*between, *numbers)]),
        ]

        def run() -> None:
            for step in steps:
                step()
            for place, memory in enumerate(numbers):
                self.program.stream.copy(self.found.address + 4 * place, memory.address, 4)

        return run


def _reach(view: View) -> int:
    """Elements from the first to the last of a view."""
    return 1 + sum((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True))


def _is_dense(view: View) -> bool:
    """True if a view fills its memory, in any axis order.

    >>> _is_dense(View(0, "float32", (2, 3, 4), (12, 1, 3)))
    True
    """
    return _reach(view) == math.prod(view.shape)


def _factors(size: int) -> tuple[int, int]:
    """A size as rows of at most a few thousand elements.

    >>> _factors(1 << 20)
    (512, 2048)
    """
    columns = next(n for n in range(min(size, 2048), 0, -1) if size % n == 0)
    return size // columns, columns
