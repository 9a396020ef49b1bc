"""PaddlePaddle: recurrent layers (`rnn`: LSTM, GRU and plain cells, layers and directions) and their gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ge.ir.types import TensorDesc
from ge.ir.values import desc_of
from ge.ops.nn.recurrent_training import CELLS, Gradients, layer, layer_gradients
from ge.ops.plugins import Unsupported
from ge.parsers.paddle.node import PaddleNode, paddle

_CELLS = {"LSTM": "lstm", "GRU": "gru", "RNN_TANH": "rnn_tanh", "RNN_RELU": "rnn_relu"}


@dataclass(frozen=True)
class _Run:
    """One direction of one layer: what it reads, and what it gives; `y` are its own states, `shown` its output."""

    x: Any
    weights: list[Any]
    biases: list[Any]
    states: list[Any]
    reverse: bool
    y: Any
    shown: Any
    last: list[Any]
    kept: Any


@dataclass(frozen=True)
class _Lengths:
    """Sequences of different lengths: their steps, the last of them, the empty ones, and the steps in reverse.

    A direction that begins with the last step reads its sequences turned round, the padding in place: then in both
    directions the padding comes last, and does not matter.
    """

    n: PaddleNode
    valid: Any  # (T, N, 1)
    last: Any  # (T, N, 1)
    empty: Any  # (N, 1)
    turns: Any  # (T, N, 1)

    @classmethod
    def of(cls, n: PaddleNode, x: Any, lengths: Any) -> _Lengths:
        steps, batch, _ = desc_of(x).shape
        shape = [steps, batch, 1]
        here = n.constant(np.arange(steps).reshape(steps, 1, 1), "int64")
        here = n.op("BroadcastTo", here, shape=shape)
        flat = n.shaped(n.cast(lengths, "int64"), [1, batch, 1])
        ends = n.op("Sub", n.op("BroadcastTo", flat, shape=shape), 1)
        valid = n.op("LessEqual", here, ends)
        turns = n.op("Select", valid, n.op("Sub", ends, here), here)
        empty = n.op("LessEqual", n.shaped(flat, [batch, 1]), 0)
        return cls(n, valid, n.op("Equal", here, ends), empty, turns)

    def kept(self, mask: Any, x: Any) -> Any:
        """A tensor (or one for all steps) where a mask holds, zero elsewhere."""
        shape = [*desc_of(mask).shape[:-1], desc_of(x).shape[-1]]
        desc = TensorDesc(tuple(shape), desc_of(x).dtype)
        wide = [self.n.op("BroadcastTo", v, shape=shape) for v in (mask, x)]
        return self.n.op("Select", *wide, self.n.filled(0, desc))

    def turned(self, x: Any) -> Any:
        places = self.n.op("BroadcastTo", self.turns, shape=desc_of(x).shape)
        return self.n.op("GatherElements", x, places, axis=0)

    def ended(self, y: Any, first: Any) -> Any:
        """The hidden states after the last steps; those of empty sequences are the first."""
        found = self.n.op("ReduceSum", self.kept(self.last, y), axes=[0], keepdims=False)
        return self.n.op("Add", found, self.kept(self.empty, first))


def _lengths(n: PaddleNode) -> _Lengths | None:
    given = n.input(3)
    return None if given is None else _Lengths.of(n, n.inputs[0], given)


def _runs(n: PaddleNode, x: Any, states: list[Any], weights: list[Any]) -> list[list[_Run]]:
    """All layers, each with its directions; the weights of all come first, then the biases."""
    layers, directions = int(n.attr("num_layers")), 2 if n.attr("is_bidirec") else 1
    count = layers * directions
    if len(weights) != 4 * count:
        raise Unsupported(f"{len(weights)} weights of {count} layers")
    if float(n.attr("dropout_prob", 0.0)) and not n.attr("is_test") and layers > 1:
        raise Unsupported("dropout between recurrent layers", "use nn.Dropout beside layers of their own")
    lengths = _lengths(n)
    found: list[list[_Run]] = []
    for place in range(layers):
        made = []
        for direction in range(directions):
            index = place * directions + direction
            first = [_at(n, state, index) for state in states]
            pair, biases = (
                weights[2 * index : 2 * index + 2],
                weights[2 * (count + index) : 2 * (count + index) + 2],
            )
            made.append(_run(n, x, pair, biases, first, bool(direction), lengths))
        found.append(made)
        x = made[0].shown if directions == 1 else n.op("Concat", made[0].shown, made[1].shown, axis=2)
    return found


def _run(
    n: PaddleNode,
    x: Any,
    weights: list[Any],
    biases: list[Any],
    states: list[Any],
    reverse: bool,
    lengths: _Lengths | None,
) -> _Run:
    cell = CELLS[_CELLS[n.attr("mode")]]
    if lengths is None:
        y, last, kept = layer(n.builder, cell, x, weights, biases, states, reverse)
        return _Run(x, weights, biases, states, reverse, y, y, list(last), kept)
    x = lengths.turned(x) if reverse else x
    held = n.op("Not", lengths.valid)
    y, last, kept = layer(n.builder, cell, x, weights, biases, states, held=held)
    shown = lengths.kept(lengths.valid, y)
    shown = lengths.turned(shown) if reverse else shown
    return _Run(x, weights, biases, states, reverse, y, shown, [lengths.ended(y, states[0]), *last[1:]], kept)


def _run_gradients(n: PaddleNode, run: _Run, g: Any, ends: list[Any], lengths: _Lengths | None) -> Gradients:
    """The gradients of a run for those of what it shows and of its last states."""
    cell = CELLS[_CELLS[n.attr("mode")]]
    own = (n.builder, cell, run.x, run.weights, run.states[0], run.y, run.kept)
    if lengths is None:
        return layer_gradients(*own, g, ends, run.reverse)
    g = lengths.kept(lengths.valid, lengths.turned(g) if run.reverse else g)
    g = n.op("Add", g, lengths.kept(lengths.last, ends[0]))
    found = layer_gradients(*own, g, [n.filled(0, desc_of(ends[0])), *ends[1:]])
    first = n.op("Add", found.states[0], lengths.kept(lengths.empty, ends[0]))
    by_x = lengths.turned(found.x) if run.reverse else found.x
    return replace(found, x=by_x, states=[first, *found.states[1:]])


def _at(n: PaddleNode, x: Any, index: int) -> Any:
    """One of the slices along the first axis."""
    shape = desc_of(x).shape
    part = n.op("Slice", x, starts=[index, *(0 for _ in shape[1:])], ends=[index + 1, *shape[1:]])
    return n.shaped(part, shape[1:])


def _stacked(n: PaddleNode, parts: list[Any]) -> Any:
    lifted = [n.shaped(p, [1, *desc_of(p).shape]) for p in parts]
    return n.builder.ops("Concat", lifted, axis=0)[0]


@paddle("rnn")
def _rnn(n: PaddleNode) -> Any:
    """The last layer's outputs, no dropout state, the last states, no reserve (our gradient needs none)."""
    runs = _runs(n, n.inputs[0], n.tensors(1), n.tensors(2))
    top = runs[-1]
    y = top[0].shown if len(top) == 1 else n.op("Concat", top[0].shown, top[1].shown, axis=2)
    flat = [run for made in runs for run in made]
    last = [_stacked(n, [run.last[i] for run in flat]) for i in range(len(flat[0].last))]
    return [y, None, last, None]


