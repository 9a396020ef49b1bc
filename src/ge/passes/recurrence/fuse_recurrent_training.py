"""Recognises LSTM layers in training written as loops: a forward loop, and a backward loop over its saved values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ge.ir.types import TensorDesc, widened
from ge.ir.values import constant_of, desc_of
from ge.ops.nn.lstm_steps import are_tasks
from ge.ops.nn.recurrent_training import lstm_step, lstm_step_back
from ge.options import CompileOptions
from ge.passes.base import Pass
from ge.passes.precision.lower_precision import mode_of
from ge.passes.recurrence.loops import ScanLoop, behind, is_product
from ge.passes.recurrence.polynomials import Formulas, Polynomial, formulas
from ge.passes.recurrence.recurrent_cells import LstmCell, lstm_cell
from ge.passes.rewrite import (
    Rewriter,
    attrs_of,
    producer,
    remove_dead,
    replace_node,
    scalar,
    sole_consumer,
)

__all__ = ["FuseRecurrentTraining"]

_GATES = 4
_IN_ORDER = tuple(range(_GATES))
# The values a step saves, which are the variables of the backward formulas.
_KEPT = [
    Polynomial.of(name) for name in ("input gate", "forget gate", "cell gate", "output gate", "cell before")
]
_DH, _DC = Polynomial.of("gradient of the state"), Polynomial.of("gradient of the cell")


# -- the forward loop ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layer:
    """A loop whose step is an LSTM."""

    loop: ScanLoop
    cell: LstmCell
    weights: ir.Value  # recurrent weights in the body's layout, (H, 4 * H)
    addends: list[ir.Value]  # added by the body to the state's product

    @property
    def desc(self) -> TensorDesc:
        """The shape and type of a state."""
        return desc_of(self.cell.hidden)

    def meaning(self, value: ir.Value) -> Polynomial | None:
        """A value of the body in terms of what a step saves, None if it is not part of the cell."""
        given = self.cell.values[value]
        return next((theirs for own, theirs in self._meanings() if own == given), None)

    def _meanings(self) -> Iterable[tuple[Polynomial, Polynomial]]:
        """The values of a step as formulas of its body, and of what it saves."""
        states, own = lstm_step(Formulas(), self.cell.gates, self.cell.values[self.cell.cell])
        i, f, g, o, c = _KEPT
        after = f * c + i * g
        bent = Formulas().op("Tanh", after)
        return [
            *zip(own, _KEPT, strict=True),
            (states[0], o * bent),
            (states[1], after),
            (Formulas().op("Tanh", states[1]), bent),
        ]


def _layer_of(node: ir.Node) -> _Layer | None:
    loop = ScanLoop.of(node)
    for split in loop.body:
        if split.op_type == "Split" and len(split.outputs) == _GATES:
            found = _layer_at(loop, split.inputs[0])  # type: ignore[arg-type]
            if found is not None:
                return found
    return None


def _layer_at(loop: ScanLoop, total: ir.Value) -> _Layer | None:
    """The layer whose gates are parts of `total`."""
    addends = _addends(total)
    own = {v: p for v in addends if (p := _product_of_state(loop, v)) is not None}
    if len(own) != 1 or desc_of(next(iter(own))).size != desc_of(total).size:
        return None
    (product,) = own.values()
    hidden, weights = behind(product.inputs[0]), product.inputs[1]
    assert hidden is not None and weights is not None
    units = desc_of(hidden).shape[-1]
    if desc_of(weights).shape != (units, _GATES * units) or desc_of(weights).dtype != desc_of(hidden).dtype:
        return None
    cell = lstm_cell(loop, total, hidden)
    if cell is None or cell.order != _IN_ORDER or desc_of(cell.cell) != desc_of(hidden):
        return None
    return _Layer(loop, cell, weights, [v for v in addends if v not in own])


def _product_of_state(loop: ScanLoop, value: ir.Value) -> ir.Node | None:
    """The product that a value is, perhaps reshaped, if one of its operands is a state."""
    product = producer(behind(value, views=True), "MatMul")
    if product is None or not is_product(product) or behind(product.inputs[0]) not in loop.states:
        return None
    return product


def _addends(value: ir.Value) -> list[ir.Value]:
    """The addends of a sum."""
    node = producer(behind(value), "Add")
    if node is None:
        found = behind(value)
        assert found is not None
        return [found]
    return [a for v in node.inputs if v is not None for a in _addends(v)]


# -- the backward loop -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Back:
    """A loop that runs backward through the steps of a layer."""

    layer: _Layer
    loop: ScanLoop
    dh: ir.Value  # states of its body
    dc: ir.Value
    extras: list[ir.Value]  # added by a step to the gradient of the state
    dgates: ir.Value

    def meaning(self, row: ir.Value) -> Polynomial | None:
        """A row that the body reads, in terms of what the layer's step saves."""
        stack = behind(self.loop.given(row))
        if stack is not None and self._is_shifted(stack):
            return _KEPT[4]
        results = self.layer.loop.results()
        own = next((v for v, state, result in results if state is None and result is stack), None)
        return None if own is None else self.layer.meaning(own)

    def _is_shifted(self, stack: ir.Value) -> bool:
        """True if a tensor holds the cell states before each step: the initial one, and all but the last."""
        node, loop, cell = producer(stack, "Concat"), self.layer.loop, self.layer.cell
        if node is None or attrs_of(node)["axis"] or len(node.inputs) != 2:
            return False
        head, rest = reversed(node.inputs) if loop.reverse else node.inputs
        piece = producer(behind(rest), "Slice")
        if not _is_same(head, loop.given(cell.cell)):
            return False
        after = [
            r
            for v, s, r in loop.results()
            if s is None and cell.values[v] == cell.values[loop.after(cell.cell)]
        ]
        if piece is None or behind(piece.inputs[0]) not in after:
            return False
        start = attrs_of(piece)["starts"]
        return list(start) == [int(loop.reverse), *[0] * (len(start) - 1)]


