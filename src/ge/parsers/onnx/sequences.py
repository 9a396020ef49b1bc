"""ONNX operators on sequences and optionals, which are resolved while parsing."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge.ir.values import desc_of
from ge.ops.plugins import Node, Results, Sequence_, Unsupported, plugin


def _items(n: Node) -> tuple[Any, ...]:
    value = n.inputs[0]
    if not isinstance(value, Sequence_):
        raise Unsupported(f"input 0 of {n.type} is not a sequence")
    return value.items


def _position(n: Node, index: int, count: int, most: int) -> int:
    position = n.ints(index, "position")[0]
    if not -count <= position <= most:
        raise Unsupported(f"position {position} is outside a sequence of {count}")
    return position


@plugin(onnx="SequenceConstruct")
def _construct(n: Node) -> Results:
    return Sequence_(tuple(n.inputs))  # type: ignore[return-value]


@plugin(onnx="SequenceEmpty")
def _empty(n: Node) -> Results:
    return Sequence_()  # type: ignore[return-value]


@plugin(onnx="SequenceInsert")
def _insert(n: Node) -> Results:
    items = list(_items(n))
    position = _position(n, 2, len(items), len(items)) if n.input(2) is not None else len(items)
    items.insert(position, n.inputs[1])
    return Sequence_(tuple(items))  # type: ignore[return-value]


@plugin(onnx="SequenceErase")
def _erase(n: Node) -> Results:
    items = list(_items(n))
    del items[_position(n, 1, len(items), len(items) - 1) if n.input(1) is not None else -1]
    return Sequence_(tuple(items))  # type: ignore[return-value]


@plugin(onnx="SequenceAt")
def _at(n: Node) -> Results:
    items = _items(n)
    return items[_position(n, 1, len(items), len(items) - 1)]


@plugin(onnx="SequenceLength")
def _length(n: Node) -> Results:
    return n.builder.constant(len(_items(n)), dtype="int64")


@plugin(onnx="ConcatFromSequence")
def _concat(n: Node) -> Results:
    items: list[Any] = list(_items(n))
    axis = int(n.attr("axis"))
    if n.attr("new_axis", 0):
        rank = desc_of(items[0]).rank + 1
        axis = axis % rank
        items = [n.op("Reshape", v, shape=[*(s := desc_of(v).shape)[:axis], 1, *s[axis:]]) for v in items]
    return items[0] if len(items) == 1 else n.op("Concat", *items, axis=axis)


@plugin(onnx="SplitToSequence")
def _split(n: Node) -> Results:
    shape = n.desc().shape
    axis = int(n.attr("axis", 0)) % len(shape)
    keep = True
    if n.input(1) is None:
        sizes, keep = [1] * shape[axis], bool(n.attr("keepdims", 1))
    elif n.desc(1).rank == 0:
        step = n.ints(1, "split")[0]
        sizes = [min(step, shape[axis] - i) for i in range(0, shape[axis], step)]
    else:
        sizes = n.ints(1, "split")
    pieces = n.builder.ops("Split", [n.inputs[0]], axis=axis, sizes=sizes)
    if not keep:
        pieces = tuple(
            n.op("Reshape", p, shape=[d for i, d in enumerate(shape) if i != axis]) for p in pieces
        )
    return Sequence_(tuple(pieces))  # type: ignore[return-value]


@plugin(onnx="Optional")
def _optional(n: Node) -> Results:
    return Sequence_(tuple(n.inputs), optional=True)  # type: ignore[return-value]


@plugin(onnx="OptionalHasElement")
def _has_element(n: Node) -> Results:
    value = n.input(0)
    has = value is not None and not (isinstance(value, Sequence_) and value.optional and not value.items)
    return n.builder.constant(np.asarray(has))


@plugin(onnx="OptionalGetElement")
def _get_element(n: Node) -> Results:
    value = n.input(0)
    if isinstance(value, Sequence_) and value.optional:
        if not value.items:
            raise Unsupported("the optional is empty")
        return value.items[0]
    return value  # type: ignore[return-value]


@plugin(onnx="SequenceMap")
def _map(n: Node) -> Results:
    """Apply the body to each element of the first sequence with those of the other sequences and the tensors."""
    count = len(_items(n))
    rows = []
    for index in range(count):
        others = [v.items[index] if isinstance(v, Sequence_) else v for v in n.inputs]
        rows.append(n.parser.body(n.attr("body"), n.builder, others))
    columns = list(zip(*rows, strict=True)) if rows else [()] * n.outputs
    return [Sequence_(tuple(column)) for column in columns]  # type: ignore[misc]
