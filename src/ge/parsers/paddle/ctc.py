"""PaddlePaddle: connectionist temporal classification (`warpctc`) and its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ge.ir.values import desc_of
from ge.ops.flow.control import repeat
from ge.ops.plugins import Unsupported
from ge.parsers.paddle.node import PaddleNode, paddle

_NEVER = -1e30  # the logarithm of a probability of zero, finite so that sums of it stay numbers


@dataclass(frozen=True)
class _Paths:
    """Sequences of T steps over S = 2 L + 1 symbols: the labels with a blank before, between and after them.

    symbols (B, S) are classes; skip (B, S) is 0 where a path may come from two symbols before, _NEVER elsewhere;
    live (T, B, 1) tells the steps of each sequence, last (B, S) its final blank; logs (T, B, S) are logarithms of the
    symbols' probabilities.
    """

    symbols: Any
    skip: Any
    live: Any
    last: Any
    logs: Any


def _column(n: PaddleNode, values: Any) -> Any:
    return n.shaped(n.cast(values, "int64"), [desc_of(values).shape[0], 1])


def _paths(n: PaddleNode, logs: Any, labels: Any, steps: Any, lengths: Any) -> _Paths:
    total, batch, classes = desc_of(logs).shape
    count = desc_of(labels).shape[1]
    size, blank = 2 * count + 1, int(n.attr("blank", 0))
    known = n.op(
        "Minimum",
        n.op("Maximum", n.cast(labels, "int64"), n.constant(0, "int64")),
        n.constant(classes - 1, "int64"),
    )
    joined = n.op("Concat", n.constant(np.full((batch, 1), blank), "int64"), known, axis=1)
    order = [(i + 1) // 2 if i % 2 else 0 for i in range(size)]
    symbols = n.op("Gather", joined, n.constant(order, "int64"), axis=1)
    before = _moved(n.builder, symbols, 2, n.constant(np.full((batch, 2), blank), "int64"))
    apart = n.op("Not", n.op("Equal", symbols, before))  # a blank has a blank two places before
    skip = n.op("Select", apart, n.constant(0, "float32"), n.constant(_NEVER, "float32"))
    live = n.op("Less", n.constant(np.arange(total).reshape(total, 1, 1), "int64"), _column(n, steps))
    ends = n.op("Mul", _column(n, lengths), n.constant(2, "int64"))
    last = n.op("Equal", n.constant(np.arange(size).reshape(1, size), "int64"), ends)
    places = n.spread(n.shaped(symbols, [1, batch, size]), [total, batch, size])
    return _Paths(symbols, skip, live, last, n.op("GatherElements", logs, places, axis=2))


def _moved(b: Any, x: Any, by: int, fill: Any) -> Any:
    """Columns moved to the right by some places, or to the left by a negative number of them."""
    batch, size = desc_of(x).shape
    start, end = (0, size - by) if by > 0 else (-by, size)
    kept = b.op("Slice", x, starts=[0, start], ends=[batch, end])
    return b.op("Concat", *((fill, kept) if by > 0 else (kept, fill)), axis=1)


def _sum(b: Any, terms: list[Any]) -> Any:
    """The logarithm of a sum, from the logarithms of its terms."""
    most = terms[0]
    for term in terms[1:]:
        most = b.op("Maximum", most, term)
    total = None
    for term in terms:
        part = b.op("Exp", b.op("Sub", term, most))
        total = part if total is None else b.op("Add", total, part)
    return b.op("Add", most, b.op("Log", total))


def _variables(n: PaddleNode, paths: _Paths, forward: bool) -> Any:
    """Logarithms of the probability of the paths up to a step with its symbol, or of those after it (T, B, S)."""
    total, batch, size = desc_of(paths.logs).shape
    never = [n.constant(np.full((batch, by), _NEVER), "float32") for by in (1, 2)]
    if forward:  # before the first step every path is at the first blank
        first = n.constant(np.where(np.arange(size) == 0, 0.0, _NEVER) + np.zeros((batch, 1)), "float32")
        rows = paths.logs
    else:  # after the last step every path is at the last blank, and what follows has no probability of its own
        first = n.op("Select", paths.last, n.constant(0, "float32"), n.constant(_NEVER, "float32"))
        rows = n.op("Select", paths.live, paths.logs, n.constant(0, "float32"))
        tail = n.constant(np.zeros((1, batch, size)), "float32")
        rows = n.op("Concat", n.op("Slice", rows, starts=[1, 0, 0], ends=[total, batch, size]), tail, axis=0)

    def step(b: Any, counter: Any, before: list[Any]) -> tuple[list[Any], list[Any]]:
        place = counter if forward else b.op("Sub", total - 1, counter)
        row, live = b.op("Gather", rows, place, axis=0), b.op("Gather", paths.live, place, axis=0)
        (state,) = before
        if forward:
            far = b.op("Add", _moved(b, state, 2, never[1]), paths.skip)
            after = b.op("Add", _sum(b, [state, _moved(b, state, 1, never[0]), far]), row)
        else:
            met = b.op("Add", state, row)
            far = _moved(b, b.op("Add", met, paths.skip), -2, never[1])
            after = _sum(b, [met, _moved(b, met, -1, never[0]), far])
        after = b.op("Select", live, after, state)
        return [after], [after]

    _, (found,) = repeat(n.builder, total, [first], step)
    return found if forward else n.op("Reverse", found, axes=[0])


def _possible(n: PaddleNode, labels: Any, steps: Any, lengths: Any) -> Any:
    """Which sequences are long enough for their labels: a repeated label needs a blank in between (B, 1)."""
    batch, count = desc_of(labels).shape
    need = _column(n, lengths)
    if count > 1:
        left = n.op("Slice", labels, starts=[0, 0], ends=[batch, count - 1])
        right = n.op("Slice", labels, starts=[0, 1], ends=[batch, count])
        inside = n.op("Less", n.constant(np.arange(1, count).reshape(1, -1), "int64"), need)
        twice = n.cast(n.op("And", n.op("Equal", left, right), inside), "int64")
        need = n.op("Add", need, n.op("ReduceSum", twice, axes=[1], keepdims=True))
    return n.op("LessEqual", need, _column(n, steps))


@paddle("warpctc")
def _warpctc(n: PaddleNode) -> Any:
    """The loss of each sequence, and its gradient by the logits; both 0 where a sequence is too short."""
    x, labels, steps, lengths = n.inputs[:4]
    if steps is None or lengths is None or desc_of(labels).rank != 2:
        raise Unsupported("sequences packed one after the other", "pad them, and give their lengths")
    if not desc_of(labels).shape[1]:
        raise Unsupported("no label at all")
    wide = n.wide(x)
    logs = n.op("LogSoftmax", wide, axes=[2])
    _, batch, classes = desc_of(x).shape
    paths = _paths(n, logs, labels, steps, lengths)
    size, zero = desc_of(paths.symbols).shape[1], n.constant(0, "float32")
    before, after = _variables(n, paths, True), _variables(n, paths, False)
    joint = n.op("Add", before, after)
    start = n.shaped(n.op("Slice", joint, starts=[0, 0, 0], ends=[1, batch, size]), [batch, size])
    most = n.op("ReduceMax", start, axes=[1], keepdims=True)
    sums = n.op("ReduceSum", n.op("Exp", n.op("Sub", start, most)), axes=[1], keepdims=True)
    whole = n.op("Add", most, n.op("Log", sums))
    possible = _possible(n, labels, steps, lengths)
    loss = n.op("Select", possible, n.op("Neg", whole), zero)
    passing = n.op("Exp", n.op("Sub", joint, whole))
    one_hot = n.op(
        "Equal", n.shaped(paths.symbols, [batch, size, 1]), n.constant(np.arange(classes), "int64")
    )
    seen = n.op("MatMul", n.turned(passing, [1, 0, 2]), n.cast(one_hot, "float32"))
    gradient = n.op("Sub", n.op("Softmax", wide, axes=[2]), n.turned(seen, [1, 0, 2]))
    gradient = n.op("Select", n.op("And", paths.live, possible), gradient, zero)
    return [n.cast(loss, desc_of(x).dtype), n.cast(gradient, desc_of(x).dtype)]


@paddle("warpctc_grad")
def _warpctc_grad(n: PaddleNode) -> Any:
    _, steps, gradient, g = n.inputs[:4]
    if n.attr("norm_by_times"):
        g = n.op("Div", g, n.cast(_column(n, steps), desc_of(g).dtype))
    return n.op("Mul", gradient, g)
