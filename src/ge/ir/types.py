"""Element types and tensor descriptions shared by every stage."""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx_ir as ir

__all__ = ["BOOL", "FLOATS", "INTS", "NUMBERS", "TENSORS", "TensorDesc", "dtype_from_ir", "dtype_to_ir", "numpy_dtype"]

FLOATS = frozenset({"float32", "float64", "float16", "bfloat16"})
INTS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
BOOL = frozenset({"bool"})
NUMBERS = FLOATS | INTS
TENSORS = NUMBERS | BOOL

_IR_OF = {
    "float32": ir.DataType.FLOAT,
    "float64": ir.DataType.DOUBLE,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "bool": ir.DataType.BOOL,
    **{name: ir.DataType[name.upper()] for name in INTS},
}
_NAME_OF = {value: name for name, value in _IR_OF.items()}


def dtype_to_ir(name: str) -> ir.DataType:
    """The onnx_ir data type of one of our element type names."""
    return _IR_OF[name]


def dtype_from_ir(dtype: ir.DataType | None) -> str:
    """Our element type name; raises KeyError for types that tensors here never have (strings, complex, 4-bit)."""
    return _NAME_OF[dtype]  # type: ignore[index]


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of an element type name.

    >>> numpy_dtype("float32").itemsize
    4
    """
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


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
