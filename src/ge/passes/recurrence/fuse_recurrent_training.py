"""LSTM layers in training written as loops: one over all steps, and one back through what its steps have kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ge.ir.types import FLOATS, TensorDesc, widened
from ge.ir.values import constant_of, desc_of
from ge.ops.nn.lstm_steps import are_tasks
from ge.ops.nn.recurrent_training import lstm_step, lstm_step_back, shifted
from ge.options import CompileOptions
from ge.passes.base import Pass
from ge.passes.precision.lower_precision import mode_of
from ge.passes.recurrence.loops import CountedLoop, Lifted, Lifter, behind, is_product
from ge.passes.recurrence.polynomials import Formulas, Polynomial, formulas
from ge.passes.recurrence.recurrent_cells import LstmCell, lstm_cell
from ge.passes.rewrite import (
    Rewriter,
    attrs_of,
    only_use,
    producer,
    remove_dead,
    replace_node,
    scalar,
    sole_consumer,
)

__all__ = ["FuseRecurrentTraining"]

_GATES = 4
_IN_ORDER = tuple(range(_GATES))
# What a step keeps, and so what the formulas of the way back are in.
_KEPT = [
    Polynomial.of(name) for name in ("input gate", "forget gate", "cell gate", "output gate", "cell before")
]
_DH, _DC = Polynomial.of("gradient of the state"), Polynomial.of("gradient of the cell")


# -- the loop over all steps -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layer:
    """A loop whose step is that of an LSTM."""

    loop: CountedLoop
    cell: LstmCell
    weights: ir.Value  # recurrent ones as the body has them, (H, 4 * H)
    addends: list[ir.Value]  # what the body adds to the state's product

    @property
    def desc(self) -> TensorDesc:
        """Of a state."""
        return desc_of(self.cell.hidden)

    def meaning(self, value: ir.Value) -> Polynomial | None:
        """What a value of the body is in terms of what a step keeps, None for what is not of the cell."""
        given = self.cell.values[value]
        return next((theirs for own, theirs in self._meanings() if own == given), None)

    def _meanings(self) -> Iterable[tuple[Polynomial, Polynomial]]:
        """The values of a step as formulas of its body, and of what it keeps."""
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
    loop = CountedLoop.of(node)
    for split in loop.body if loop is not None else ():
        if split.op_type == "Split" and len(split.outputs) == _GATES:
            found = _layer_at(loop, split.inputs[0])  # type: ignore[arg-type]
            if found is not None:
                return found
    return None


def _layer_at(loop: CountedLoop, total: ir.Value) -> _Layer | None:
    """The layer whose gates are parts of a sum."""
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


def _product_of_state(loop: CountedLoop, value: ir.Value) -> ir.Node | None:
    """The product that a value is, perhaps under another shape, when it is one of a state."""
    product = producer(behind(value, "Identity", "Reshape"), "MatMul")
    if product is None or not is_product(product) or behind(product.inputs[0]) not in loop.states:
        return None
    return product


def _addends(value: ir.Value) -> list[ir.Value]:
    """The values of which a value is the sum."""
    node = producer(behind(value), "Add")
    if node is None:
        found = behind(value)
        assert found is not None
        return [found]
    return [a for v in node.inputs if v is not None for a in _addends(v)]


# -- the loop back ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Back:
    """A loop that goes back through the steps of a layer."""

    layer: _Layer
    loop: CountedLoop
    dh: ir.Value  # states of its body
    dc: ir.Value
    extras: list[ir.Value]  # what a step adds to the gradient of the state
    dgates: ir.Value

    def forward(self, value: ir.Value | None) -> ir.Value | None:
        """The value of the layer's body whose row the body reads, from the last step on."""
        stack = self.loop.outer(self.loop.row_of(value, back=True))
        return next(
            (v for v, state, own in self.layer.loop.results() if state is None and own is stack), None
        )


def _back_of(layer: _Layer, node: ir.Node) -> _Back | None:
    loop = CountedLoop.of(node)
    if loop is None or loop.steps != layer.loop.steps:
        return None
    for gates in loop.body:
        if gates.op_type != "Concat" or len(gates.inputs) != _GATES:
            continue
        for dh in (s for s in loop.states if desc_of(s) == layer.desc):
            found = _back_at(layer, loop, gates, dh)
            if found is not None:
                return found
    return None


