"""Tensor expressions, their NumPy interpreter, and the generator of fused CPU kernels from them."""

from typing import Any

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
from tbe.kernel_sequence import KernelSequence, in_two_steps, split_into_kernels
from tbe.lower import Unfusable
from tbe.processor import Processor
from tbe.schedule import Schedule, schedule
from tbe.serialize import apply_json, fingerprint, from_json, to_json
from tbe.substitute import substitute
from tbe.target import code_identity, runs_here


def run_operator(function: Any, *arrays: Any, **options: Any) -> Any:
    """Build an operator of the vector DSL for arrays and run it on them; see tbe.dsl.run_operator."""
    from tbe.dsl.running import run_operator as run

    return run(function, *arrays, **options)


__all__ = [
    "DTYPES",
    "DType",
    "Kernel",
    "KernelSequence",
    "Processor",
    "Scalar",
    "Schedule",
    "Tensor",
    "Unfusable",
    "apply_json",
    "binary",
    "broadcast_to",
    "build",
    "cast",
    "code_identity",
    "compute",
    "concat",
    "constant",
    "dtype_of",
    "evaluate",
    "fingerprint",
    "from_json",
    "in_two_steps",
    "iota",
    "numpy_dtype",
    "pad",
    "placeholder",
    "reduce",
    "reshape",
    "run_operator",
    "runs_here",
    "scan",
    "schedule",
    "select",
    "slice",
    "split_into_kernels",
    "substitute",
    "take",
    "to_json",
    "transpose",
    "unary",
]
