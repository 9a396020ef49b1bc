"""Tensor expressions, their NumPy interpreter, and the generator of fused CPU kernels from them."""

from tbe.dtypes import DTYPES, DType, dtype_of, numpy_dtype
from tbe.evaluate import evaluate
from tbe.expr import (
    Scalar,
    Tensor,
    binary,
    broadcast_to,
    cast,
    compute,
    concat,
    constant,
    iota,
    pad,
    placeholder,
    reduce,
    reshape,
    scan,
    select,
    slice,
    take,
    transpose,
    unary,
)
from tbe.kernel import Kernel, build
from tbe.lower import Unfusable
from tbe.schedule import Schedule, schedule
from tbe.serialize import apply_json, fingerprint, from_json, to_json
from tbe.target import runs_here

__all__ = [
    "DTYPES",
    "DType",
    "Kernel",
    "Scalar",
    "Schedule",
    "Tensor",
    "Unfusable",
    "apply_json",
    "binary",
    "broadcast_to",
    "build",
    "cast",
    "compute",
    "concat",
    "constant",
    "dtype_of",
    "evaluate",
    "fingerprint",
    "from_json",
    "iota",
    "numpy_dtype",
    "pad",
    "placeholder",
    "reduce",
    "reshape",
    "runs_here",
    "scan",
    "schedule",
    "select",
    "slice",
    "take",
    "to_json",
    "transpose",
    "unary",
]
