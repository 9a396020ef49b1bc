"""Sequences compared with one another: repeated n-grams, points where texts part, time warping."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge.ir.values import desc_of
from ge.ops.builder import GraphBuilder
from ge.ops.flow.control import repeat
from ge.ops.microsoft.standard import DOMAIN, Writer
from ge.ops.plugins import Node, Results, Unsupported, plugin


@plugin(onnx="NGramRepeatBlock", domain=DOMAIN)
def _ngram_repeat_block(n: Node) -> Results:
    """Tokens that would complete a row of tokens that occurs already score minus infinity."""
    w, size = Writer(n, n.builder), int(n.attr("ngram_size"))
    batch, length = n.desc().shape
    if size < 1:
        raise Unsupported(f"n-grams of {size} tokens", "use ngram_size of 1 or more")
    count = length - size + 1  # places where a row may start
    if count <= 0:
        return n.inputs[1]  # type: ignore[return-value]
    tokens = n.inputs[0]
    same: Any = n.builder.constant(np.ones((batch, count), bool))
    for index in range(size - 1):
        last = w.part(tokens, 1, length - size + 1 + index, length - size + 2 + index)
        same = w.op("And", same, w.op("Equal", w.part(tokens, 1, index, index + count), last))
    final = w.part(tokens, 1, size - 1, length)
    none = n.builder.constant(np.zeros(n.desc(1).shape, np.int32))
    found = w.op("ScatterElements", none, final, w.cast(same, "int32"), axis=1, reduction="max")
    return w.op("Where", w.cast(found, "bool"), np.float32(-np.inf), n.inputs[1])


# -- aggressive decoding -----------------------------------------------------------------------------------


@plugin(onnx="BifurcationDetector", domain=DOMAIN)
def _bifurcation(n: Node) -> Results:
    """Text with the predicted tokens up to the first that the source does not have; where its end is in the source."""
    w = Writer(n, n.builder)
    source, whole, start, predicted = (n.input(i) for i in range(4))
    mask: Any = n.builder.constant(np.ones(n.desc(1).size, bool))
    if predicted is not None:
        size, known = n.desc(3).size, n.desc().size
        place = w.op("Add", np.arange(size), w.reshape(start, 1))
        wanted = w.op("Gather", source, w.op("Clip", place, np.int64(0), np.int64(max(known - 1, 0))))
        same = w.op("And", w.op("Less", place, np.int64(known)), w.op("Equal", wanted, predicted))
        other = w.cast(w.op("Not", same), "int64")
        before = w.op("CumSum", other, np.int64(0), exclusive=1)  # tokens that differ
        mask = w.op("Concat", mask, w.op("Equal", before, np.int64(0)), axis=0)
        whole = w.op("Concat", whole, predicted, axis=0)
    sizes = int(n.attr("min_ngram_size", 1)), int(n.attr("max_ngram_size", 3))
    return [w.op("Compress", whole, mask, axis=0), _suffix(w, source, whole, mask, *sizes)]


def _suffix(w: Writer, source: Any, text: Any, mask: Any, least: int, most: int) -> Any:
    """The place in the source after the shortest end of the text that occurs there once, or -1."""
    known, n = desc_of(source).size, w.node
    length = n.op("ReduceSum", w.cast(mask, "int64"), axes=[0])
    found: Any = n.builder.constant(np.asarray(-1, np.int64))
    going: Any = n.builder.constant(np.asarray(True))
    for size in range(least, most + 1):
        count = known - size + 1
        if count <= 0:
            break
        last = w.op("Add", length, np.arange(-size, 0))
        last = w.op("Gather", text, w.op("Max", last, np.zeros(size, np.int64)))
        same: Any = n.builder.constant(np.ones(count, bool))
        for index in range(size):
            here = w.part(source, 0, index, index + count)
            same = w.op("And", same, w.op("Equal", here, w.part(last, 0, index, index + 1)))
        hits = w.cast(same, "int64")
        times = n.op("ReduceSum", hits, axes=[0])
        fits = w.op("GreaterOrEqual", length, np.int64(size))
        going = w.op("And", going, w.op("And", fits, w.op("Greater", times, np.int64(0))))
        first = w.op("Add", w.op("ArgMax", hits, axis=0, keepdims=0), np.int64(size))
        one = w.op("Equal", times, np.int64(1))
        found = w.op("Where", going, w.op("Where", one, first, np.int64(-1)), found)
        going = w.op("And", going, w.op("Not", one))
    return w.reshape(found, 1)


# -- time warping ------------------------------------------------------------------------------------------


@plugin(onnx="DynamicTimeWarping", domain=DOMAIN)
def _time_warping(n: Node) -> Results:
    """The cheapest path through a matrix of costs: sums along diagonals, then the way back from the end."""
    shape = n.desc().shape[-2:]
    rows, columns = shape
    if not rows * columns:
        raise Unsupported("a matrix of costs without elements", "give at least one row and column")
    w = Writer(n, n.builder)
    diagonal, row = np.meshgrid(np.arange(2, rows + columns + 1), np.arange(rows + 1), indexing="ij")
    column = diagonal - row
    inside = (row > 0) & (column > 0) & (column <= columns)
    place = np.where(inside, (row - 1) * columns + column - 1, 0)
    costs = w.op("Gather", w.reshape(n.inputs[0], rows * columns), place)
    begun = np.full(rows + 1, np.inf, np.float32)
    origin = begun.copy()
    origin[0] = 0

    def forward(builder: GraphBuilder, counter: Any, states: list[Any]) -> tuple[list[Any], list[Any]]:
        """A diagonal of least sums, and where each came from: 0 for the corner, 1 for above, 2 for the left."""
        at = Writer(n, builder)
        older, newer = states
        corner, above = (at.op("Pad", v, np.array([1, -1]), np.float32(np.inf)) for v in (older, newer))
        to_corner = at.op("And", at.op("Less", corner, above), at.op("Less", corner, newer))
        to_above = at.op("And", at.op("Less", above, corner), at.op("Less", above, newer))
        least = at.op("Where", to_corner, corner, at.op("Where", to_above, above, newer))
        move = at.op("Where", to_corner, np.int64(0), at.op("Where", to_above, np.int64(1), np.int64(2)))
        total = at.op("Add", at.op("Gather", costs, counter, axis=0), least)
        total = at.op("Where", at.op("Gather", inside, counter, axis=0), total, np.float32(np.inf))
        return [newer, total], [move]

    steps = rows + columns - 1
    states = [n.builder.constant(v) for v in (origin, begun)]
    _, (moves,) = repeat(n.builder, steps, states, forward)
    moves = w.reshape(moves, steps * (rows + 1))

    def back(builder: GraphBuilder, counter: Any, states: list[Any]) -> tuple[list[Any], list[Any]]:
        at = Writer(n, builder)
        (point,) = states  # row and column, counted from 1
        i, j = at.part(point, 0, 0, 1), at.part(point, 0, 1, 2)
        left = at.op("And", at.op("Greater", i, np.int64(0)), at.op("Greater", j, np.int64(0)))
        spot = at.op(
            "Add", at.op("Mul", at.op("Sub", at.op("Add", i, j), np.int64(2)), np.int64(rows + 1)), i
        )
        move = at.op("Gather", moves, at.op("Max", spot, np.zeros(1, np.int64)))
        move = at.op("Where", at.op("Equal", i, np.int64(0)), np.int64(2), move)
        move = at.op("Where", at.op("Equal", j, np.int64(0)), np.int64(1), move)
        up = at.cast(at.op("Not", at.op("Equal", move, np.int64(2))), "int64")
        aside = at.cast(at.op("Not", at.op("Equal", move, np.int64(1))), "int64")
        after = at.op("Concat", at.op("Sub", i, up), at.op("Sub", j, aside), axis=0)
        return [after], [at.op("Sub", point, np.int64(1)), left]

    end = n.builder.constant(np.array(shape, np.int64))
    _, (points, used) = repeat(n.builder, steps, [end], back)
    order = np.arange(steps)[::-1].copy()
    path = w.op("Transpose", w.op("Gather", w.cast(points, "int32"), order, axis=0), perm=[1, 0])
    return w.op("Compress", path, w.op("Gather", w.reshape(used, steps), order), axis=1)
