"""Small programs from arrays, for the tests of the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import npu_runtime as rt

Array = np.ndarray[Any, Any]
View = tuple[int, str, Sequence[int], Sequence[int], int]

BF16 = np.dtype(ml_dtypes.bfloat16)

# What the runtime uses of this processor; kernels of our own need it, everything else does without.
_ISA = str(rt.version()["isa"])
HAS_VECTORS = _ISA not in ("sse41", "avx")
HAS_WIDE_VECTORS = _ISA.startswith("avx512")
HAS_BF16_VECTORS = HAS_WIDE_VECTORS and any(name in _ISA for name in ("bf16", "fp16", "amx"))

FLOATS = [np.dtype(np.float32), *([BF16] if HAS_BF16_VECTORS else [])]  # that they take
VECTORS = "avx512" if HAS_WIDE_VECTORS else "avx2"  # of our own kernels, in the names of their tasks

needs_avx2 = pytest.mark.skipif(not HAS_VECTORS, reason="these kernels need AVX2")
needs_wide_vectors = pytest.mark.skipif(not HAS_WIDE_VECTORS, reason="these kernels need AVX-512")
needs_bf16_vectors = pytest.mark.skipif(
    not HAS_BF16_VECTORS, reason="these kernels need AVX-512 with bfloat16"
)
needs_own_kernels = pytest.mark.usefixtures("own_kernels")  # float32 with AVX2, bfloat16 with its products


def view(buffer: int, array: Array, perm: Sequence[int] | None = None, offset: int = 0) -> View:
    """The view of a whole array, its axes optionally in another order."""
    strides = [s // array.itemsize for s in array.strides]
    order = range(array.ndim) if perm is None else perm
    return (buffer, array.dtype.name, [array.shape[p] for p in order], [strides[p] for p in order], offset)


@dataclass
class Operand:
    """An array of a task: fed at run time or constant, seen with its axes in the order ``perm``."""

    array: Array
    perm: Sequence[int] | None = None
    constant: bool = False


def constant(array: Array, perm: Sequence[int] | None = None) -> Operand:
    return Operand(array, perm, True)


def channels_last(array: Array) -> Operand:
    """A channels-first array stored channels-last: what the task sees is (N, C, spatial)."""
    order = [0, *range(2, array.ndim), 1]
    return Operand(
        np.ascontiguousarray(array.transpose(order)), [0, array.ndim - 1, *range(1, array.ndim - 1)]
    )


def single(
    kind: str,
    inputs: Sequence[Operand | Array],
    outputs: Sequence[Operand | Array],
    attrs: dict[str, Any] | None = None,
    device: int = 0,
) -> tuple[rt.Program, list[Array], list[Array]]:
    """A finalized program of one task, with the arrays to feed and to fill."""
    program = rt.Program(kind, device)
    feeds: list[Array] = []
    fills: list[Array] = []
    input_views, output_views = [], []
    for item in inputs:
        operand = item if isinstance(item, Operand) else Operand(item)
        if operand.constant:
            buffer = program.constant(operand.array)
        else:
            buffer = program.input(len(feeds), operand.array.nbytes)
            feeds.append(operand.array)
        input_views.append(view(buffer, operand.array, operand.perm))
    for item in outputs:
        operand = item if isinstance(item, Operand) else Operand(item)
        buffer = program.output(len(fills), operand.array.nbytes)
        fills.append(operand.array)
        output_views.append(view(buffer, operand.array, operand.perm))
    program.task(kind, "the_task", input_views, output_views, attrs or {})
    program.finalize(0)
    return program, feeds, fills


def run_single(
    kind: str,
    inputs: Sequence[Operand | Array],
    outputs: Sequence[Operand | Array],
    attrs: dict[str, Any] | None = None,
) -> str:
    """Runs one task, filling ``outputs``; returns the implementation's name."""
    program, feeds, fills = single(kind, inputs, outputs, attrs)
    program.run(feeds, fills)
    return str(program.task_info()[0]["impl"])


def logical(operand: Operand) -> Array:
    """An operand's array as the task sees it."""
    return operand.array if operand.perm is None else operand.array.transpose(operand.perm)


def close(actual: Array, expected: Array, tolerance: float) -> None:
    """Asserts that the largest error is within ``tolerance`` of the largest expected value."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    error = float(np.abs(actual - expected).max(initial=0.0))
    assert error <= tolerance * scale, f"error {error} of {scale}"


def randn(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)
