"""AttnLSTM: an LSTM that attends to a memory after every step (Bahdanau attention)."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ge.ir.values import desc_of
from ge.ops.math.checks import indices_of
from ge.ops.microsoft.standard import DOMAIN, Writer
from ge.ops.nn.recurrent import Feedback, recurrent
from ge.ops.plugins import Node, Results, Unsupported, plugin

__all__: list[str] = []

_QUERY, _MEMORY_WEIGHT, _VECTOR, _MEMORY, _LENGTHS, _LAYER = range(8, 14)
_LOWEST = np.float32(np.finfo(np.float32).min)


@plugin(onnx="AttnLSTM", domain=DOMAIN)
def _attention_lstm(n: Node) -> Results:
    """The cell sees its input and what the attention, or a layer after it, made of its last output."""
    for index in (_QUERY, _MEMORY_WEIGHT, _VECTOR, _MEMORY):
        if n.input(index) is None:
            raise Unsupported("AttnLSTM without a memory, its weights or those of the query", "use LSTM")
    directions = n.desc(2).shape[0]
    batch, size = n.desc().shape[1], n.desc(1).shape[2] - n.desc().shape[2]
    memory, shown = _memory(n)
    seen = n.desc(_MEMORY if n.input(_LAYER) is None else _LAYER).shape[2]
    if size != seen:
        raise Unsupported(f"weights for {size} elements of attention where there are {seen}")
    start = n.builder.constant(np.zeros((batch, size)), dtype=n.desc().dtype)
    feedback = [Feedback(start, _attention(n, index, memory, shown)) for index in range(directions)]
    inputs = [n.input(i) for i in range(8)]
    return recurrent(dataclasses.replace(n, type="LSTM", inputs=inputs, version=14), feedback)


def _memory(n: Node) -> tuple[Any, Any]:
    """The memory (N, S, D), zero after its end; and which places it has (N, S), None if all."""
    w = Writer(n, n.builder)
    memory: Any = n.inputs[_MEMORY]
    if n.input(_LENGTHS) is None:
        return memory, None
    batch, places, _ = desc_of(memory).shape
    lengths = indices_of(n, n.input(_LENGTHS), [places + 1], "memory_seq_lens", from_end=False)
    lengths = w.reshape(w.cast(lengths, "int64"), batch, 1)
    shown = w.op("Less", np.arange(places)[None], lengths)
    zero = n.builder.constant(0.0, dtype=desc_of(memory).dtype)
    return w.op("Where", w.reshape(shown, batch, places, 1), memory, zero), shown


def _attention(n: Node, direction: int, memory: Any, shown: Any) -> Any:
    """What the attention of a direction makes of an output (N, H)."""
    w = Writer(n, n.builder)
    query, memory_weight, vector = (
        w.op("Gather", n.inputs[i], np.int64(direction), axis=0) for i in (_QUERY, _MEMORY_WEIGHT, _VECTOR)
    )
    layer = None if n.input(_LAYER) is None else w.op("Gather", n.input(_LAYER), np.int64(direction), axis=0)
    keys = w.op("MatMul", memory, memory_weight)
    batch, places, width = desc_of(keys).shape
    depth = desc_of(memory).shape[2]

    def after(builder: Any, h: Any) -> Any:
        w = Writer(n, builder)
        asked = w.reshape(w.op("MatMul", h, query), batch, 1, width)
        scores = w.op("MatMul", w.op("Tanh", w.op("Add", keys, asked)), w.reshape(vector, width, 1))
        scores = w.reshape(scores, batch, places)
        if shown is not None:
            scores = w.op("Where", shown, scores, builder.constant(_LOWEST, dtype=desc_of(h).dtype))
        weights = w.reshape(w.op("Softmax", scores, axis=1), batch, 1, places)
        context = w.reshape(w.op("MatMul", weights, memory), batch, depth)
        return context if layer is None else w.op("MatMul", w.op("Concat", h, context, axis=1), layer)

    return after
