"""Recognises the steps of recurrent layers: compares a loop body with the definition of a cell."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ge.ir.values import desc_of
from ge.ops.nn.recurrent_training import gru_step, lstm_step
from ge.passes.recurrence.loops import ScanLoop
from ge.passes.recurrence.polynomials import Formulas, Polynomial, formulas
from ge.passes.rewrite import attrs_of

__all__ = ["LstmCell", "gru_order", "lstm_cell"]


@dataclass(frozen=True)
class LstmCell:
    """A body that computes an LSTM step: the order of its gates, its states, and the formulas of its values."""

    order: tuple[int, ...]  # of input, forget, cell and output gate in the split sum
    hidden: ir.Value
    cell: ir.Value
    values: Mapping[ir.Value, Polynomial]
    gates: list[Polynomial]  # before their activations, in the order of the definition


def lstm_cell(loop: ScanLoop, total: ir.Value, hidden: ir.Value) -> LstmCell | None:
    """The cell whose four gates are parts of `total`; `hidden` is the state that was multiplied."""
    parts = _parts(total, 4)
    desc = desc_of(hidden)
    values = formulas(loop.body, parts)
    for cell in (s for s in loop.states if s is not hidden and desc_of(s).shape == desc.shape):
        made = [values[loop.after(s)] for s in (hidden, cell)]
        for order in itertools.permutations(range(4)):
            gates = [_part(total, k) for k in order]
            if lstm_step(Formulas(), gates, values[cell])[0] == made:
                return LstmCell(order, hidden, cell, values, gates)
    return None


def gru_order(loop: ScanLoop, left: ir.Value, right: ir.Value, hidden: ir.Value) -> tuple[int, ...] | None:
    """The order of reset, update and new gate in the contributions of the input (left) and the state (right)."""
    values = formulas(loop.body, {**_parts(left, 3), **_parts(right, 3)})
    for order in itertools.permutations(range(3)):
        xs, hs = ([_part(side, k) for k in order] for side in (left, right))
        if gru_step(Formulas(), xs, hs, values[hidden])[0] == [values[loop.after(hidden)]]:
            return order
    return None


def _part(whole: ir.Value, index: int) -> Polynomial:
    return Polynomial.of((whole, index))


def _parts(whole: ir.Value, count: int) -> dict[ir.Value, Polynomial]:
    """The values that are equal parts of the last axis of another value."""
    found: dict[ir.Value, Polynomial] = {}
    for node in whole.consumers():
        for value, start in _pieces(node):
            size = desc_of(value).shape[-1]
            if size * count == desc_of(whole).shape[-1] and start % size == 0:
                found[value] = _part(whole, start // size)
    return found


def _pieces(node: ir.Node) -> Iterable[tuple[ir.Value, int]]:
    """The values that a node takes from the last axis, with their offsets."""
    attrs, shape = attrs_of(node), desc_of(node.inputs[0]).shape  # type: ignore[arg-type]
    if node.op_type == "Split" and attrs["axis"] % len(shape) == len(shape) - 1:
        starts = itertools.accumulate(attrs["sizes"], initial=0)
        return list(zip(node.outputs, starts, strict=False))
    if node.op_type == "Slice" and all(s == 1 for s in attrs["steps"] or ()):
        value = node.outputs[0]
        return [(value, attrs["starts"][-1])] if desc_of(value).shape[:-1] == shape[:-1] else []
    return []
