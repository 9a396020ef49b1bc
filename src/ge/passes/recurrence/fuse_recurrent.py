"""Recognises recurrent layers written as loops: a Scan whose step is an LSTM or a GRU becomes one operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from ge.implementations import DECOMPOSED, Operation, candidates_for, choose_from
from ge.implementations.recurrent import GRU, LSTM, SCANS
from ge.ir import facts
from ge.ir.values import constant_of, desc_of
from ge.ops.base import NodeView, lookup
from ge.options import CompileOptions
from ge.passes.recurrence.loops import ScanLoop, behind, is_product
from ge.passes.recurrence.recurrent_cells import gru_order, lstm_cell
from ge.passes.rewrite import Replacement, RewritePass, Rewriter, Rules, sole_consumer
from ge.plan import View

__all__ = ["FuseRecurrent"]


@dataclass(frozen=True)
class _Product:
    """A product by a constant matrix, with the constants added to it."""

    source: ir.Value  # the other operand: the stack of all rows, or a state
    matrix: np.ndarray  # (K, G * H)
    bias: np.ndarray  # (G * H)
    total: ir.Value


@dataclass(frozen=True)
class _Step:
    """The parts of a loop body that form a recurrent layer."""

    row: _Product
    state: _Product
    joint: ir.Value | None  # the sum of both, including added constants
    joint_bias: np.ndarray

    @property
    def units(self) -> int:
        return self.state.matrix.shape[0]

    @property
    def gates(self) -> int:
        return self.state.matrix.shape[1] // self.units


def _whole(value: ir.Value | None) -> ir.Value | None:
    """The value behind Identity and Reshape nodes."""
    return behind(value, views=True)


def _added(value: ir.Value, width: int) -> tuple[np.ndarray, ir.Value]:
    """The constants added to a value in sequence, and the sum."""
    total = np.zeros(width, np.float32)
    while True:
        node = sole_consumer(value, "Add")
        if node is None:
            return total, value
        other = next(v for v in (*node.inputs, None) if v is not value)
        constant = constant_of(other)
        if constant is None or constant.size != width:
            return total, value
        total = total + constant.reshape(-1)
        value = node.outputs[0]


def _step_of(loop: ScanLoop) -> _Step | str:
    """Find x * w and h * r in a body: two products by constant matrices of one width; else the reason."""
    found: dict[str, _Product] = {}
    for node in loop.body:
        if node.op_type != "MatMul":
            continue
        made = _product(loop, node)
        if made is None or made[0] in found:
            return "its body has products beside those of one row and one state by constant matrices"
        found[made[0]] = made[1]
    if set(found) != {"row", "state"}:
        return "its body does not multiply a row and a state"
    row, state = found["row"], found["state"]
    width = row.matrix.shape[1]
    if width != state.matrix.shape[1] or width % state.matrix.shape[0]:
        return "the products of row and state are not gates of one width"
    if desc_of(state.source).dtype != "float32" or desc_of(row.source).rank != 3:
        return "it is not a sequence of float32 rows"
    both = sole_consumer(row.total, "Add")
    if both is None:
        return _Step(row, state, None, np.zeros(width, np.float32))
    if set(both.inputs) != {row.total, state.total}:
        return "something else is added to the product of the row"
    bias, joint = _added(both.outputs[0], width)
    return _Step(row, state, joint, bias)


def _product(loop: ScanLoop, node: ir.Node) -> tuple[str, _Product] | None:
    """A product, and whether its operand is the hidden state or this step's row of a sequence."""
    matrix, bias = constant_of(node.inputs[1]), constant_of(node.inputs[2]) if len(node.inputs) > 2 else None
    if not is_product(node, biased=True) or matrix is None or (len(node.inputs) > 2 and bias is None):
        return None
    source = _whole(node.inputs[0])
    kind = "row" if source in loop.rows else "state"
    source = loop.given(source) if kind == "row" else source
    if source is None or (kind == "state" and source not in loop.states):
        return None
    added, total = _added(node.outputs[0], matrix.shape[1])
    return kind, _Product(source, matrix, added if bias is None else added + bias.reshape(-1), total)


@dataclass(frozen=True)
class _Match:
    """A recognised layer: its gate order in the operator's terms, and its cell state (None for a GRU)."""

    type: str
    order: tuple[int, ...]
    cell: ir.Value | None = None


def _lstm(loop: ScanLoop, step: _Step) -> _Match | str:
    if step.gates != 4 or step.joint is None:
        return "its body does not add the products of row and state to four gates"
    found = lstm_cell(loop, step.joint, step.state.source)
    return "its step is another formula" if found is None else _Match("LSTM", found.order, found.cell)


def _gru(loop: ScanLoop, step: _Step) -> _Match | str:
    if step.gates != 3 or step.joint is not None:
        return "its body does not keep three gates of row and state apart"
    order = gru_order(loop, step.row.total, step.state.total, step.state.source)
    if order is None:
        return "its step is another formula"
    return _Match("GRU", (order[1], order[0], order[2]))