def _back_at(layer: _Layer, loop: CountedLoop, gates: ir.Node, dh: ir.Value) -> _Back | None:
    """The way back whose gradients of gates, and of the state, are these."""
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
    """A state and what is added to it before anything else happens."""
    extras: list[ir.Value] = []
    while (node := sole_consumer(state, "Add")) is not None:
        extras += [v for v in node.inputs if v is not None and v is not state]
        state = node.outputs[0]
    return state, extras


def _is_same_matrix(back: _Back, value: ir.Value | None) -> bool:
    """Whether the way back multiplies by the layer's own recurrent weights."""
    weights, own = behind(back.layer.weights), behind(back.forward(value) or value)
    given, known = constant_of(own), constant_of(weights)
    if given is not None and known is not None:
        return np.array_equal(given, known)
    outer = back.loop.outer(own)
    return own is weights or (outer is not None and outer is back.layer.loop.outer(weights))


def _goes_back(back: _Back, gates: ir.Node, total: ir.Value) -> bool:
    """Whether the gradients of gates and of the cell state are those of an LSTM's step."""
    known: dict[ir.Value, Polynomial] = {total: _DH, back.dc: _DC}
    for node in back.loop.body:
        own = back.forward(node.outputs[0]) if node.op_type == "Gather" else None
        meaning = None if own is None else back.layer.meaning(own)
        if meaning is not None:
            known[node.outputs[0]] = meaning
    values = formulas(back.loop.body, known)
    wanted, before = lstm_step_back(Formulas(), _KEPT, _DH, _DC)
    made = [values[v] for v in gates.inputs if v is not None]
    return made == wanted and values[back.loop.after(back.dc)] == before


# -- both as operators -----------------------------------------------------------------------------------------