def _back_of(layer: _Layer, node: ir.Node) -> _Back | None:
    loop = ScanLoop.of(node)
    if loop.steps != layer.loop.steps or loop.reverse == layer.loop.reverse:
        return None
    for gates in loop.body:
        if gates.op_type != "Concat" or len(gates.inputs) != _GATES:
            continue
        for dh in (s for s in loop.states if desc_of(s) == layer.desc):
            found = _back_at(layer, loop, gates, dh)
            if found is not None:
                return found
    return None


def _back_at(layer: _Layer, loop: ScanLoop, gates: ir.Node, dh: ir.Value) -> _Back | None:
    """The backward loop with these gradients of the gates and of the state."""
    product = producer(behind(loop.after(dh)), "MatMul")
    if not is_product(product, transpose_b=True) or behind(product.inputs[0]) is not gates.outputs[0]:  # type: ignore[union-attr]
        return None
    if attrs_of(gates)["axis"] % desc_of(gates.outputs[0]).rank != 1:
        return None
    total, extras = _with_extras(dh)
    for dc in (s for s in loop.states if s is not dh and desc_of(s) == layer.desc):
        found = _Back(layer, loop, dh, dc, extras, gates.outputs[0])
        if _is_same_matrix(found, product.inputs[1]) and _goes_back(found, gates, total):  # type: ignore[union-attr]
            return found
    return None


def _with_extras(state: ir.Value) -> tuple[ir.Value, list[ir.Value]]:
    """A state and the values added to it before any other use."""
    extras: list[ir.Value] = []
    while (node := sole_consumer(state, "Add")) is not None:
        extras += [v for v in node.inputs if v is not None and v is not state]
        state = node.outputs[0]
    return state, extras


def _is_same_matrix(back: _Back, value: ir.Value | None) -> bool:
    """True if the backward loop multiplies by the layer's own recurrent weights."""
    matrices = (
        loop.given(behind(v)) or v for loop, v in ((back.loop, value), (back.layer.loop, back.layer.weights))
    )
    return _is_same(*matrices)


def _is_same(value: ir.Value | None, other: ir.Value | None) -> bool:
    """True if two values outside the loop have the same elements in the same order."""
    value, other = (behind(v, views=True) for v in (value, other))
    known, given = constant_of(value), constant_of(other)
    if known is not None and given is not None:
        return np.array_equal(known.reshape(-1), given.reshape(-1))
    return value is other


def _goes_back(back: _Back, gates: ir.Node, total: ir.Value) -> bool:
    """True if the gradients of gates and cell state are those of an LSTM step."""
    known: dict[ir.Value, Polynomial] = {total: _DH, back.dc: _DC}
    for row in back.loop.rows:
        meaning = back.meaning(row)
        if meaning is not None:
            known[row] = meaning
    values = formulas(back.loop.body, known)
    wanted, before = lstm_step_back(Formulas(), _KEPT, _DH, _DC)
    made = [values[v] for v in gates.inputs if v is not None]
    return made == wanted and values[back.loop.after(back.dc)] == before


# -- emitting the operators ------------------------------------------------------------------------------------


