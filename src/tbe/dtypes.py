"""The element types of tensors: names, sizes and their NumPy counterparts."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

__all__ = ["DTYPES", "DType", "dtype_of", "numpy_dtype"]


@dataclass(frozen=True)
class DType:
    """One element type: its name, its kind, its stored size in bits, and NumPy's type for it."""

    name: str
    kind: str  # "float", "int", "uint" or "bool"
    bits: int  # significant bits in memory; a bool is stored as one byte
    numpy: np.dtype

    @property
    def size(self) -> int:
        """Bytes of one element in memory."""
        return max(self.bits // 8, 1)

    @property
    def is_float(self) -> bool:
        """True for a floating-point type."""
        return self.kind == "float"

    @property
    def is_int(self) -> bool:
        """True for a signed or unsigned integer type (not bool)."""
        return self.kind in ("int", "uint")

    @property
    def min(self) -> int | float:
        """The smallest value: minus infinity for floats."""
        return {"float": float("-inf"), "int": -(1 << (self.bits - 1))}.get(self.kind, 0)

    @property
    def max(self) -> int | float:
        """The largest value: infinity for floats."""
        table = {"float": float("inf"), "int": (1 << (self.bits - 1)) - 1, "bool": 1}
        return table.get(self.kind, (1 << self.bits) - 1)


DTYPES: dict[str, DType] = {
    name: DType(name, kind, bits, np.dtype(numpy))
    for name, kind, bits, numpy in (
        ("float64", "float", 64, np.float64),
        ("float32", "float", 32, np.float32),
        ("float16", "float", 16, np.float16),
        ("bfloat16", "float", 16, ml_dtypes.bfloat16),
        ("int64", "int", 64, np.int64),
        ("int32", "int", 32, np.int32),
        ("int16", "int", 16, np.int16),
        ("int8", "int", 8, np.int8),
        ("uint64", "uint", 64, np.uint64),
        ("uint32", "uint", 32, np.uint32),
        ("uint16", "uint", 16, np.uint16),
        ("uint8", "uint", 8, np.uint8),
        ("bool", "bool", 1, np.bool_),
    )
}


def dtype_of(name: str) -> DType:
    """The description of the type called `name`."""
    try:
        return DTYPES[name]
    except (KeyError, TypeError):
        raise TypeError(f"unknown dtype {name!r}; expected one of {', '.join(DTYPES)}") from None


def numpy_dtype(name: str) -> np.dtype:
    """NumPy's type for the type called `name`."""
    return dtype_of(name).numpy
