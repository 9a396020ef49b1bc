"""Element types and tensor descriptions shared by every stage."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = [
    "BOOL",
    "FLOATS",
    "INTS",
    "NUMBERS",
    "TENSORS",
    "TensorDesc",
    "dtype_from_ir",
    "dtype_to_ir",
    "numpy_dtype",
    "widened",
    "widest",
]

FLOATS = frozenset({"float32", "float64", "float16", "bfloat16"})
INTS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
BOOL = frozenset({"bool"})
NUMBERS = FLOATS | INTS
TENSORS = NUMBERS | BOOL
_NARROW = frozenset({"bfloat16", "float16"})

_IR_NAMES = {
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "float16": "FLOAT16",
    "bfloat16": "BFLOAT16",
    "bool": "BOOL",
}


@functools.cache
def _ir_types() -> dict[str, ir.DataType]:
    """onnx_ir's data types by our names; imported lazily, as running a model does not need onnx_ir."""
    import onnx_ir

    return {name: onnx_ir.DataType[_IR_NAMES.get(name, name.upper())] for name in TENSORS}


@functools.cache
def _names() -> dict[ir.DataType, str]:
    return {value: name for name, value in _ir_types().items()}


def dtype_to_ir(name: str) -> ir.DataType:
    """The onnx_ir data type of an element type name."""
    return _ir_types()[name]


def dtype_from_ir(dtype: ir.DataType | None) -> str:
    """Our element type name; KeyError for types that our tensors never have (strings, complex, 4-bit)."""
    return _names()[dtype]  # type: ignore[index]


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of an element type name.

    >>> numpy_dtype("float32").itemsize
    4
    """
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def widened(dtype: str) -> str:
    """The accumulation type of an element type: float32 for 16-bit floats.

    >>> widened("bfloat16"), widened("float64")
    ('float32', 'float64')
    """
    return "float32" if dtype in _NARROW else dtype


def widest(dtype: str) -> str:
    """The integer type of 64 bits with the sign of another.

    >>> widest("int8"), widest("uint32")
    ('int64', 'uint64')
    """
    return "uint64" if dtype.startswith("u") else "int64"


@dataclass(frozen=True, slots=True)
class TensorDesc:
    """Shape and element type of a tensor.

    >>> TensorDesc((2, 3), "float32").nbytes
    24
    """

    shape: tuple[int, ...]
    dtype: str

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * numpy_dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"
