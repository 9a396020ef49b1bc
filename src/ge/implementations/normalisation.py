"""Implementations of normalisations over neighbouring channels, and of the gradient of a layer normalisation."""

from __future__ import annotations

import math
from typing import Any

from ge.implementations.base import Candidate, Library, Operation
from ge.implementations.decomposed import Decomposed
from ge.target import CostTable, Target

__all__ = ["GRADIENT", "NEIGHBOURS"]

_FLOATS = ("float32", "bfloat16")
_LANES = 8  # channels in a step of the library's kernel for planes, which takes at least two steps


class Neighbours(Library):
    """The library's normalisation over neighbouring channels: planes of other numbers of channels are reordered."""

    def settings(self, op: Operation, target: Target) -> dict[str, Any]:
        channels, planes = op.inputs[0].shape[1], op.inputs[0].strides[1] != 1
        even = channels % _LANES == 0 and channels >= 2 * _LANES
        reordered = planes and not even and "avx512" in target.features
        return super().settings(op, target) | ({"channels_last": True} if reordered else {})


class Rows(Candidate):
    """Reads each row once from memory; its column sums are ready before the second read, which hits the cache."""

    name = "rows"
    needs = "avx2"
    needs_bf16 = "avx512"

    def unfit(self, op: Operation) -> str:
        dy, x = op.inputs[:2]
        columns = op.attrs["columns"]
        if not math.prod(x.shape) or columns <= 0:
            return "it has no elements"
        if any(v.dtype not in _FLOATS or not v.contiguous for v in (*op.inputs, *op.outputs)):
            return "it takes dense float32 or bfloat16"
        gradient = [op.outputs[0]] if op.attrs["wanted"][0] else []
        return "operands have different types" if any(v.dtype != x.dtype for v in (dy, *gradient)) else ""

    def measured_gain(self, op: Operation, target: Target, costs: CostTable) -> float:
        return self.modelled_gain(op, target)

    def modelled_gain(self, op: Operation, target: Target) -> float:
        """Counted, not measured: sums and products by separate tasks read both operands twice."""
        return 2.0


GRADIENT: tuple[Candidate, ...] = (Rows(), Decomposed())
NEIGHBOURS: tuple[Candidate, ...] = (Neighbours(),)
