"""Runs GPU kernels thread by thread on the simulated CUDA driver and compares them with the interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

import tbe
from npu_runtime import cuda
from tbe import cuda as gpu
from tests.tbe.running import compare

__all__ = ["check", "simulate"]


def simulate(
    inputs: Sequence[tbe.Tensor], outputs: Sequence[tbe.Tensor], values: Mapping[tbe.Tensor, np.ndarray]
) -> list[np.ndarray]:
    """The outputs that the threads of the whole grid write."""
    kernel = gpu.build(inputs, outputs, "sm_90", simulated=True)
    stream = cuda.Stream(0)
    arrays = [np.ascontiguousarray(values[t]) for t in inputs]
    results = [np.empty(t.shape, tbe.numpy_dtype(t.dtype)) for t in outputs]
    memory = [cuda.Memory(0, a.nbytes) for a in [*arrays, *results]]
    for place, array in zip(memory, arrays, strict=False):
        place.upload(stream, _bytes(array))
    for place, array in zip(memory[len(arrays) :], results, strict=True):
        stream.fill(place.address, 0xA5, max(array.nbytes, 1))  # shows what no thread writes
    if kernel.blocks:
        module = cuda.Module(0, kernel.code)
        stream.launch(module, kernel.symbol, kernel.blocks, kernel.threads, [m.address for m in memory])
    for place, array in zip(memory[len(arrays) :], results, strict=True):
        place.download(stream, _bytes(array))
    return results


def check(
    inputs: Sequence[tbe.Tensor],
    outputs: Sequence[tbe.Tensor],
    values: Mapping[tbe.Tensor, np.ndarray],
    rtol: float = 1e-5,
    atol: float = 1e-6,
    architecture: str = "sm_90",
) -> None:
    """The simulation gives what the interpreter gives, and LLVM turns the same kernel into PTX."""
    expected = tbe.evaluate(outputs, values)
    for t, got, want in zip(outputs, simulate(inputs, outputs, values), expected, strict=True):
        compare(got, want, t.dtype, rtol, atol)
    kernel = gpu.build(inputs, outputs, architecture)
    text = kernel.code.decode()
    assert f".target {architecture}" in text
    assert f".entry {kernel.symbol}(" in text
    assert f".maxntid {kernel.threads}" in text


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)