@paddle("rnn_grad")
def _rnn_grad(n: PaddleNode) -> Any:
    """The layers run again, then their gradients from the last to the first."""
    x, states, weights = n.inputs[0], n.tensors(1), n.tensors(2)
    incoming, by_last = n.inputs[7], n.tensors(8) if n.input(8) is not None else []
    cell = CELLS[_CELLS[n.attr("mode")]]
    runs, lengths = _runs(n, x, states, weights), _lengths(n)
    directions = len(runs[0])
    by_weights: list[Any] = [None] * len(weights)
    by_states: list[list[Any]] = [[] for _ in states]
    g = incoming
    for place in range(len(runs) - 1, -1, -1):
        parts = _halves(n, g, directions)
        by_inputs, found_states = [], []
        for direction, run in enumerate(runs[place]):
            index = place * directions + direction
            ends = [_at(n, v, index) if v is not None else None for v in by_last] or [None] * cell.states
            zeros = [
                n.filled(0, desc_of(s)) if e is None else e for s, e in zip(run.states, ends, strict=True)
            ]
            found = _run_gradients(n, run, parts[direction], zeros, lengths)
            by_inputs.append(found.x)
            found_states.append(found.states)
            count = len(weights) // 4
            by_weights[2 * index : 2 * index + 2] = [found.w, found.r]
            by_weights[2 * (count + index) : 2 * (count + index) + 2] = [found.bias, found.recurrent_bias]
        for i, kept in enumerate(by_states):
            kept[:0] = [each[i] for each in found_states]
        g = by_inputs[0] if directions == 1 else n.op("Add", *by_inputs)
    return [g, [_stacked(n, parts) for parts in by_states], by_weights]


def _halves(n: PaddleNode, g: Any, directions: int) -> list[Any]:
    if directions == 1:
        return [g]
    steps, batch, width = desc_of(g).shape
    half = width // 2
    return [n.op("Slice", g, starts=[0, 0, i * half], ends=[steps, batch, (i + 1) * half]) for i in range(2)]
