"""PaddlePaddle: recurrent layers (`rnn`: LSTM, GRU and plain cells, layers and directions) and their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ge.ir.values import desc_of
from ge.ops.nn.recurrent_training import CELLS, layer, layer_gradients
from ge.ops.plugins import Unsupported
from ge.parsers.paddle.node import PaddleNode, paddle

_CELLS = {"LSTM": "lstm", "GRU": "gru", "RNN_TANH": "rnn_tanh", "RNN_RELU": "rnn_relu"}


@dataclass(frozen=True)
class _Run:
    """One direction of one layer: what it reads, and what it gives."""

    x: Any
    weights: list[Any]
    biases: list[Any]
    states: list[Any]
    reverse: bool
    y: Any
    last: list[Any]
    kept: Any


def _runs(n: PaddleNode, x: Any, states: list[Any], weights: list[Any]) -> list[list[_Run]]:
    """All layers, each with its directions; the weights of all come first, then the biases."""
    cell = CELLS[_CELLS[n.attr("mode")]]
    layers, directions = int(n.attr("num_layers")), 2 if n.attr("is_bidirec") else 1
    count = layers * directions
    if len(weights) != 4 * count:
        raise Unsupported(f"{len(weights)} weights of {count} layers")
    if float(n.attr("dropout_prob", 0.0)) and not n.attr("is_test") and layers > 1:
        raise Unsupported("dropout between recurrent layers", "use nn.Dropout beside layers of their own")
    if n.input(3) is not None:
        raise Unsupported("sequences of different lengths", "leave sequence_length out")
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
            y, last, kept = layer(n.builder, cell, x, pair, biases, first, bool(direction))
            made.append(_Run(x, pair, biases, first, bool(direction), y, list(last), kept))
        found.append(made)
        x = made[0].y if directions == 1 else n.op("Concat", made[0].y, made[1].y, axis=2)
    return found


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
    y = top[0].y if len(top) == 1 else n.op("Concat", top[0].y, top[1].y, axis=2)
    flat = [run for made in runs for run in made]
    last = [_stacked(n, [run.last[i] for run in flat]) for i in range(len(flat[0].last))]
    return [y, None, last, None]


@paddle("rnn_grad")
def _rnn_grad(n: PaddleNode) -> Any:
    """The layers run again, then their gradients from the last to the first."""
    x, states, weights = n.inputs[0], n.tensors(1), n.tensors(2)
    incoming, by_last = n.inputs[7], n.tensors(8) if n.input(8) is not None else []
    cell = CELLS[_CELLS[n.attr("mode")]]
    runs = _runs(n, x, states, weights)
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
            found = layer_gradients(
                n.builder,
                cell,
                run.x,
                run.weights,
                run.states[0],
                run.y,
                run.kept,
                parts[direction],
                zeros,
                run.reverse,
            )
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
