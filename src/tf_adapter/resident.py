"""Layouts of the values that graph parts pass to each other in a shared arena, by number."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ge.build.memory import ALIGNMENT
from ge.ir.types import numpy_dtype
from npu_runtime import tensorflow as native

__all__ = ["Given", "Layout", "Place", "given_inputs", "layout_of", "number_of", "packed"]


class Place(NamedTuple):
    """A result of a part and its offset in the arena."""

    result: int
    offset: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """
        >>> Place(0, 64, "float32", (2, 3)).nbytes
        24
        """
        return int(np.prod(self.shape, dtype=np.int64)) * numpy_dtype(self.dtype).itemsize


Layout = tuple[Place, ...]

_lock = threading.Lock()
_layouts: list[Layout] = [()]
_numbers: dict[Layout, int] = {(): 0}


def number_of(layout: Layout) -> int:
    """The number that stands for a layout in the graph; 0 for nothing.

    >>> number_of(())
    0
    """
    with _lock:
        if layout not in _numbers:
            _numbers[layout] = len(_layouts)
            _layouts.append(layout)
        return _numbers[layout]


def layout_of(number: int) -> Layout:
    """The layout that a number stands for.

    >>> layout_of(number_of((Place(0, 64, "float32", (2, 3)),)))
    (Place(result=0, offset=64, dtype='float32', shape=(2, 3)),)
    """
    with _lock:
        return _layouts[number]


@dataclass(frozen=True)
class Given:
    """An input that another part left, as the compiler sees it."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    arena: int = 0  # the number of its arena; 0 before the run
    kind: str = "tensor"
    version: int = 0
    variable: int = 0

    def numpy(self) -> np.ndarray:
        """A copy of the value."""
        kind = numpy_dtype(self.dtype)
        nbytes = int(np.prod(self.shape, dtype=np.int64)) * kind.itemsize
        raw = native.arena_bytes(self.arena, self.offset, nbytes)
        return np.frombuffer(raw, kind).reshape(self.shape)


def given_inputs(layout: Layout, arena: int = 0) -> dict[int, Given]:
    """What a layout holds, by the number of the result it is."""
    return {p.result: Given(p.dtype, p.shape, p.offset, arena) for p in layout}


def packed(results: Sequence[np.ndarray], left: Sequence[int]) -> np.ndarray:
    """How results of the host go to the device's memory: the number of the layout, its size, and their places."""
    places, end = [], 0
    for result in left:
        array = results[result]
        places.append(Place(result, end, str(array.dtype), tuple(array.shape)))
        end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    return np.array([number_of(tuple(places)), end, *(p.offset for p in places)], np.int64)
