"""The functions of `tbe.tvm`, as some operator files import them."""

from tbe.tvm import (
    all,
    any,
    cast,
    compute,
    const,
    convert,
    max,
    min,
    placeholder,
    reduce_axis,
    select,
    sum,
    var,
)

__all__ = [
    "all",
    "any",
    "cast",
    "compute",
    "const",
    "convert",
    "max",
    "min",
    "placeholder",
    "reduce_axis",
    "select",
    "sum",
    "var",
]
