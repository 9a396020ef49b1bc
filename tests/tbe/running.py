"""Runs generated kernels in this process and compares them with the interpreter."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence

import llvmlite.binding as llvm
import numpy as np

import tbe

_names = itertools.count()
_jit: list = []
_loaded: dict[int, tuple] = {}
_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def load(kernel: tbe.Kernel):
    """The kernel as a callable (args pointer, lo, hi)."""
    found = _loaded.get(id(kernel))
    if found is None:
        if not _jit:
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            target = llvm.Target.from_default_triple().create_target_machine(jit=True)
            _jit.append(llvm.create_lljit_compiler(target))
        library = llvm.JITLibraryBuilder().add_object_img(kernel.object).export_symbol(kernel.symbol)
        tracker = library.link(_jit[0], f"library{next(_names)}")
        found = _loaded[id(kernel)] = (kernel, tracker, _SIGNATURE(tracker[kernel.symbol]))
    return found[2]


def call(
    kernel: tbe.Kernel, arrays: Sequence[np.ndarray], ranges: Sequence[tuple[int, int]] | None = None
) -> None:
    """Run a kernel on arrays (inputs, then outputs) over the given ranges."""
    pointers = (ctypes.c_void_p * len(arrays))(*[a.ctypes.data for a in arrays])
    function = load(kernel)
    for lo, hi in ranges if ranges is not None else [(0, kernel.total)]:
        function(ctypes.addressof(pointers), lo, hi)


GUARD = 64


def guarded(tensor: tbe.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """An array with a guard zone on both sides, and the whole of it as bytes."""
    dtype = tbe.numpy_dtype(tensor.dtype)
    count = int(np.prod(tensor.shape, dtype=np.int64)) * dtype.itemsize
    raw = np.full(count + 2 * GUARD, 0xA5, np.uint8)
    return raw[GUARD : GUARD + count].view(dtype).reshape(tensor.shape), raw


def run(inputs, outputs, values, target="host", ranges=None, processor=None) -> list[np.ndarray]:
    """Compile and run; checks that nothing outside the outputs was written."""
    kernel = tbe.build(inputs, outputs, target, processor=processor)
    arrays = [np.ascontiguousarray(values[t]) for t in inputs]
    results = [guarded(t) for t in outputs]
    before = [a.copy() for a in arrays]
    call(kernel, [*arrays, *[a for a, _ in results]], ranges)
    for array, raw in results:
        assert (raw[:GUARD] == 0xA5).all() and (raw[GUARD + array.nbytes :] == 0xA5).all(), (
            "wrote outside an output"
        )
    for a, b in zip(arrays, before, strict=False):
        assert a.tobytes() == b.tobytes(), "wrote to an input"
    return [a for a, _ in results]


def split_ranges(total: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """The whole range in random pieces in random order."""
    cuts = sorted({0, total, *rng.integers(0, total + 1, 3).tolist()})
    pieces = list(itertools.pairwise(cuts))
    rng.shuffle(pieces)
    return [tuple(p) for p in pieces]


def check(inputs, outputs, values, target="host", rtol=1e-5, atol=1e-6, processor=None) -> None:
    """The kernel gives what the interpreter gives, whole and in pieces."""
    expected = tbe.evaluate(outputs, values)
    got = run(inputs, outputs, values, target, processor=processor)
    for t, a, b in zip(outputs, got, expected, strict=False):
        compare(a, b, t.dtype, rtol, atol)
    kernel = tbe.build(inputs, outputs, target, processor=processor)
    pieces = split_ranges(kernel.total, np.random.default_rng(kernel.total))
    again = run(inputs, outputs, values, target, pieces, processor)
    for a, b in zip(got, again, strict=False):
        assert a.tobytes() == b.tobytes(), f"ranges {pieces} give another answer"


def compare(got: np.ndarray, expected: np.ndarray, dtype: str, rtol: float, atol: float) -> None:
    """Equal for integers and bools, close for floats."""
    if tbe.dtype_of(dtype).is_float:
        extra = {"float16": 2e-3, "bfloat16": 1.6e-2}.get(dtype, 0.0)
        np.testing.assert_allclose(
            got.astype(np.float64), expected.astype(np.float64), rtol=rtol + extra, atol=atol, equal_nan=True
        )
    else:
        np.testing.assert_array_equal(got, expected)
