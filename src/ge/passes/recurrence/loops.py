"""Looking at loops of a known number of steps."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ge.ir.values import desc_of
from ge.passes.rewrite import attrs_of, producer, scalar

__all__ = ["CountedLoop", "ScanLoop", "behind", "is_product"]


def behind(value: ir.Value | None, *types: str) -> ir.Value | None:
    """The value behind nodes of some types; by default only Identity."""
    while (node := producer(value, *(types or ("Identity",)))) is not None:
        value = node.inputs[0]
    return value


def is_product(
    node: ir.Node | None, *, transpose_a: bool = False, transpose_b: bool = False, biased: bool = False
) -> bool:
    """Whether a node is a product of two matrices, turned so, with nothing added (but a bias where that may be)."""
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


@dataclass(frozen=True)
class CountedLoop:
    """A loop that only its number of steps ends, of which there is one at least."""

    node: ir.Node
    body: ir.Graph
    steps: int

    @staticmethod
    def of(node: ir.Node) -> CountedLoop | None:
        """The loop of a node, None when it can end early or its number of steps is computed."""
        attrs = attrs_of(node)
        body, steps = attrs["body"], scalar(node.inputs[0])
        if steps is None or steps < 1 or attrs["max_trip"] not in (None, int(steps)):
            return None
        start = node.inputs[1] if len(node.inputs) > 1 else None
        going = behind(body.outputs[0], "Identity", "Reshape")
        if not (start is None or scalar(start) == 1) or not (going is body.inputs[1] or scalar(going) == 1):
            return None
        return CountedLoop(node, body, int(steps))

    @property
    def _count(self) -> int:
        return attrs_of(self.node)["num_states"]

    @property
    def states(self) -> list[ir.Value]:
        """The states as the body reads them."""
        return list(self.body.inputs[2 : 2 + self._count])

    def initial(self, state: ir.Value) -> ir.Value:
        """What a state is before the first step."""
        return self._given(state)

    def after(self, state: ir.Value) -> ir.Value:
        """What a step makes of a state."""
        return self.body.outputs[1 + self.states.index(state)]

    def results(self) -> list[tuple[ir.Value, ir.Value | None, ir.Value]]:
        """For each result: the value of the body it comes from, the state (None where rows are collected), itself."""
        states = [*self.states, *[None] * (len(self.node.outputs) - self._count)]
        return list(zip(self.body.outputs[1:], states, self.node.outputs, strict=True))

    def outer(self, value: ir.Value | None) -> ir.Value | None:
        """The value outside that the body reads as this one, None when it is the body's own."""
        return self._given(value) if value in self.body.inputs[2 + self._count :] else None

    def _given(self, value: ir.Value | None) -> ir.Value:
        given = self.node.inputs[self.body.inputs.index(value)]
        assert given is not None
        return given

    def row_of(self, value: ir.Value | None, *, back: bool) -> ir.Value | None:
        """The stack that has a row for each step (as the body reads it), of which a value is this step's row; `back`
        counts from the last one."""
        node = producer(behind(value), "Gather")
        if node is None or attrs_of(node)["axis"] != 0 or attrs_of(node).get("batch_dims"):
            return None
        stack, index = node.inputs[0], node.inputs[1]
        assert stack is not None and index is not None
        if desc_of(stack).shape[0] != self.steps or desc_of(index).rank:
            return None
        return stack if self._counts(index, back) else None

    def _counts(self, index: ir.Value, back: bool) -> bool:
        counter = behind(index, "Identity", "Cast")
        if not back:
            return counter is self.body.inputs[0]
        node = producer(counter, "Sub")
        if node is None or scalar(node.inputs[0]) != self.steps - 1:
            return False
        return behind(node.inputs[1], "Identity", "Cast") is self.body.inputs[0]


@dataclass(frozen=True)
class ScanLoop:
    """A Scan operator: its states, the tensors whose rows its steps read, and what it reads of other values outside."""

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
        """The states as the body reads them."""
        return list(self.body.inputs[: self._count])

    @property
    def rows(self) -> list[ir.Value]:
        """The rows as the body reads them."""
        return list(self.body.inputs[self._count : self._count + attrs_of(self.node)["num_rows"]])

    def given(self, value: ir.Value | None) -> ir.Value | None:
        """The value outside behind an input of the body: a state's first value, a row's tensor, a capture."""
        found = None if value is None or value not in self.body.inputs else self.body.inputs.index(value)
        return None if found is None else self.node.inputs[found]

    def after(self, state: ir.Value) -> ir.Value:
        """What a step makes of a state."""
        return self.body.outputs[self.states.index(state)]

    def results(self) -> list[tuple[ir.Value, ir.Value | None, ir.Value]]:
        """For each result: the value of the body it comes from, the state (None where rows are stacked), itself."""
        states = [*self.states, *[None] * (len(self.node.outputs) - self._count)]
        return list(zip(self.body.outputs, states, self.node.outputs, strict=True))