class _Emitter:
    """The operators for a layer, before its loop, and for the ways back through it, before theirs."""

    def __init__(self, graph: ir.Graph, layer: _Layer, options: CompileOptions) -> None:
        self._graph, self._layer, self._options = graph, layer, options
        self._r = Rewriter(graph, layer.loop.node, options)
        self._rewriters = [self._r]
        self._constants = set(graph.initializers)
        self._lifter = Lifter(layer.loop, self._r)
        self.replaced: dict[ir.Value, ir.Value] = {}

    def discard(self) -> None:
        """Remove what was made."""
        for r in reversed(self._rewriters):
            remove_dead(self._graph, reversed(r.created))
        for name in self._graph.initializers.keys() - self._constants:
            del self._graph.initializers[name]

    def forward(self) -> bool:
        """Make the operator for all steps; False when something it needs cannot be made."""
        layer, r = self._layer, self._r
        weights, gates = self._lifter.of(layer.weights), self._gates()
        if weights is None or weights.stacked or gates is None:
            return False
        self._weights = r.op("Transpose", weights.value, perm=[1, 0])
        self._first = layer.loop.initial(layer.cell.hidden)
        first = [self._first, layer.loop.initial(layer.cell.cell)]
        self._y, self._kept, self._h, self._c = r.ops("LSTMSteps", [gates, self._weights, *first])
        return True

    def _gates(self) -> ir.Value | None:
        """What the input and the biases add to the gates, for all steps."""
        layer, r = self._layer, self._r
        wide = widened(layer.desc.dtype)
        found: list[Lifted] = []
        for value in layer.addends:
            product = producer(value, "MatMul")
            made = None if product is None else self._lifter.product(product, _sum_type(value))
            made = made or self._lifter.of(value)
            if made is None:
                return None
            found.append(Lifted(_fitting(r, made.value, wide), made.stacked))
        shape = (layer.loop.steps, layer.desc.shape[0], _GATES * layer.desc.shape[1])
        found.sort(key=lambda v: not v.stacked)
        if not found or desc_of(found[0].value).shape != shape:
            return None
        total = found[0].value
        for other in found[1:]:
            total = r.op("Add", total, other.value)
        return total if desc_of(total).shape == shape else None

    def stack(self, r: Rewriter, value: ir.Value) -> Lifted | None:
        """A value of the layer's body in all steps, as far as it can be had without the loop."""
        layer = self._layer
        value = behind(value)  # type: ignore[assignment]
        if value is layer.cell.hidden:
            return Lifted(shifted(r, self._y, self._first), True)
        if layer.cell.values[value] == layer.cell.values[layer.loop.after(layer.cell.hidden)]:
            return Lifted(self._y, True) if desc_of(value) == layer.desc else None
        return self._lifter.of(value)

    def results(self, backs: Sequence[_Back]) -> bool:
        """Replace what others than the ways back read of the layer's results."""
        values, cell, loop = self._layer.cell.values, self._layer.cell, self._layer.loop
        last = {values[loop.after(cell.hidden)]: self._h, values[loop.after(cell.cell)]: self._c}
        own = {back.loop.node for back in backs}
        for value, state, result in loop.results():
            if not result.is_graph_output() and set(result.consumers()) <= own:
                continue
            rows = self.stack(self._r, value) if state is None else None
            made = last.get(values[value]) if state is not None else _all_rows(self._r, rows, loop.steps)
            if made is None or desc_of(made).size != desc_of(result).size:
                return False
            self._replace(self._r, result, made)
        return True

    def back(self, back: _Back) -> bool:
        """Make the operator for the way back and what comes of it; False when that is not all the loop gives."""
        r = Rewriter(self._graph, back.loop.node, self._options)
        self._rewriters.append(r)
        made: dict[ir.Value, Lifted] = {}

        def known(value: ir.Value) -> Lifted | None:
            own = back.forward(value)
            return made.get(value) or (None if own is None else self.stack(r, own))

        lifter = Lifter(back.loop, r, known, back=True)
        given = self._gradients(back, r, lifter)
        if given is None:
            return False
        dgates, dh, dc = r.ops("LSTMStepsGrad", [self._kept, self._weights, *given])
        made[back.dgates] = Lifted(dgates, True)
        states: dict[ir.Value, ir.Value] = {back.dh: dh, back.dc: dc}
        for value, state, result in back.loop.results():
            if not result.uses() and not result.is_graph_output():
                continue
            if state is None:
                rows = _all_rows(r, lifter.of(value), back.loop.steps)
                found = None if rows is None else r.op("Reverse", rows, axes=[0])
            else:
                found = states.get(state) or _sum(back.loop, r, lifter, state)
            if found is None or desc_of(found).size != desc_of(result).size:
                return False
            self._replace(r, result, found)
        return True

    def _gradients(self, back: _Back, r: Rewriter, lifter: Lifter) -> list[ir.Value | None] | None:
        """The gradients of all states and of the last ones, None for those that are zero."""
        dtype, shape = self._layer.desc.dtype, self._layer.desc.shape
        rows: list[ir.Value] = []
        last = [back.loop.initial(back.dh)]
        for value in back.extras:
            state = _first_alone(back.loop, value)
            lifted = None if state is not None else _all_rows(r, lifter.of(value), back.loop.steps)
            if state is not None:
                last.append(r.op("Reshape", back.loop.initial(state), shape=shape))
            elif lifted is not None and desc_of(lifted).shape == (back.loop.steps, *shape):
                rows.append(lifted)
            else:
                return None
        sums = [_total(r, v) for v in (rows, last, [back.loop.initial(back.dc)])]
        return [None if v is None else _fitting(r, v, dtype) for v in sums]

    def _replace(self, r: Rewriter, result: ir.Value, made: ir.Value) -> None:
        desc = desc_of(result)
        made = _fitting(r, made, desc.dtype)
        self.replaced[result] = made if desc_of(made) == desc else r.op("Reshape", made, shape=desc.shape)


def _sum_type(value: ir.Value) -> str | None:
    """The type to ask of a product of values like this one, so that its sums are not rounded."""
    dtype = desc_of(value).dtype
    return None if widened(dtype) == dtype else widened(dtype)


def _fitting(r: Rewriter, value: ir.Value, dtype: str) -> ir.Value:
    return value if desc_of(value).dtype == dtype else r.op("Cast", value, to=dtype)


def _all_rows(r: Rewriter, value: Lifted | None, steps: int) -> ir.Value | None:
    """The rows of all steps, also of a value that is the same in all of them."""
    if value is None or value.stacked:
        return None if value is None else value.value
    return r.op("BroadcastTo", value.value, shape=[steps, *desc_of(value.value).shape])


def _total(r: Rewriter, values: Sequence[ir.Value]) -> ir.Value | None:
    """The sum of values, None where it is zero."""
    total: ir.Value | None = None
    for value in values:
        if scalar(value) != 0:
            total = value if total is None else r.op("Add", total, value)
    return total


