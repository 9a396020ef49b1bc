"""Branches and loops over closed subgraphs.

A subgraph reads nothing but its own inputs: the outer values it uses are captured as inputs (see GraphBuilder).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from ge.ir.builder import GraphBuilder
from ge.ir.types import BOOL, TENSORS, TensorDesc
from ge.ir.values import constant_of, desc_of
from ge.ops.base import Attr, Engine, Input, NodeView, Operator, Output, fail, register

__all__ = ["If", "Loop", "branch", "repeat"]

UNROLL_LIMIT = 8


@register
class If(Operator):
    """The outputs of then_branch when the condition holds, else those of else_branch; both read the captures."""

    condition = Input("", BOOL)
    captures = Input("", TENSORS, variadic=True)
    results = Output(variadic=True)
    then_branch = Attr(ir.Graph)
    else_branch = Attr(ir.Graph)
    engine = Engine.CONTROL
    foldable = False

    @staticmethod
    def verify(op: NodeView) -> None:
        if op.inputs[0].size != 1:  # type: ignore[union-attr]
            raise fail(op, f"the condition is {op.inputs[0]} where one bool is expected")
        _check_ports(op, op.then_branch, op.inputs[1:], "then_branch")
        _check_ports(op, op.else_branch, op.inputs[1:], "else_branch")
        found, other = ([str(desc_of(v)) for v in g.outputs] for g in (op.then_branch, op.else_branch))
        if found != other:
            raise fail(op, f"the branches give {found} and {other}", "give both branches the same shapes and types")

    @staticmethod
    def infer(op: NodeView) -> Sequence[TensorDesc]:
        return [desc_of(v) for v in op.then_branch.outputs]

    @staticmethod
    def flops(op: NodeView) -> int:
        return 0


@register
class Loop(Operator):
    """The body repeated while the counter is below `trip` (if given) and the condition (if given) holds.

    Inputs are trip, condition, num_states states and the captures; the body's inputs are the counter, the
    condition, the states and the captures; its outputs the condition, the states and values that are stacked
    over the steps. `max_trip` is the most steps, needed where values are stacked.
    """

    trip = Input("", frozenset({"int64"}), optional=True)
    condition = Input("", BOOL, optional=True)
    states_and_captures = Input("", TENSORS, variadic=True)
    results = Output(variadic=True)
    body = Attr(ir.Graph)
    num_states = Attr(int)
    max_trip = Attr(int, None)
    engine = Engine.CONTROL
    foldable = False

    @staticmethod
    def verify(op: NodeView) -> None:
        states = op.inputs[2 : 2 + op.num_states]
        expected = [TensorDesc((), "int64"), TensorDesc((), "bool"), *op.inputs[2:]]
        _check_ports(op, op.body, expected, "body")
        given = [desc_of(v) for v in op.body.outputs]
        if not given or given[0] != TensorDesc((), "bool"):
            raise fail(op, "the first output of the body must be a bool scalar, the condition")
        for index, (before, after) in enumerate(zip(states, given[1:], strict=False)):
            if before != after:
                raise fail(
                    op,
                    f"state {index} is {before} before and {after} after a step",
                    "keep the shapes of loop states constant",
                )
        if len(given) < 1 + op.num_states:
            raise fail(op, f"the body gives {len(given) - 1} states where {op.num_states} are expected")
        if len(given) > 1 + op.num_states and op.max_trip is None:
            raise fail(op, "values are stacked over an unknown number of steps", "give the loop a constant trip count")

    @staticmethod
    def infer(op: NodeView) -> Sequence[TensorDesc]:
        given = [desc_of(v) for v in op.body.outputs][1:]
        states, stacked = given[: op.num_states], given[op.num_states :]
        return [*states, *(TensorDesc((op.max_trip, *d.shape), d.dtype) for d in stacked)]

    @staticmethod
    def flops(op: NodeView) -> int:
        return 0


def _check_ports(op: NodeView, graph: ir.Graph, expected: Sequence[TensorDesc | None], what: str) -> None:
    found = [desc_of(v) for v in graph.inputs]
    if found != list(expected):
        raise fail(op, f"the inputs of {what} are {list(map(str, found))} where {list(map(str, expected))} are given")


# -- building ----------------------------------------------------------------------------------------------------

Step = Callable[[GraphBuilder, Any, list[Any]], tuple[Sequence[Any], Sequence[Any]]]


def branch(
    builder: GraphBuilder,
    condition: ir.Value,
    then: Callable[[GraphBuilder], Sequence[Any]],
    otherwise: Callable[[GraphBuilder], Sequence[Any]],
) -> tuple[ir.Value, ...]:
    """An If node whose branches are built by two functions; a constant condition builds only one, in place."""
    known = constant_of(condition)
    if known is not None:
        return tuple((then if bool(known.reshape(-1)[0]) else otherwise)(builder))
    inner = [builder.subgraph("then_branch"), builder.subgraph("else_branch")]
    for part, function in zip(inner, (then, otherwise), strict=True):
        for value in function(part):
            part.output(value)
    captures = _shared_captures(inner)
    return builder.ops("If", [condition, *captures], then_branch=inner[0].graph, else_branch=inner[1].graph)


def _shared_captures(parts: Sequence[GraphBuilder]) -> list[ir.Value]:
    """Give all parts the same capture inputs, in one order; returns the outer values."""
    captures = list(dict.fromkeys(v for part in parts for v in part.captures()))
    for part in parts:
        inner = [part._own(v) for v in captures]
        part.graph.inputs[:] = inner
    return captures


def repeat(builder: GraphBuilder, trip: int, states: Sequence[Any], step: Step) -> tuple[list[Any], list[Any]]:
    """`step(builder, counter, states) -> (states, stacked)` done `trip` times; few steps are unrolled.

    Returns the final states and the stacked values.
    """
    if trip <= UNROLL_LIMIT:
        return _unrolled(builder, trip, list(states), step)
    body = builder.subgraph("body")
    counter = body.input("step", (), "int64")
    going = body.input("going", (), "bool")
    inner = [body.input(f"state{i}", desc_of(s).shape, desc_of(s).dtype) for i, s in enumerate(states)]
    results, stacked = step(body, counter, list(inner))
    for value in (going, *results, *stacked):
        body.output(value)
    made = builder.ops(
        "Loop",
        [builder.constant(trip, dtype="int64"), None, *states, *body.captures()],
        body=body.graph,
        num_states=len(states),
        max_trip=trip,
    )
    return list(made[: len(states)]), list(made[len(states) :])


def _unrolled(builder: GraphBuilder, trip: int, states: list[Any], step: Step) -> tuple[list[Any], list[Any]]:
    rows: list[list[Any]] = []
    for index in range(trip):
        results, stacked = step(builder, builder.constant(index, dtype="int64"), states)
        states = list(results)
        rows.append([builder.op("Reshape", v, shape=[1, *desc_of(v).shape]) for v in stacked])
    columns = list(zip(*rows, strict=True))
    return states, [c[0] if len(c) == 1 else builder.op("Concat", *c, axis=0) for c in columns]
