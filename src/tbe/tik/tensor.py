"""Tensors of a TIK program: memory in a scope, and views of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tbe.dtypes import DTYPES
from tbe.tik.expression import Expression, TikError, Variable

if TYPE_CHECKING:
    from tbe.tik.builder import Tik

__all__ = ["SCOPES", "Scalar", "Tensor"]

SCOPES = (
    "scope_gm",
    "scope_ubuf",
    "scope_cbuf",
    "scope_cbuf_out",
    "scope_ca",
    "scope_cb",
    "scope_cc",
    "scope_ubuf_out",
)
# Sizes of a core's memories in bytes; the simultaneously live tensors must fit.
CAPACITY = {
    "local.UB": 256 << 10,
    "local.L1": 1 << 20,
    "local.L1_out_buffer": 1 << 20,
    "local.L0A": 64 << 10,
    "local.L0B": 64 << 10,
    "local.L0C": 256 << 10,
}


class Memory:
    """The allocation of a tensor."""

    def __init__(
        self, name: str, dtype: str, size: int, scope: str, init: Any = None, workspace: bool = False
    ) -> None:
        self.name, self.dtype, self.size, self.scope, self.init = name, dtype, size, scope, init
        self.workspace = workspace

    @property
    def nbytes(self) -> int:
        return self.size * DTYPES[self.dtype].size


class Tensor:
    """A tensor, or an offset in one at which an instruction reads or writes."""

    def __init__(
        self, owner: Tik, memory: Memory, shape: tuple[int, ...], offset: Any = 0, dtype: str = ""
    ) -> None:
        self.owner, self.memory, self._shape, self.offset = owner, memory, shape, offset
        self.dtype = dtype or memory.dtype

    @property
    def shape(self) -> list[int]:
        return list(self._shape)

    @property
    def scope(self) -> str:
        return self.memory.scope

    @property
    def name(self) -> str:
        return self.memory.name

    @property
    def size(self) -> int:
        return math.prod(self._shape)

    def __getitem__(self, index: Any) -> Tensor:
        """Offset by an index of each axis or a flat index; slices use their start."""
        places = index if isinstance(index, tuple) else (index,)
        places = tuple(_start(p) for p in places)
        if len(places) == 1:  # a single index counts elements, also for several axes
            offset: Any = places[0]
        elif len(places) <= len(self._shape):
            offset = 0
            for axis, place in enumerate(places):
                offset = offset + place * self._stride(axis)
        else:
            raise TikError(f"{len(places)} indices of {self.name}, which has {len(self._shape)} axes")
        return Tensor(self.owner, self.memory, self._shape, self.offset + offset, self.dtype)

    def _stride(self, axis: int) -> int:
        return math.prod(self._shape[axis + 1 :])

    def __setitem__(self, index: Any, value: Any) -> None:
        self[index].set_as(value)

    def set_as(self, value: Any) -> None:
        """Write one element."""
        self.owner.store(self, value)

    def set_value(self, value: Any) -> None:
        """Write one element."""
        self.set_as(value)

    def reshape(self, shape: Any) -> Tensor:
        """The same memory under another shape."""
        wanted = tuple(int(d) for d in shape)
        if math.prod(wanted) != self.size:
            raise TikError(f"{self.name} of shape {self.shape} cannot be {list(wanted)}")
        return Tensor(self.owner, self.memory, wanted, self.offset, self.dtype)

    def reinterpret_cast_to(self, dtype: str) -> Tensor:
        """The same bytes as another type."""
        old, new = DTYPES[self.dtype].size, DTYPES[dtype].size
        last = self._shape[-1] * old
        if last % new:
            raise TikError(f"the last axis of {self.name} has {last} bytes, which are no whole {dtype}")
        return Tensor(
            self.owner, self.memory, (*self._shape[:-1], last // new), self.offset * old // new, dtype
        )

    # An element as a number in an expression.
    def element(self) -> Expression:
        """The element at this place."""
        return Expression("element", (self,), self.dtype)

    def __add__(self, other: Any) -> Expression:
        return self.element() + other

    def __sub__(self, other: Any) -> Expression:
        return self.element() - other

    def __mul__(self, other: Any) -> Expression:
        return self.element() * other


def _start(index: Any) -> Any:
    if isinstance(index, slice):
        return 0 if index.start is None else index.start
    if isinstance(index, int | Expression):
        return index
    raise TikError(f"{index!r} is no index")


class Scalar(Variable):
    """A named number that instructions assign."""

    def __init__(self, owner: Tik, dtype: str, name: str) -> None:
        super().__init__(dtype, name)
        self.owner = owner

    def set_as(self, value: Any) -> None:
        """Assign a number, an expression or an element of a tensor."""
        self.owner.assign(self, value)