def _first_alone(loop: CountedLoop, value: ir.Value) -> ir.Value | None:
    """The state that a value is under another shape, when it is zero from the second step on."""
    state = behind(value, "Identity", "Reshape")
    return state if state in loop.states and scalar(behind(loop.after(state))) == 0 else None


def _sum(loop: CountedLoop, r: Rewriter, lifter: Lifter, state: ir.Value) -> ir.Value | None:
    """A state that each step only adds to, after all steps; also one that is zero after any."""
    if scalar(behind(loop.after(state))) == 0:
        return r.op("BroadcastTo", r.constant(0.0, dtype=desc_of(state).dtype), shape=desc_of(state).shape)
    addends = _addends(loop.after(state))
    others = [v for v in addends if v is not state]
    if len(others) != len(addends) - 1 or not only_use(state) or desc_of(state).dtype not in FLOATS:
        return None
    desc, wide = desc_of(state), widened(desc_of(state).dtype)
    sums = [_over_steps(r, lifter, v) for v in others]
    if any(v is None or desc_of(v).size != desc.size for v in sums):
        return None
    found = [_fitting(r, r.op("Reshape", v, shape=desc.shape), wide) for v in sums if v is not None]
    return _total(r, [*found, _fitting(r, loop.initial(state), wide)]) or loop.initial(state)


def _over_steps(r: Rewriter, lifter: Lifter, value: ir.Value) -> ir.Value | None:
    """The sum over all steps of a value, perhaps under another shape; of rows of 16-bit floats in float32."""
    while (
        desc_of(value).dtype in FLOATS
        and (node := producer(value, "Cast", "Identity", "Reshape")) is not None
    ):
        value = node.inputs[0]  # type: ignore[assignment]
    product, rows = producer(value, "MatMul"), producer(value, "ReduceSum")
    if product is not None:
        return _product_over_steps(r, lifter, product)
    if rows is not None and tuple(attrs_of(rows)["axes"] or ()) != (0,):
        return None
    lifted = lifter.of(value if rows is None else rows.inputs[0])
    if lifted is None or not lifted.stacked or desc_of(value).dtype not in FLOATS:
        return None
    stack = lifted.value if rows is None else lifter.flat(lifted.value)
    return r.op("ReduceSum", _fitting(r, stack, widened(desc_of(stack).dtype)), axes=[0], keepdims=False)


def _product_over_steps(r: Rewriter, lifter: Lifter, node: ir.Node) -> ir.Value | None:
    """The sum over all steps of a product of columns (aᵀ·b)."""
    if not is_product(node, transpose_a=True):
        return None
    rows = [lifter.of(v) for v in node.inputs]
    flat = [lifter.flat(v.value) for v in rows if v is not None and v.stacked]
    return r.op_like(node, flat, output_dtype=_sum_type(flat[0])) if len(flat) == len(rows) else None


# -- the pass --------------------------------------------------------------------------------------------------


class FuseRecurrentTraining(Pass):
    """Recognise LSTM layers in training.

    1. A Loop whose step computes what one of an LSTM computes (gates in the order input, forget, cell, output), and the
       Loops that go back through what it has collected and compute the gradient, are the operators LSTMSteps and
       LSTMStepsGrad, with products over all steps before and after them. Formulas of both kinds of loops are compared
       with the definitions of these operators.
    2. What else the loops give must be had without them: states, rows that depend on no state, sums over all steps of
       products and of rows. Else, and where one of several ways back is different, all loops stay.
    3. Sums over all steps are made in float32 of 16-bit rows.
    4. Layers for which the target has no task stay loops.
    """

    name = "fuse_recurrent_training"

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        changed = False
        for node in [n for n in graph if n.op_type == "Loop"]:
            readers = _readers(node) if node.graph is graph else []
            layer = _layer_of(node) if readers else None
            if layer is not None and _are_tasks(layer, options):
                changed |= _fuse(graph, layer, readers, options)
        return changed


def _readers(node: ir.Node) -> list[ir.Node]:
    """The loops that read what a loop collects."""
    collected = node.outputs[attrs_of(node)["num_states"] :]
    return list(dict.fromkeys(c for v in collected for c in v.consumers() if c.op_type == "Loop"))


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
