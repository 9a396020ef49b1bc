"""Implementations of cube operations on NVIDIA GPUs: cuBLASLt's products, cuDNN's convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ge.implementations.base import Candidate, Operation
from ge.implementations.decomposed import Decomposed
from ge.implementations.epilogues import is_like
from ge.plan import View

__all__ = ["CANDIDATES", "matrix_of"]

_FLOATS = ("float32", "float16", "bfloat16")


def matrix_of(view: View, leading: Sequence[int]) -> tuple[int, int, int, int, int] | None:
    """A stack of matrices as rows, columns, their strides, and the distance of the matrices; None for other layouts.

    >>> matrix_of(View(0, "float32", (6, 2, 3), (6, 3, 1)), (6,))
    (2, 3, 3, 1, 6)
    """
    *stack, rows, columns = view.shape
    *steps, down, across = view.strides
    if 1 not in (down, across) and rows != 1 and columns != 1:
        return None
    if math.prod(stack) == 1:
        return rows, columns, down, across, 0
    if tuple(stack) != tuple(leading):
        return None
    distance, reach = 0, 0
    for extent, step in zip(reversed(stack), reversed(steps), strict=True):
        if extent == 1:
            continue
        if distance and step != reach:
            return None
        distance = distance or step
        reach = step * extent
    return rows, columns, down, across, distance


class _Library(Candidate):
    """What the libraries have in common: one element type throughout, and y = act(product + bias + residual)."""

    device = "cuda"
    activations: tuple[str, ...] = ("relu",)

    def unfit(self, op: Operation) -> str:
        dtypes = {v.dtype for v in (*op.inputs, *op.outputs)}
        if len(dtypes) != 1 or op.inputs[0].dtype not in _FLOATS or op.quantised:
            return "it takes float32, float16 or bfloat16 throughout"
        if any(0 in v.shape for v in (*op.inputs, *op.outputs)):
            return "it has no elements"
        return self._operands(op) or self._epilogue(op)

    def _operands(self, op: Operation) -> str:
        raise NotImplementedError

    def _epilogue(self, op: Operation) -> str:
        rest = list(op.post_ops)
        if rest[:1] == ["add"]:
            if not is_like(op.inputs[-1], op.outputs[0]):
                return "the summand is not laid out as the result"
            rest = rest[1:]
        if len(rest) > 1 or any(text not in self.activations for text in rest):
            return f"it has no epilogue {', '.join(op.post_ops)}"
        return ""


class CublasLt(_Library):
    """Products with sums in float32; float32 operands are not rounded to TF32."""

    name = "cublaslt"
    activations = ("relu", "gelu_tanh")

    def _operands(self, op: Operation) -> str:
        y = op.outputs[0]
        leading = y.shape[:-2]
        if any(matrix_of(v, leading) is None for v in (*op.inputs[:2], y)):
            return "operands are not stacks of matrices at equal distances"
        if matrix_of(y, leading)[3] != 1 and y.shape[-1] != 1:  # type: ignore[index]
            return "the result is not row-major"
        bias = op.inputs[2] if op.flag("has_bias") else None
        if bias is not None and (bias.shape[-1] != y.shape[-1] or math.prod(bias.shape) != y.shape[-1]):
            return "the bias is not one number for each column"
        return ""


class Cudnn(_Library):
    """Convolutions of images; float32 runs on engines that do not round to TF32."""

    name = "cudnn"

    def _operands(self, op: Operation) -> str:
        x, w = op.inputs[:2]
        if len(x.shape) != 4 or op.flag("has_gate"):
            return "it takes images without a gate"
        if w.shape[1] * int(op.attrs.get("groups", 1)) != x.shape[1]:
            return "the weights do not go with the images"
        return ""


class _Decomposed(Decomposed):
    device = "cuda"


# By kind of task; kinds that are not here have no implementation on a GPU.
CANDIDATES: dict[str, tuple[Candidate, ...]] = {
    "matmul": (CublasLt(),),
    "conv": (Cudnn(),),
    "attention": (_Decomposed(),),
    "attention_grad": (_Decomposed(),),
}