_CELLS = {LSTM: _lstm, GRU: _gru}


# -- the rewrite -----------------------------------------------------------------------------------------------


def _layer(r: Rewriter, node: ir.Node) -> Replacement:
    loop = ScanLoop.of(node)
    step = _step_of(loop)
    if isinstance(step, str):
        return _as_chosen(r, loop, dict.fromkeys(_CELLS, step), {})
    against: dict[str, str] = {}
    found: dict[str, tuple[_Match, list[str]]] = {}
    for name, cell in _CELLS.items():
        match = cell(loop, step)
        if isinstance(match, str):
            against[name] = match
            continue
        sources = _results(loop, match, step)
        if sources is None:
            against[name] = "a result is neither a hidden state nor the last cell state"
        else:
            found[name] = match, sources
    return _as_chosen(r, loop, against, found, step)


def _as_chosen(
    r: Rewriter,
    loop: ScanLoop,
    against: Mapping[str, str],
    found: Mapping[str, tuple[_Match, list[str]]],
    step: _Step | None = None,
) -> Replacement:
    """The layer if it is the cheapest implementation; else record on the loop why it stays."""
    node = loop.node
    choice = choose_from(SCANS, _operation(loop, {**dict.fromkeys(found, ""), **against}), r.options.target)
    if choice.name not in found or step is None:
        facts.set_choice(node, choice.reason)
        return None
    match, sources = found[choice.name]
    y, *last = _emit(r, loop, step, match)
    made = {"y": y, "h": last[0], "c": last[-1]}
    return [
        r.op("Reshape", made[k], shape=desc_of(v).shape) for k, v in zip(sources, node.outputs, strict=True)
    ]


def _operation(loop: ScanLoop, against: Mapping[str, str]) -> Operation:
    """A Scan as an operation with candidate implementations."""
    views = [
        [View.of(0, desc_of(v)) for v in side if v is not None]
        for side in (loop.node.inputs, loop.node.outputs)
    ]
    flops = loop.steps * sum(lookup(n.op_type).flops(NodeView.of(n)) for n in loop.body)
    attrs = {"steps": loop.steps, "tasks": len(loop.body), "flops": flops, **against}
    return Operation("scan", tuple(views[0]), tuple(views[1]), attrs)


def _results(loop: ScanLoop, match: _Match, step: _Step) -> list[str] | None:
    """The kind of each result of the loop: all hidden states (y), last hidden (h) or cell state (c); None if other."""
    hidden = _whole(loop.after(step.state.source))
    memory = _whole(loop.after(match.cell)) if match.cell is not None else None
    found: list[str] = []
    for value, state, _ in loop.results():
        source = _whole(value)
        if source is hidden:
            found.append("y" if state is None else "h")
        elif source is memory and state is not None:
            found.append("c")
        else:
            return None
    return found


def _emit(r: Rewriter, loop: ScanLoop, step: _Step, match: _Match) -> tuple[ir.Value, ...]:
    def gates(array: np.ndarray) -> np.ndarray:
        split = array.reshape(*array.shape[:-1], step.gates, step.units)
        return np.ascontiguousarray(split[..., list(match.order), :])[None]

    def first(state: ir.Value) -> ir.Value:
        value = loop.given(state)
        assert value is not None
        return r.op("Reshape", value, shape=[1, *desc_of(value).shape])

    bias, extra = gates(step.row.bias + step.joint_bias), gates(step.state.bias)
    inputs: list[Any] = [step.row.source, gates(step.row.matrix), gates(step.state.matrix)]
    way = {"direction": "reverse" if loop.reverse else "forward"}
    if match.cell is not None:
        return r.ops("LSTM", [*inputs, bias + extra, first(step.state.source), first(match.cell)], **way)
    together = bias + np.concatenate([extra[:, :2], np.zeros_like(extra[:, 2:])], 1)
    four = np.concatenate([together, extra[:, 2:]], 1)
    return r.ops("GRU", [*inputs, four, first(step.state.source)], linear_before_reset=True, **way)


class FuseRecurrent(RewritePass):
    """Recognise recurrent layers.

    1. A Scan, forward or backward, whose body multiplies a row and a state by constant matrices and otherwise computes
       the step of an LSTM or of a GRU (with a separate bias for the recurrent part) is that operator. The formulas of
       both are compared, with the gates in every order.
    2. Results may be the states after the last step and the hidden states of all steps; anything else leaves the loop.
    3. The layers are candidates in the list of Scan (`ge/implementations/recurrent.py`) beside the loop; a Scan that
       stays a loop records why, for `explain`.
    4. On a target without a task for such layers the loops stay.
    """

    name = "fuse_recurrent"
    rules: ClassVar[Rules] = {"Scan": (_layer,)}

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        if all(c.name == DECOMPOSED for c in candidates_for("rnn", options.target)):
            return False
        return super().run(graph, options)
