"""Matrix products as programs of one task, with all layouts and what may follow them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import npu_runtime as rt

EPILOGUES = {
    "none": [],
    "relu": ["relu"],
    "clip": ["clip,-1.5,2.5"],
    "gelu_erf": ["gelu_erf"],
    "gelu_tanh": ["gelu_tanh"],
    "add": ["add"],
    "row": ["row"],
    "row, add": ["row", "add"],
    "row, sum, relu": ["row", "sum", "relu"],
    "add, gelu": ["add", "gelu_erf"],
    "sum": ["sum"],
    "sum, relu": ["sum", "relu"],
    "mul": ["mul"],
    "row, mul, relu": ["row", "mul", "relu"],
}


def _erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf)(x)


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "clip": lambda x: np.clip(x, -1.5, 2.5),
    "gelu_erf": lambda x: 0.5 * x * (1 + _erf(x / np.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "add": lambda x: x,
    "row": lambda x: x,
    "sum": lambda x: x,
    "mul": lambda x: x,
}


def view_of(buffer: int, array: np.ndarray) -> tuple:
    return (buffer, array.dtype.name, array.shape, tuple(s // array.itemsize for s in array.strides), 0)


def stored(values: np.ndarray, transposed: bool, margin: int) -> np.ndarray:
    """The same matrix, by rows or by columns, with space between its lines."""
    shape = values.shape[::-1] if transposed else values.shape
    whole = np.full((shape[0], shape[1] + margin), np.nan, values.dtype)
    whole[:, : shape[1]] = values.T if transposed else values
    part = whole[:, : shape[1]]
    return part.T if transposed else part


def product(
    a: np.ndarray,
    b: np.ndarray,
    bias: np.ndarray | None = None,
    post_ops: list[str] | None = None,
    other: np.ndarray | None = None,
    algorithm: str = "strassen",
    margin: int = 0,
    dtype: Any = None,
) -> tuple[np.ndarray, str]:
    """The product and the implementation that made it.

    The result has the operands' type unless another is asked for. "row" stands for the addition of the bias
    as a post-operation; `other` is added, multiplied, or what the result is added to.
    """
    ops = post_ops or []
    has_bias = bias is not None and "row" not in ops
    whole = np.full((a.shape[0], b.shape[1] + margin), 7.0, dtype or a.dtype)
    y = whole[:, : b.shape[1]]
    program = rt.Program("product")
    feeds = [a, b]
    if bias is not None:
        feeds.append(bias if has_bias else bias[None])
    if {"add", "mul"} & set(ops):
        residual = stored(other, False, margin)
        feeds.append(residual)
    if "sum" in ops:
        y[...] = other
    memories = [f if f.base is None or f.flags.c_contiguous else f.base for f in feeds]
    memories = [m if m.flags.c_contiguous else m.T for m in memories]
    inputs = [
        view_of(program.input(i, m.nbytes), f) for i, (f, m) in enumerate(zip(feeds, memories, strict=True))
    ]
    out = view_of(program.output(0, whole.nbytes), y)
    names = ["add" if op == "row" else op for op in ops]
    attrs = {"has_bias": has_bias, "post_ops": names, "algorithm": algorithm}
    program.task("matmul", "product", inputs, [out], attrs)
    program.finalize(0)
    program.run(memories, [whole])
    assert (whole[:, b.shape[1] :] == 7.0).all(), "written outside of the result"
    return y, program.task_info()[0]["impl"]


def exact_product(
    a: np.ndarray, b: np.ndarray, bias: np.ndarray | None, post_ops: list[str], other: np.ndarray
) -> np.ndarray:
    """The same in float64."""
    y = a.astype(np.float64) @ b.astype(np.float64)
    y += 0 if bias is None else bias.astype(np.float64)
    y += other.astype(np.float64) if {"add", "sum"} & set(post_ops) else 0
    y *= other.astype(np.float64) if "mul" in post_ops else 1
    for op in post_ops:
        y = ACTIVATIONS[op.partition(",")[0]](y)
    return y
