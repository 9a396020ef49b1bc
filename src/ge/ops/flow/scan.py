"""Recurrence over the rows of tensors: a closed subgraph repeated a known number of times."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ge.ir.types import TENSORS, TensorDesc
from ge.ir.values import desc_of
from ge.ops.base import Attr, Engine, Input, NodeView, Operator, Output, fail, has_dynamic_size, register

__all__ = ["Scan"]


@register
class Scan(Operator):
    """The body repeated for each row of some tensors, from the last one on in `reverse`.

    Inputs are num_states states, num_rows tensors with a row for each step, and the captures; the body's inputs are the
    states, a row of each of these tensors, and the captures; its outputs the states, and values that are stacked at the
    place of the rows they were made from.
    """

    states_rows_and_captures = Input("", TENSORS, variadic=True)
    results = Output(variadic=True)
    body = Attr(ir.Graph)
    num_states = Attr(int)
    num_rows = Attr(int)
    steps = Attr(int)
    reverse = Attr(bool, False)
    engine = Engine.CONTROL
    foldable = False

    @staticmethod
    def verify(op: NodeView) -> None:
        if op.steps < 1:
            raise fail(op, f"takes at least one step, got {op.steps}")
        descs = [d for d in op.inputs if d is not None]
        first = op.num_states + op.num_rows
        states, stacks = descs[: op.num_states], descs[op.num_states : first]
        if len(stacks) < op.num_rows or any(not d.rank or d.shape[0] != op.steps for d in stacks):
            raise fail(op, f"the tensors with rows are {list(map(str, stacks))} for {op.steps} steps")
        expected = [*states, *(TensorDesc(d.shape[1:], d.dtype) for d in stacks), *descs[first:]]
        found = [desc_of(v) for v in op.body.inputs]
        if found != expected:
            raise fail(
                op,
                f"the inputs of body are {list(map(str, found))} where {list(map(str, expected))} are given",
            )
        given = [desc_of(v) for v in op.body.outputs]
        if given[: op.num_states] != states:
            raise fail(
                op, f"the states are {list(map(str, states))} before and {list(map(str, given))} after a step"
            )
        if any(has_dynamic_size(v) for v in op.body.outputs):
            raise fail(op, "the size of a value that an iteration returns depends on data")

    @staticmethod
    def infer(op: NodeView) -> Sequence[TensorDesc]:
        given = [desc_of(v) for v in op.body.outputs]
        stacked = given[op.num_states :]
        return [*given[: op.num_states], *(TensorDesc((op.steps, *d.shape), d.dtype) for d in stacked)]

    @staticmethod
    def flops(op: NodeView) -> int:
        return 0