class _Emitter:
    """Emits the operators for a layer before its loop, and for its backward loops before theirs."""

    def __init__(self, graph: ir.Graph, layer: _Layer, options: CompileOptions) -> None:
        self._graph, self._layer, self._options = graph, layer, options
        self._r = Rewriter(graph, layer.loop.node, options)
        self._rewriters = [self._r]
        self._constants = set(graph.initializers)
        self.replaced: dict[ir.Value, ir.Value] = {}

    def discard(self) -> None:
        """Remove the emitted nodes."""
        for r in reversed(self._rewriters):
            remove_dead(self._graph, reversed(r.created))
        for name in self._graph.initializers.keys() - self._constants:
            del self._graph.initializers[name]

    def forward(self) -> bool:
        """Emit the forward operator; False if something it needs cannot be computed."""
        loop, cell, r = self._layer.loop, self._layer.cell, self._r
        weights, gates = _outside(loop, r, self._layer.weights), self._gates()
        if weights is None or gates is None:
            return False
        self._weights = r.op("Transpose", weights, perm=[1, 0])
        first = [loop.given(cell.hidden), loop.given(cell.cell)]
        self._y, self._kept, self._h, self._c = r.ops(
            "LSTMSteps", [gates, self._weights, *first], reverse=loop.reverse
        )
        return True

    def _gates(self) -> ir.Value | None:
        """The contribution of the input and the biases to the gates, for all steps."""
        layer, r = self._layer, self._r
        found: list[ir.Value] = []
        for value in layer.addends:
            made = _outside(layer.loop, r, value)
            if made is None:
                return None
            found.insert(0 if value in layer.loop.rows else len(found), _wide(r, made))
        shape = (layer.loop.steps, layer.desc.shape[0], _GATES * layer.desc.shape[1])
        if not found:
            return None
        total = found[0]
        for other in found[1:]:
            total = r.op("Add", total, other)
        return r.op("Reshape", total, shape=list(shape)) if desc_of(total).size == math.prod(shape) else None

    def results(self, backs: Sequence[_Back]) -> bool:
        """Replace the layer's results for all readers other than the backward loops."""
        values, cell, loop = self._layer.cell.values, self._layer.cell, self._layer.loop
        last = {values[loop.after(cell.hidden)]: self._h, values[loop.after(cell.cell)]: self._c}
        own = {back.loop.node for back in backs}
        for value, state, result in loop.results():
            if not result.is_graph_output() and set(result.consumers()) <= own:
                continue
            made = last.get(values[value]) if state is not None else self._stack(value)
            if made is None or desc_of(made).size != desc_of(result).size:
                return False
            self._replace(self._r, result, made)
        return True

    def _stack(self, value: ir.Value) -> ir.Value | None:
        """A value of the cell in all steps, computed from the saved values."""
        layer, r = self._layer, self._r
        if layer.cell.values[value] == layer.cell.values[layer.loop.after(layer.cell.hidden)]:
            return self._y
        wanted = layer.meaning(value)
        steps, batch, width = desc_of(self._kept).shape
        units = width // len(_KEPT)

        def kept(index: int) -> ir.Value:
            ends = [steps, batch, (index + 1) * units]
            return r.op("Slice", self._kept, starts=[0, 0, index * units], ends=ends)

        if wanted in _KEPT:
            return kept(_KEPT.index(wanted))
        i, f, g, _, c = _KEPT
        if wanted not in (f * c + i * g, Formulas().op("Tanh", f * c + i * g)):
            return None
        after = r.op("Add", r.op("Mul", kept(1), kept(4)), r.op("Mul", kept(0), kept(2)))
        return after if wanted == f * c + i * g else r.op("Tanh", after)

    def back(self, back: _Back) -> bool:
        """Emit the backward operator; False if the loop has other results."""
        r = Rewriter(self._graph, back.loop.node, self._options)
        self._rewriters.append(r)
        given = self._gradients(back, r)
        if given is None:
            return False
        dgates, dh, dc = r.ops(
            "LSTMStepsGrad", [self._kept, self._weights, *given], reverse=self._layer.loop.reverse
        )
        states: dict[ir.Value, ir.Value] = {back.dh: dh, back.dc: dc}
        for value, state, result in back.loop.results():
            if not result.uses() and not result.is_graph_output():
                continue
            if state is None:
                found = dgates if behind(value) is behind(back.dgates) else None
            else:
                found = states.get(state) or _zero_after(back.loop, r, state)
            if found is None or desc_of(found).size != desc_of(result).size:
                return False
            self._replace(r, result, found)
        return True

    def _gradients(self, back: _Back, r: Rewriter) -> list[ir.Value | None] | None:
        """The gradients of all states and of the last ones, None for those that are zero."""
        dtype, shape = self._layer.desc.dtype, self._layer.desc.shape
        rows: list[ir.Value] = []
        last = [back.loop.given(back.dh)]
        for value in back.extras:
            state = _first_alone(back.loop, value)
            row = behind(value, views=True)
            if state is not None:
                last.append(r.op("Reshape", back.loop.given(state), shape=shape))
            elif row in back.loop.rows and desc_of(row).size == desc_of(back.dh).size:
                rows.append(r.op("Reshape", back.loop.given(row), shape=[back.loop.steps, *shape]))
            else:
                return None
        sums = [_total(r, v) for v in (rows, last, [back.loop.given(back.dc)])]
        return [None if v is None else r.cast(v, dtype) for v in sums]

    def _replace(self, r: Rewriter, result: ir.Value, made: ir.Value) -> None:
        desc = desc_of(result)
        made = r.cast(made, desc.dtype)
        self.replaced[result] = made if desc_of(made) == desc else r.op("Reshape", made, shape=desc.shape)


