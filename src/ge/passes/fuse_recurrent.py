"""Recurrent layers written as loops: a loop whose step is that of an LSTM or a GRU becomes one operator."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from ge.errors import GeError
from ge.ir.interpret import interpret
from ge.ir.types import numpy_dtype
from ge.ir.values import constant_of, desc_of
from ge.passes.rewrite import (
    Replacement,
    RewritePass,
    Rewriter,
    Rules,
    attrs_of,
    producer,
    scalar,
    sole_consumer,
)

__all__ = ["FuseRecurrent"]

_TOLERANCE = 1e-4
_SEED = 7


@dataclass(frozen=True)
class _Step:
    """The parts of a loop's body that a recurrent layer has."""

    sequence: int  # the body's input that holds x over time
    hidden: int  # the body's input that is the hidden state
    w: np.ndarray  # (I, G * H)
    r: np.ndarray  # (H, G * H)
    input_bias: np.ndarray  # (G * H), what is added to x * w (and to the sum)
    hidden_bias: np.ndarray  # (G * H), what is added to h * r alone

    @property
    def units(self) -> int:
        return self.r.shape[0]

    @property
    def gates(self) -> int:
        return self.r.shape[1] // self.units


def _whole(value: ir.Value | None) -> ir.Value | None:
    """The value behind Identity and Reshape nodes."""
    node = producer(value, "Identity", "Reshape")
    while node is not None:
        value = node.inputs[0]
        node = producer(value, "Identity", "Reshape")
    return value


def _added(value: ir.Value, width: int) -> tuple[np.ndarray, ir.Value]:
    """The constants added to a value one after another, and the sum."""
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


def _step_of(body: ir.Graph, count: int) -> _Step | None:
    """Find x * w and h * r in a body: two products by constant matrices of one width."""
    inputs = list(body.inputs)
    found: dict[str, tuple[int, np.ndarray, np.ndarray, ir.Value]] = {}
    for node in body:
        if node.op_type != "MatMul":
            continue
        weight, source = constant_of(node.inputs[1]), _whole(node.inputs[0])
        attrs = attrs_of(node)
        if (
            weight is None
            or weight.ndim != 2
            or attrs["transpose_a"]
            or attrs["transpose_b"]
            or attrs["post_ops"]
        ):
            return None
        kind, index = _role(source, inputs, count)
        if kind is None or kind in found:
            return None
        bias, total = _added(node.outputs[0], weight.shape[1])
        own = constant_of(node.inputs[2]) if len(node.inputs) > 2 else None
        found[kind] = (index, weight, bias if own is None else bias + own, total)
    if set(found) != {"x", "h"}:
        return None
    (sequence, w, input_bias, total), (hidden, r, hidden_bias, _) = found["x"], found["h"]
    if w.shape[1] != r.shape[1] or r.shape[1] % r.shape[0]:
        return None
    joint = sole_consumer(total, "Add")  # what is added to the sum of both
    later = np.zeros(w.shape[1], np.float32) if joint is None else _added(joint.outputs[0], w.shape[1])[0]
    return _Step(sequence, hidden, w, r, input_bias + later, hidden_bias)


def _role(source: ir.Value | None, inputs: list[ir.Value], count: int) -> tuple[str | None, int]:
    """Whether a product's operand is the hidden state or this step's row of a sequence."""
    if source in inputs[2 : 2 + count]:
        return "h", inputs.index(source)
    row = producer(source, "Gather")
    if row is None or row.inputs[0] not in inputs[2 + count :] or attrs_of(row)["axis"] != 0:
        return None, -1
    index = row.inputs[1]
    cast = producer(index, "Cast")
    index = index if cast is None else cast.inputs[0]
    return ("x", inputs.index(row.inputs[0])) if _whole(index) is inputs[0] else (None, -1)


# -- cells -----------------------------------------------------------------------------------------------------


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _lstm(step: _Step, x: np.ndarray, h: np.ndarray, c: np.ndarray, order: Sequence[int]) -> list[np.ndarray]:
    z = x @ step.w + step.input_bias + h @ step.r + step.hidden_bias
    parts = np.split(z, 4, axis=1)
    i, f, g, o = (parts[k] for k in order)
    new = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
    return [_sigmoid(o) * np.tanh(new), new]


def _gru(step: _Step, x: np.ndarray, h: np.ndarray, order: Sequence[int]) -> list[np.ndarray]:
    left = np.split(x @ step.w + step.input_bias, 3, axis=1)
    right = np.split(h @ step.r + step.hidden_bias, 3, axis=1)
    z, r = (_sigmoid(left[k] + right[k]) for k in order[:2])
    new = np.tanh(left[order[2]] + r * right[order[2]])
    return [(1 - z) * new + z * h]


@dataclass(frozen=True)
class _Match:
    """A recognised layer: the order of its gates, and where its states come out of the body."""

    type: str
    order: tuple[int, ...]
    cell: int  # the body's input that is the cell state, -1 for a GRU


