"""Reads and creates onnx_ir values in GE's terms (descriptions, constants)."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ge.ir.types import TensorDesc, dtype_from_ir, dtype_to_ir

__all__ = ["constant_of", "desc_of", "is_known", "make_constant", "make_value", "set_desc"]

_DESC = "ge.desc"


def is_known(value: ir.Value) -> bool:
    """True if the value has a static shape and a supported element type."""
    return _DESC in value.meta or (
        value.dtype is not None and value.shape is not None and all(isinstance(d, int) for d in value.shape)
    )


def desc_of(value: ir.Value) -> TensorDesc:
    """The static description of a value; every value of a GE graph has one."""
    meta = value.meta.data  # the plain dict: this is asked very often, and UserDict's own methods are slow
    desc: TensorDesc | None = meta.get(_DESC)
    if desc is None:
        assert value.shape is not None, f"value {value.name} has no shape"
        desc = TensorDesc(tuple(int(d) for d in value.shape), dtype_from_ir(value.dtype))  # type: ignore[arg-type]
        meta[_DESC] = desc
    return desc


def set_desc(value: ir.Value, desc: TensorDesc) -> None:
    """Set the shape and element type of a value."""
    value.shape = ir.Shape(desc.shape)
    value.type = ir.TensorType(dtype_to_ir(desc.dtype))
    value.meta[_DESC] = desc


def constant_of(value: ir.Value | None) -> np.ndarray | None:
    """The NumPy value of a constant, None for inputs and computed values."""
    if value is None or value.const_value is None:
        return None
    return value.const_value.numpy()


def make_value(name: str, desc: TensorDesc) -> ir.Value:
    """A new free value (a graph input)."""
    value = ir.Value(name=name)
    set_desc(value, desc)
    return value


def make_constant(array: Any, name: str) -> ir.Value:
    """A new constant value (not yet an initializer of any graph)."""
    array = np.asarray(array)
    if not array.flags.c_contiguous:
        array = np.asarray(array, order="C")
    tensor = ir.Tensor(array, name=name)
    value = ir.Value(name=name, const_value=tensor)
    set_desc(value, TensorDesc(tuple(array.shape), dtype_from_ir(tensor.dtype)))
    return value
