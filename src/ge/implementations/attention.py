"""Implementations of attention and its gradient: one task that processes a head at a time, or products and softmax."""

from __future__ import annotations

import math

from ge.implementations.base import Candidate, Operation
from ge.implementations.decomposed import Decomposed
from ge.plan import View
from ge.target import CostTable, Target

__all__ = ["FORWARD", "GRADIENT"]

_FLOATS = ("float32", "bfloat16")


def _is_dense_across(view: View) -> bool:
    return view.shape[-1] <= 1 or view.strides[-1] == 1


class Fused(Candidate):
    """One fused task: the scores of a few queries at a time stay in the L1 cache."""

    name = "fused"
    needs = "avx2"
    needs_bf16 = "avx512_bf16"

    def __init__(self, first: int, sums: int, mask: int) -> None:
        """Positions of inputs: q, k and v, the saved sums, and the mask."""
        self.first, self.sums, self.mask = first, sums, mask

    def unfit(self, op: Operation) -> str:
        q, k, v = op.inputs[self.first : self.first + 3]
        matrices = [*op.inputs[: self.mask]]
        if self.sums >= 0:
            del matrices[self.sums]
        results = [w for w in op.outputs if len(w.shape) == len(q.shape)]
        if not 2 <= len(q.shape) <= 4 or any(len(w.shape) != len(q.shape) for w in (k, v)):
            return "it has at most two leading axes"
        if q.dtype not in _FLOATS or any(w.dtype != q.dtype for w in (*matrices, *results)):
            return "it takes float32 or bfloat16 throughout"
        if any(w.shape[:-2] != q.shape[:-2] for w in matrices):
            return "operands have different leading axes"
        if 0 in (*q.shape, *k.shape, *v.shape):
            return "it has no elements"
        if q.dtype == "bfloat16" and (q.shape[-1] % 2 or v.shape[-1] % 2):
            return "it multiplies pairs of bfloat16"
        if not all(_is_dense_across(w) for w in (*op.inputs, *op.outputs)):
            return "columns are not dense"
        return self._mask_unfit(op, q, k)

    def _mask_unfit(self, op: Operation, q: View, k: View) -> str:
        if len(op.inputs) <= self.mask:
            return ""
        mask, queries, keys = op.inputs[self.mask], q.shape[-2], k.shape[-2]
        if not 2 <= len(mask.shape) <= 4 or mask.dtype not in ("bool", "float32"):
            return "it takes masks of bool or float32"
        leading = (1,) * (4 - len(mask.shape)) + mask.shape[:-2]
        whole = (1,) * (4 - len(q.shape)) + q.shape[:-2]
        fits = all(m in (1, n) for m, n in zip(leading, whole, strict=True))
        if mask.shape[-1] != keys or mask.shape[-2] not in (1, queries) or not fits:
            return "the mask does not match the scores"
        return ""

    def measured_gain(self, op: Operation, target: Target, costs: CostTable) -> float:
        """Few queries are bound by reading keys and values, which the task packs first."""
        q, k = op.inputs[self.first : self.first + 2]
        gain = q.shape[-2] / costs.attention_queries
        if op.kind == "attention_grad":  # which keeps all scores of a head
            gain = min(gain, costs.attention_gradient_scores / (q.shape[-2] * k.shape[-2]))
        return gain

    def modelled_gain(self, op: Operation, target: Target) -> float:
        """Scores are not stored and reloaded; keys and values are stored and loaded once more."""
        q, k, v = op.inputs[self.first : self.first + 3]
        scores = 4 * math.prod(q.shape[:-1]) * k.shape[-2]
        own = q.nbytes + v.nbytes + k.nbytes
        return (own + 4 * scores) / (own + 2 * (k.nbytes + v.nbytes))


FORWARD: tuple[Candidate, ...] = (Fused(0, -1, 3), Decomposed())
GRADIENT: tuple[Candidate, ...] = (Fused(1, 5, 6), Decomposed())