def _recognise(body: ir.Graph, step: _Step, count: int) -> _Match | None:
    """Compare one step of the body with the cells, gates in every order."""
    if step.gates not in (3, 4):
        return None
    shape = desc_of(body.inputs[step.hidden]).shape
    states = [i for i in range(2, 2 + count) if i != step.hidden and desc_of(body.inputs[i]).shape == shape]
    rng = np.random.default_rng(_SEED)
    feeds = [_feed(v, rng) for v in body.inputs]
    try:
        results = dict(zip(map(_whole, body.outputs), interpret(body, feeds), strict=True))
    except GeError:
        return None
    x, h = feeds[step.sequence][0], feeds[step.hidden]
    new_h = results[_whole(body.outputs[step.hidden - 1])].reshape(h.shape)
    if step.gates == 3:
        for order in itertools.permutations(range(3)):
            if _close(_gru(step, x, h, order)[0], new_h):
                return _Match("GRU", order, -1)
        return None
    for cell, order in itertools.product(states, itertools.permutations(range(4))):
        new_c = results[_whole(body.outputs[cell - 1])].reshape(h.shape)
        hidden, memory = _lstm(step, x, h, feeds[cell], order)
        if _close(hidden, new_h) and _close(memory, new_c):
            return _Match("LSTM", order, cell)
    return None


def _feed(value: ir.Value, rng: np.random.Generator) -> np.ndarray:
    desc = desc_of(value)
    if desc.dtype == "bool":
        return np.ones(desc.shape, bool)
    if not desc.shape:
        return np.zeros((), numpy_dtype(desc.dtype))
    return rng.uniform(-1, 1, desc.shape).astype(numpy_dtype(desc.dtype))


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.all(np.abs(a - b) <= _TOLERANCE))


# -- the rewrite -----------------------------------------------------------------------------------------------


def _layer(r: Rewriter, node: ir.Node) -> Replacement:
    attrs = attrs_of(node)
    body, count = attrs["body"], attrs["num_states"]
    steps = scalar(node.inputs[0])
    if steps is None or steps < 1 or not _always_on(node, body):
        return None
    step = _step_of(body, count)
    if step is None or desc_of(body.inputs[step.hidden]).dtype != "float32":
        return None
    sequence = node.inputs[step.sequence]
    if sequence is None or desc_of(sequence).rank != 3 or desc_of(sequence).shape[0] != steps:
        return None
    match = _recognise(body, step, count)
    if match is None:
        return None
    sources = _results(body, match, step, count)
    if sources is None:
        return None
    y, *last = _emit(r, node, step, match, sequence)
    made = {"y": y, "h": last[0], "c": last[-1]}
    return [
        r.op("Reshape", made[k], shape=desc_of(v).shape) for k, v in zip(sources, node.outputs, strict=True)
    ]


def _always_on(node: ir.Node, body: ir.Graph) -> bool:
    """Whether only the number of steps ends the loop."""
    start = node.inputs[1] if len(node.inputs) > 1 else None
    going = _whole(body.outputs[0])
    return (start is None or scalar(start) == 1) and (going is body.inputs[1] or scalar(going) == 1)


def _results(body: ir.Graph, match: _Match, step: _Step, count: int) -> list[str] | None:
    """What each result of the loop is: all hidden states (y), the last hidden (h) or cell state (c); None if other."""
    hidden = _whole(body.outputs[step.hidden - 1])
    memory = _whole(body.outputs[match.cell - 1]) if match.cell >= 0 else None
    found: list[str] = []
    for index, value in enumerate(body.outputs[1:]):
        source = _whole(value)
        if source is hidden:
            found.append("h" if index < count else "y")
        elif source is memory and index < count:
            found.append("c")
        else:
            return None
    return found


def _emit(r: Rewriter, node: ir.Node, step: _Step, match: _Match, sequence: ir.Value) -> tuple[ir.Value, ...]:
    def gates(array: np.ndarray) -> np.ndarray:
        split = array.reshape(*array.shape[:-1], step.gates, step.units)
        return np.ascontiguousarray(split[..., list(match.order), :])[None]

    def state(index: int) -> ir.Value:
        value = node.inputs[index]
        assert value is not None
        return r.op("Reshape", value, shape=[1, *desc_of(value).shape])

    bias, extra = gates(step.input_bias), gates(step.hidden_bias)
    inputs: list[Any] = [sequence, gates(step.w), gates(step.r)]
    if match.type == "LSTM":
        return r.ops("LSTM", [*inputs, bias + extra, state(step.hidden), state(match.cell)])
    together = bias + np.concatenate([extra[:, :2], np.zeros_like(extra[:, 2:])], 1)
    four = np.concatenate([together, extra[:, 2:]], 1)
    return r.ops("GRU", [*inputs, four, state(step.hidden)], linear_before_reset=True)


class FuseRecurrent(RewritePass):
    """Recognise recurrent layers.

    1. A Loop over all rows of a sequence, whose body multiplies the row and a state by constant matrices and otherwise
       computes what a step of an LSTM or of a GRU (with a bias of its own for the recurrent part) computes, is that
       operator. One step on random numbers decides, gates being tried in every order.
    2. Results may be the states after the last step and the hidden states of all steps; anything else leaves the loop.
    3. Loops that can end early, or whose number of steps is computed, are left alone.
    """

    name = "fuse_recurrent"
    rules: ClassVar[Rules] = {"Loop": (_layer,)}
