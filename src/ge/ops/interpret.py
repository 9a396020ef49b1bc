"""Interprets a graph node by node with NumPy: the reference for all other implementations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ge.errors import GeError
from ge.ir.types import numpy_dtype
from ge.ir.values import constant_of, desc_of

__all__ = ["evaluate_node", "interpret"]


Evaluate = Callable[[ir.Node, Sequence[np.ndarray | None]], list[np.ndarray]]


def interpret(
    graph: ir.Graph,
    inputs: Sequence[np.ndarray] | Mapping[str, np.ndarray],
    evaluate: Mapping[str, Evaluate] | None = None,
) -> list[np.ndarray]:
    """The outputs of a graph for inputs (by position or by name); `evaluate` can override some operators.

    >>> from ge.ops.builder import GraphBuilder
    >>> b = GraphBuilder()
    >>> y = b.output(b.op("Relu", b.input("x", (2,), "float32")))
    >>> interpret(b.graph, [np.array([-1, 2], np.float32)])
    [array([0., 2.], dtype=float32)]
    """
    arrays = [inputs[v.name] for v in graph.inputs] if isinstance(inputs, Mapping) else list(inputs)  # type: ignore[index]
    values: dict[ir.Value, np.ndarray] = {}
    for value, array in zip(graph.inputs, arrays, strict=True):
        values[value] = np.asarray(array, numpy_dtype(desc_of(value).dtype)).reshape(np.shape(array))
    for node in graph:
        read = [_read(v, values) for v in node.inputs]
        run = (evaluate or {}).get(node.op_type, evaluate_node)
        for value, array in zip(node.outputs, run(node, read), strict=True):
            values[value] = array
    return [_required(v, values) for v in graph.outputs]


def _read(value: ir.Value | None, values: Mapping[ir.Value, np.ndarray]) -> np.ndarray | None:
    return None if value is None else _required(value, values)


def _required(value: ir.Value, values: Mapping[ir.Value, np.ndarray]) -> np.ndarray:
    array = constant_of(value)
    return values[value] if array is None else array


def evaluate_node(node: ir.Node, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """The outputs of one node for given inputs."""
    from ge.ops.base import NodeView, lookup

    view = NodeView.of(node)
    if node.op_type == "If":
        return _branch(view, arrays)
    if node.op_type == "Loop":
        return _loop(view, arrays)
    if node.op_type == "Scan":
        return _scan(view, arrays)
    with np.errstate(all="ignore"):
        result = lookup(node.op_type).evaluate(view, arrays)
    if result is None:
        raise GeError("E10006", "has no NumPy evaluation", node=node.name or "", operator=node.op_type)
    return [np.asarray(a, numpy_dtype(d.dtype)) for a, d in zip(result, view.outputs, strict=True)]


def _branch(op: Any, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    taken = op.then_branch if np.asarray(arrays[0]).reshape(-1)[0] else op.else_branch
    return interpret(taken, [np.asarray(a) for a in arrays[1:]])


def _scan(op: Any, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    last = op.num_states + op.num_rows
    states, stacks = list(arrays[: op.num_states]), arrays[op.num_states : last]
    rows: list[list[np.ndarray]] = []
    for step in range(op.steps):
        place = op.steps - 1 - step if op.reverse else step
        fed = [*states, *(np.asarray(s)[place] for s in stacks), *arrays[last:]]
        results = interpret(op.body, fed)
        states = list(results[: op.num_states])
        rows.append(results[op.num_states :])
    order = reversed(rows) if op.reverse else rows
    return [*states, *(np.stack(column) for column in zip(*order, strict=True))]  # type: ignore[list-item]


def _loop(op: Any, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    trip = None if arrays[0] is None else int(arrays[0].reshape(-1)[0])
    going = True if arrays[1] is None else bool(arrays[1].reshape(-1)[0])
    states, captures = list(arrays[2 : 2 + op.num_states]), list(arrays[2 + op.num_states :])
    rows: list[list[np.ndarray]] = []
    step = 0
    while going and (trip is None or step < trip):
        fed: list[Any] = [np.asarray(step, np.int64), np.asarray(going), *states, *captures]
        going_after, *results = interpret(op.body, fed)
        going, states = bool(going_after), list(results[: op.num_states])
        rows.append(results[op.num_states :])
        step += 1
    stacked = [np.stack(column) for column in zip(*rows, strict=True)]
    if not rows:
        empty = op.outputs[op.num_states :]
        stacked = [np.zeros((0, *d.shape[1:]), numpy_dtype(d.dtype)) for d in empty]
    return [*states, *stacked]  # type: ignore[list-item]
