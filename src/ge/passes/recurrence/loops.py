"""Queries about loops with a known number of steps."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ge.ir.values import desc_of
from ge.ops.base import is_whole_view
from ge.passes.rewrite import attrs_of, scalar

__all__ = ["ScanLoop", "behind", "counted_steps", "is_product"]


def behind(value: ir.Value | None, *, views: bool = False, casts: bool = False) -> ir.Value | None:
    """The value behind identities, or behind all views of its memory and conversions of its elements."""
    node = None if value is None else value.producer()
    while node is not None and (
        (is_whole_view(node) if views else node.op_type == "Identity") or (casts and node.op_type == "Cast")
    ):
        value = node.inputs[0]
        node = None if value is None else value.producer()
    return value


def is_product(
    node: ir.Node | None, *, transpose_a: bool = False, transpose_b: bool = False, biased: bool = False
) -> bool:
    """True if a node is a product of two matrices with these transposes and no addend (except a bias if `biased`)."""
    if node is None or node.op_type != "MatMul" or len(node.inputs) > 2 + biased:
        return False
    attrs = attrs_of(node)
    if (
        attrs["post_ops"]
        or bool(attrs["transpose_a"]) != transpose_a
        or bool(attrs["transpose_b"]) != transpose_b
    ):
        return False
    return all(desc_of(v).rank == 2 for v in node.inputs[:2] if v is not None)


def counted_steps(node: ir.Node) -> int | None:
    """The trip count of a Loop, None if it can end early or the count is computed."""
    attrs = attrs_of(node)
    body, steps = attrs["body"], scalar(node.inputs[0])
    if steps is None or steps < 1 or attrs["max_trip"] not in (None, int(steps)):
        return None
    start = node.inputs[1] if len(node.inputs) > 1 else None
    going = behind(body.outputs[0], views=True)
    ends = not (start is None or scalar(start) == 1) or not (going is body.inputs[1] or scalar(going) == 1)
    return None if ends else int(steps)


@dataclass(frozen=True)
class ScanLoop:
    """A Scan operator: its states, the tensors whose rows its steps read, and its captures."""

    node: ir.Node
    body: ir.Graph
    steps: int
    reverse: bool

    @staticmethod
    def of(node: ir.Node) -> ScanLoop:
        """The loop of a Scan node."""
        attrs = attrs_of(node)
        return ScanLoop(node, attrs["body"], attrs["steps"], bool(attrs["reverse"]))

    @property
    def _count(self) -> int:
        return attrs_of(self.node)["num_states"]

    @property
    def states(self) -> list[ir.Value]:
        """The states as inputs of the body."""
        return list(self.body.inputs[: self._count])

    @property
    def rows(self) -> list[ir.Value]:
        """The rows as inputs of the body."""
        return list(self.body.inputs[self._count : self._count + attrs_of(self.node)["num_rows"]])

    def given(self, value: ir.Value | None) -> ir.Value | None:
        """The outside value of an input of the body: a state's initial value, a row's tensor, a capture."""
        found = None if value is None or value not in self.body.inputs else self.body.inputs.index(value)
        return None if found is None else self.node.inputs[found]

    def after(self, state: ir.Value) -> ir.Value:
        """The new value of a state after a step."""
        return self.body.outputs[self.states.index(state)]

    def results(self) -> list[tuple[ir.Value, ir.Value | None, ir.Value]]:
        """For each result: its value in the body, its state (None if rows are stacked), and itself."""
        states = [*self.states, *[None] * (len(self.node.outputs) - self._count)]
        return list(zip(self.body.outputs, states, self.node.outputs, strict=True))
