"""Implementations of recurrent layers (LSTM of small batches, all steps in training, the library) and of loops."""

from __future__ import annotations

import math

from ge.implementations.base import Candidate, Library, Operation
from ge.implementations.decomposed import Decomposed
from ge.target import CostTable, Target

__all__ = ["GRU", "LAYERS", "LSTM", "SCANS", "STEPS"]

_GATES, _UNITS, _MAX_BATCH = 4, 16, 4  # of the kernels, native/recurrent/lstm.h
_FLOATS = ("float32", "bfloat16")
LSTM, GRU, LOOP = "lstm", "gru", "loop"


class SmallBatch(Candidate):
    """LSTM layers of small batches, which are bound by reading the recurrent weights."""

    name = "small_batch"
    needs = "avx2"
    needs_bf16 = "avx512_bf16"

    def unfit(self, op: Operation) -> str:
        if op.attrs.get("cell") != "lstm" or op.attrs.get("direction") == "bidirectional_sum":
            return "it computes LSTM layers"
        if not op.flag("has_initial", True) or not op.flag("has_bias", True) or len(op.inputs) != 6:
            return "it takes an initial state and a bias"
        x, _, _, w, r, _ = op.inputs
        if len(x.shape) != 3 or len(w.shape) != 5 or w.shape[0] != 1 or w.shape[3] != _GATES:
            return "it computes one layer"
        if any(not v.contiguous or v.dtype not in _FLOATS for v in (*op.inputs, *op.outputs)):
            return "it takes dense float32 or bfloat16"
        if not x.dtype == w.dtype == r.dtype:
            return "input and weights have different types"
        if not {3, 4, 5} <= op.constant:
            return "the weights are not constant"
        if not 1 <= x.shape[1] <= _MAX_BATCH:
            return f"the batch is larger than {_MAX_BATCH}"
        if w.shape[4] % _UNITS or 0 in x.shape:
            return f"the units are no multiple of {_UNITS}"
        return ""

    def measured_gain(self, op: Operation, target: Target, costs: CostTable) -> float:
        return costs.lstm_batch / op.inputs[0].shape[1]

    def modelled_gain(self, op: Operation, target: Target) -> float:
        """The library pads the rows to the height of its tiles."""
        return _MAX_BATCH / op.inputs[0].shape[1]


class Steps(Candidate):
    """All steps of an LSTM layer in training, forward or backward, with recurrent weights packed once."""

    name = "steps"
    needs = "avx2"
    needs_bf16 = "avx512_bf16"

    def unfit(self, op: Operation) -> str:
        rows, weights = op.inputs[:2]
        if len(rows.shape) != 3 or len(weights.shape) != 2 or weights.dtype not in _FLOATS:
            return "it takes float32 or bfloat16 weights"
        units = weights.shape[1]
        if not units or units % _UNITS or weights.shape[0] != _GATES * units:
            return f"the units are no multiple of {_UNITS}"
        if 0 in rows.shape:
            return "there are no steps"
        narrow = {v.dtype for v in op.inputs[1 if op.kind == "lstm_steps" else 0 :]}
        if narrow != {weights.dtype} or (op.kind == "lstm_steps" and rows.dtype != "float32"):
            return "operands have different types"
        return "" if all(v.contiguous for v in (*op.inputs, *op.outputs)) else "operands are not dense"

    def measured_gain(self, op: Operation, target: Target, costs: CostTable) -> float:
        return self.modelled_gain(op, target)

    def modelled_gain(self, op: Operation, target: Target) -> float:
        """A loop of products repacks the recurrent weights, or reads them unpacked, in every step."""
        weights = math.prod(op.inputs[1].shape)
        return 1 + weights / (weights + math.prod(op.inputs[0].shape[1:]))


class Layer(Candidate):
    """All steps of a Scan as one recurrent layer. The pass that matches the body records why it is none."""

    def refuse(self, op: Operation, target: Target) -> str:
        return str(op.attrs[self.name])

    def cost(self, op: Operation, target: Target, otherwise: float | None = None) -> float:
        first = (*op.inputs, *op.outputs)[0]  # a body of constants has no inputs
        return target.seconds(op.attrs["flops"], op.nbytes, first.dtype)


class LstmLayer(Layer):
    """A Scan whose step is an LSTM."""

    name = LSTM


class GruLayer(Layer):
    """A Scan whose step is a GRU."""

    name = GRU


class Loop(Layer):
    """The steps in sequence, each a list of tasks; accepts any body."""

    name = LOOP

    def refuse(self, op: Operation, target: Target) -> str:
        return ""

    def cost(self, op: Operation, target: Target, otherwise: float | None = None) -> float:
        begun = op.attrs["steps"] * op.attrs["tasks"] * target.measured.task_ns * 1e-9
        return super().cost(op, target) + begun


LAYERS: tuple[Candidate, ...] = (SmallBatch(), Library())
STEPS: tuple[Candidate, ...] = (Steps(), Decomposed())
SCANS: tuple[Candidate, ...] = (LstmLayer(), GruLayer(), Loop())
