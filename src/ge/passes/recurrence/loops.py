"""Looking at loops of a known number of steps, and making what their steps make for all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from ge.ir.values import constant_of, desc_of
from ge.ops.base import dataflow_of
from ge.ops.dataflow import Aligned
from ge.passes.rewrite import Rewriter, attrs_of, producer, scalar

__all__ = ["CountedLoop", "Lifted", "Lifter", "behind", "is_product"]


def behind(value: ir.Value | None, *types: str) -> ir.Value | None:
    """The value behind nodes of some types, Identity alone unless told."""
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
class Lifted:
    """A value of a loop's body outside of the loop: the rows of all steps, or what is the same in all of them."""

    value: ir.Value
    stacked: bool


class Lifter:
    """Makes values of a loop's body outside of the loop, before a rewriter's node.

    Rows are in the order of the steps, or (`back`) of the stacks that the steps read from the last row on. `known`
    gives what the caller knows of a value, None of any other.
    """

    def __init__(
        self,
        loop: CountedLoop,
        r: Rewriter,
        known: Callable[[ir.Value], Lifted | None] = lambda _: None,
        *,
        back: bool = False,
    ) -> None:
        self._loop, self._r, self._known, self._back = loop, r, known, back
        self._made: dict[ir.Value, Lifted | None] = {}

    def of(self, value: ir.Value | None) -> Lifted | None:
        """A value in all steps; None where it depends on the step before or cannot be made at once."""
        value = behind(value)
        if value is None:
            return None
        if value not in self._made:
            self._made[value] = self._known(value) or self._source(value) or self._computed(value)
        return self._made[value]

    def _source(self, value: ir.Value) -> Lifted | None:
        constant, outer = constant_of(value), self._loop.outer(value)
        if constant is not None:
            return Lifted(self._r.constant(constant), False)
        if outer is not None:
            return Lifted(outer, False)
        stack = self.of(self._loop.row_of(value, back=self._back))
        return Lifted(stack.value, True) if stack is not None and not stack.stacked else None

    def _computed(self, value: ir.Value) -> Lifted | None:
        node = value.producer()
        if node is None or len(node.outputs) != 1:
            return None
        if node.op_type == "MatMul":
            return self.product(node)
        if node.op_type != "Reshape" and not isinstance(dataflow_of(node), Aligned):
            return None
        operands = [self.of(v) for v in node.inputs]
        if not operands or any(v is None for v in operands):
            return None
        row = desc_of(value).shape
        stacked = [v for v in operands if v is not None and v.stacked]
        if any(desc_of(v.value).rank != len(row) + 1 for v in stacked if node.op_type != "Reshape"):
            return None
        shape = (self._loop.steps, *row) if stacked else row
        changes = {"shape": list(shape)} if node.op_type == "Reshape" else {}
        made = self._r.op_like(node, [v.value for v in operands if v is not None], **changes)
        return Lifted(made, bool(stacked)) if desc_of(made).shape == shape else None

    def product(self, node: ir.Node, output_dtype: str | None = None) -> Lifted | None:
        """A product of rows with a matrix, as one of all rows with it."""
        if not (is_product(node) or is_product(node, transpose_b=True)):
            return None
        rows, matrix = (self.of(v) for v in node.inputs[:2])
        if rows is None or matrix is None or not rows.stacked or matrix.stacked:
            return None
        changes = {} if output_dtype is None else {"output_dtype": output_dtype}
        made = self._r.op_like(node, [self.flat(rows.value), matrix.value], **changes)
        batch, width = desc_of(node.outputs[0]).shape
        return Lifted(self._r.op("Reshape", made, shape=[self._loop.steps, batch, width]), True)

    def flat(self, rows: ir.Value) -> ir.Value:
        """The rows of all steps below one another."""
        steps, batch, *rest = desc_of(rows).shape
        return self._r.op("Reshape", rows, shape=[steps * batch, *rest])
