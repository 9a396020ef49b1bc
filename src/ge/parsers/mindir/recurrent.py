"""MindSpore: LSTM layers and their gradients, with all weights in one tensor."""

from __future__ import annotations

from typing import Any

from ge.ir.values import desc_of
from ge.ops.nn.recurrent_training import CELLS, layer, layer_gradients
from ge.ops.plugins import Unsupported
from ge.parsers.mindir.node import MsNode, primitive

GATES = 4


def _directions(n: MsNode) -> int:
    if int(n.setting("num_layers", 1)) != 1 or int(n.setting("proj_size", 0)):
        raise Unsupported("an LSTM primitive of several layers or with a projection")
    if float(n.setting("dropout", 0.0)) or n.setting("bidirectional", False):
        raise Unsupported("an LSTM primitive with dropout or in both directions")
    return 1


def _weights(n: MsNode) -> list[list[Any]]:
    """For each direction the weights of the input and of the state, and a bias: all flat, one after the other."""
    flat = n.tensor("w")
    flat = n.shaped(flat, [desc_of(flat).size])
    units, width = int(n.setting("hidden_size")), int(n.setting("input_size"))
    count, place = _directions(n), 0
    has_bias = bool(n.setting("has_bias", True))
    found: list[list[Any]] = [[] for _ in range(count)]

    def take(*shape: int) -> Any:
        nonlocal place
        size = shape[0] * (shape[1] if len(shape) > 1 else 1)
        part = n.op("Slice", flat, starts=[place], ends=[place + size])
        place += size
        return n.shaped(part, list(shape))

    for columns in (width, units):
        for direction in range(count):
            found[direction].append(take(GATES * units, columns))
    for direction in range(count):
        found[direction].append(take(GATES * units) if has_bias else None)
    return found


def _part(n: MsNode, value: Any, direction: int, shape: list[int], axis: int = 0) -> Any:
    """The part of a tensor that belongs to a direction."""
    full = list(desc_of(value).shape)
    starts, ends = [0] * len(full), list(full)
    size = shape[axis] if axis else 1
    starts[axis], ends[axis] = direction * size, (direction + 1) * size
    return n.shaped(n.op("Slice", value, starts=starts, ends=ends) if ends != full else value, shape)


@primitive("LSTM", "x h c w")
def _lstm(n: MsNode) -> Any:
    x, cell = n.tensor("x"), CELLS["lstm"]
    _, batch, _ = desc_of(x).shape
    units = int(n.setting("hidden_size"))
    outputs, last, kept = [], [], []
    for direction, (w, r, bias) in enumerate(_weights(n)):
        states = [_part(n, n.tensor(k), direction, [batch, units]) for k in ("h", "c")]
        biases = [] if bias is None else [bias, n.filled(0, desc_of(bias))]
        y, final, gates = layer(n.builder, cell, x, [w, r], biases, states, bool(direction))
        outputs.append(y)
        last.append(final)
        kept.append(gates)
    y = outputs[0] if len(outputs) == 1 else n.op("Concat", *outputs, axis=2)
    ends = [_stacked(n, [f[i] for f in last]) for i in range(2)]
    reserve, state = n.filled(0, n.out(3)), n.filled(0, n.out(4))
    n.parser.kept[reserve] = (outputs, kept)
    return [y, *ends, reserve, state]


def _stacked(n: MsNode, values: list[Any]) -> Any:
    rows = [n.shaped(v, [1, *desc_of(v).shape]) for v in values]
    return rows[0] if len(rows) == 1 else n.op("Concat", *rows, axis=0)


@primitive("LSTMGrad", "x h c w y hy cy dy dhy dcy reserve")
def _lstm_grad(n: MsNode) -> Any:
    """By the input, the states and all weights as one tensor."""
    reserve = n.tensor("reserve")
    if reserve not in n.parser.kept:
        raise Unsupported("the gradient of an LSTM that is not in the graph")
    outputs, kept = n.parser.kept[reserve]
    x, cell = n.tensor("x"), CELLS["lstm"]
    steps, batch, _ = desc_of(x).shape
    units = int(n.setting("hidden_size"))
    found = []
    for direction, (w, r, _) in enumerate(_weights(n)):
        h = _part(n, n.tensor("h"), direction, [batch, units])
        dy = _part(n, n.tensor("dy"), direction, [steps, batch, units], 2)
        ends = [_part(n, n.tensor(k), direction, [batch, units]) for k in ("dhy", "dcy")]
        found.append(
            layer_gradients(
                n.builder, cell, x, [w, r], h, outputs[direction], kept[direction], dy, ends, bool(direction)
            )
        )
    by_x = found[0].x if len(found) == 1 else n.op("Add", found[0].x, found[1].x)
    groups = [[f.w for f in found], [f.r for f in found]]
    if n.setting("has_bias", True):
        groups.append([f.bias for f in found])
    flat = [n.shaped(v, [desc_of(v).size]) for group in groups for v in group]
    weights = n.op("Concat", *flat, axis=0)
    states = [_stacked(n, [f.states[i] for f in found]) for i in range(2)]
    return [by_x, *states, n.shaped(weights, n.out(3).shape)]
