"""PyTorch's recurrent layers, one direction of one layer per call: inference, training, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge.ir.types import numpy_dtype, widened
from ge.ir.values import desc_of
from ge.ops.aten import AtenNode, aten
from ge.ops.nn.recurrent_training import CELLS, layer, layer_gradients
from ge.ops.plugins import Unsupported

# The library's operator for a kind of layer, where its gates are among PyTorch's, and its attributes.
_OPERATORS: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "lstm": ("LSTM", (0, 1, 2, 3), {}),
    "gru": ("GRU", (1, 0, 2), {"linear_before_reset": True}),
    "rnn_tanh": ("RNN", (0,), {"activation": "tanh"}),
    "rnn_relu": ("RNN", (0,), {"activation": "relu"}),
}


def _given(n: AtenNode, *names: str) -> list[Any]:
    return [v for v in map(n.arg, names) if v is not None]


@aten("torchair.recurrent_layer")
def _recurrent_layer(n: AtenNode) -> Any:
    if not n.arg("keep"):
        return [*_inference(n), n.filled(0, n.out(3))]
    x, cell = n.arg("input"), CELLS[n.arg("cell")]
    weights = [n.arg("w"), n.arg("r")]
    biases, states = _given(n, "bias", "recurrent_bias"), _given(n, "h", "c")
    y, last, kept = layer(n.builder, cell, x, weights, biases, states, n.arg("reverse"))
    kept = n.filled(0, n.out(3)) if kept is None else kept
    return [y, last[0], last[1] if len(last) > 1 else n.filled(0, n.out(2)), kept]


def _inference(n: AtenNode) -> list[Any]:
    """The library's own operator."""
    x, cell = n.arg("input"), CELLS[n.arg("cell")]
    type_, order, attrs = _OPERATORS[n.arg("cell")]
    dtype, (_, batch, width) = desc_of(x).dtype, desc_of(x).shape
    units = desc_of(n.arg("r")).shape[1]

    def gates(value: Any, *inner: int) -> Any:
        split = n.shaped(value, [cell.gates, units, *inner])
        return split if order == tuple(sorted(order)) else n.op("Gather", split, np.asarray(order), axis=0)

    w, r = (
        n.shaped(n.turned(gates(n.arg(k), i), [2, 0, 1]), [1, i, cell.gates, units])
        for k, i in (("w", width), ("r", units))
    )
    states = [n.shaped(v, [1, batch, units]) for v in _given(n, "h", "c")]
    biases = [gates(n.wide(v)) for v in _given(n, "bias", "recurrent_bias")]
    bias = _bias(n, cell.gates, units, biases, attrs.get("linear_before_reset", False), widened(dtype))
    made = n.builder.ops(
        type_, [x, w, r, bias, *states], direction="reverse" if n.arg("reverse") else "forward", **attrs
    )
    last = [n.shaped(v, [batch, units]) for v in made[1:]]
    return [made[0], last[0], last[1] if len(last) > 1 else n.filled(0, n.out(2))]


def _bias(n: AtenNode, gates: int, units: int, biases: list[Any], apart: bool, dtype: str) -> Any:
    """Both biases added up; the new gate of a GRU keeps its second one apart."""
    if not biases:
        return n.builder.constant(np.zeros((1, gates + apart, units), numpy_dtype(dtype)))
    first, second = biases
    if not apart:
        return n.shaped(n.cast(n.op("Add", first, second), dtype), [1, gates, units])
    head, tail = (
        [n.op("Slice", v, starts=[s, 0], ends=[e, units]) for v in (first, second)]
        for s, e in ((0, gates - 1), (gates - 1, gates))
    )
    return n.shaped(n.cast(n.op("Concat", n.op("Add", *head), *tail, axis=0), dtype), [1, gates + 1, units])


@aten("torchair.recurrent_layer_backward")
def _recurrent_layer_backward(n: AtenNode) -> Any:
    cell = CELLS[n.arg("cell")]
    if not desc_of(n.arg("input")).shape[0]:
        raise Unsupported("a sequence without steps")
    found = layer_gradients(
        n.builder,
        cell,
        n.arg("input"),
        [n.arg("w"), n.arg("r")],
        n.arg("h"),
        n.arg("y"),
        n.arg("kept") if cell.kept else None,
        n.arg("grad_y"),
        [n.arg("grad_h"), n.arg("grad_c")][: cell.states],
        n.arg("reverse"),
    )
    c = found.states[1] if cell.states > 1 else n.filled(0, n.out(2))
    biases = (found.bias, found.recurrent_bias) if n.arg("bias") is not None else ()
    empty = [n.filled(0, n.out(i)) for i in range(5 + len(biases), 7)]
    return [found.x, found.states[0], c, found.w, found.r, *biases, *empty]