def _outside(loop: ScanLoop, r: Rewriter, value: ir.Value) -> ir.Value | None:
    """The outside value of an input of the body, or of a constant in it; None for values computed by a step."""
    constant = constant_of(behind(value))
    if constant is not None:
        return r.constant(constant)
    return None if behind(value) in loop.states else loop.given(behind(value))


def _wide(r: Rewriter, value: ir.Value) -> ir.Value:
    return r.cast(value, widened(desc_of(value).dtype))


def _total(r: Rewriter, values: Sequence[ir.Value | None]) -> ir.Value | None:
    """The sum of values, None if it is zero."""
    total: ir.Value | None = None
    for value in values:
        if scalar(value) != 0:
            total = value if total is None else r.op("Add", total, value)
    return total


def _first_alone(loop: ScanLoop, value: ir.Value) -> ir.Value | None:
    """The state that a value is, perhaps reshaped, if it is zero from the second step on."""
    state = behind(value, views=True)
    return state if state in loop.states and scalar(behind(loop.after(state))) == 0 else None


def _zero_after(loop: ScanLoop, r: Rewriter, state: ir.Value) -> ir.Value | None:
    """A state that is zero after every step."""
    if scalar(behind(loop.after(state))) != 0:
        return None
    return r.op("BroadcastTo", r.constant(0.0, dtype=desc_of(state).dtype), shape=desc_of(state).shape)


# -- the pass --------------------------------------------------------------------------------------------------


class FuseRecurrentTraining(Pass):
    """Recognise LSTM layers in training.

    1. A Scan, reduced to its recurrence by fission, whose step is an LSTM (gates in the order input, forget, cell,
       output), and the Scans that run backward through its saved values and compute the gradient, become the operators
       LSTMSteps and LSTMStepsGrad. The formulas of both are compared with the definitions of these operators.
    2. All other results of the loops must be computable from the results of these operators. Otherwise, and if one of
       several backward loops differs, all loops stay.
    3. Layers for which the target has no task stay loops.
    """

    name = "fuse_recurrent_training"

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        changed = False
        for node in [n for n in graph if n.op_type == "Scan"]:
            readers = _readers(node) if node.graph is graph else []
            layer = _layer_of(node) if readers else None
            if layer is not None and _are_tasks(layer, options):
                changed |= _fuse(graph, layer, readers, options)
        return changed


def _readers(node: ir.Node) -> list[ir.Node]:
    """The loops that read a loop's stacked values, also shifted by one step."""
    collected = node.outputs[attrs_of(node)["num_states"] :]
    found = dict.fromkeys(c for v in collected for c in v.consumers())
    for _ in range(2):  # through a slice and its concatenation
        found |= dict.fromkeys(
            c for n in found if n.op_type in ("Slice", "Concat") for v in n.outputs for c in v.consumers()
        )
    return [n for n in found if n.op_type == "Scan"]


def _are_tasks(layer: _Layer, options: CompileOptions) -> bool:
    mode = mode_of(layer.loop.node, options) if layer.desc.dtype == "float32" else None
    batch, units = layer.desc.shape
    dtype = layer.desc.dtype if mode is None else mode.dtype
    return are_tasks(layer.loop.steps, batch, units, dtype, options.target)


def _fuse(graph: ir.Graph, layer: _Layer, readers: Sequence[ir.Node], options: CompileOptions) -> bool:
    backs = [b for n in readers if (b := _back_of(layer, n)) is not None]
    if not backs:
        return False
    emitter = _Emitter(graph, layer, options)
    if not (emitter.forward() and emitter.results(backs) and all(emitter.back(b) for b in backs)):
        emitter.discard()
        return False
    for node in (*(b.loop.node for b in backs), layer.loop.node):
        replace_node(graph, node, [emitter.replaced.get(v, v) for v in node.outputs])
    return True
