"""Lifts computations out of a Scan: computes them for all steps at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ge.ir import facts
from ge.ir.values import constant_of, desc_of
from ge.ops.base import NodeView, dataflow_of, lookup
from ge.ops.dataflow import Stack, Stacked
from ge.passes.rewrite import Rewriter, is_pure

__all__ = ["Lifted", "Lifter", "Shift", "like", "repeated_source", "way_to_stack"]


def like(
    r: Rewriter, node: ir.Node, inputs: Iterable[ir.Value | None], **changes: object
) -> tuple[ir.Value, ...]:
    """A node's operator on other inputs, with the same origins."""
    r.origin = facts.origin(node)
    found = r.op_like(node, list(inputs), **changes)
    results = found if isinstance(found, tuple) else (found,)
    if facts.keep_dtype(node):
        for made in {v.producer() for v in results} - {None}:
            facts.set_keep_dtype(made)
    return results


def way_to_stack(node: ir.Node, stacked: Iterable[int], steps: int) -> Stacked | None:
    """How a node works with some inputs stacked over the steps, None if it cannot."""
    flow = dataflow_of(node) if is_pure(node) else None
    return None if flow is None else flow.stack(NodeView.of(node), Stack(steps, frozenset(stacked)))


@dataclass(frozen=True)
class Lifted:
    """A value of a Scan's body outside the loop: the rows of all steps, or an invariant."""

    value: ir.Value
    stacked: bool


@dataclass(frozen=True)
class Shift:
    """A state: its value in a step is the previous step's new value, initially its initial value."""

    after: ir.Value
    initial: ir.Value
    reverse: bool


class Lifter:
    """Computes values of a body outside the loop, before a rewriter's node, from the values known there."""

    def __init__(
        self, r: Rewriter, steps: int, known: Mapping[ir.Value, Lifted], states: Mapping[ir.Value, Shift]
    ) -> None:
        self._r, self._steps, self._states = r, steps, states
        self.known = dict(known)

    def of(self, value: ir.Value) -> Lifted:
        """A value in all steps; `way_to_stack` must have found a way to it."""
        if value not in self.known:
            constant, node = constant_of(value), value.producer()
            if constant is not None:
                self.known[value] = Lifted(self._r.constant(constant), False)
            elif value in self._states:
                self.known[value] = Lifted(self._shifted(self._states[value]), True)
            else:
                assert node is not None, f"{value.name} is not known outside of the loop"
                self.known.update(zip(node.outputs, self._made(node), strict=True))
        return self.known[value]

    def rows(self, value: ir.Value) -> ir.Value:
        """The rows of all steps, also of an invariant."""
        found = self.of(value)
        return found.value if found.stacked else self._repeated(found.value)

    def flat(self, value: ir.Value) -> ir.Value:
        """The rows of all steps, concatenated."""
        rows = self.rows(value)
        steps, first, *rest = desc_of(rows).shape
        return self._r.op("Reshape", rows, shape=[steps * first, *rest])

    def _shifted(self, state: Shift) -> ir.Value:
        rows, rank = self.rows(state.after), desc_of(state.initial).rank
        head = self._r.op("Reshape", state.initial, shape=[1, *desc_of(state.initial).shape])
        if self._steps == 1:
            return head
        start, shape = int(state.reverse), desc_of(rows).shape
        ends = [start + self._steps - 1, *shape[1:]]
        rest = self._r.op("Slice", rows, starts=[start, *[0] * rank], ends=ends)
        return self._r.op("Concat", *((rest, head) if state.reverse else (head, rest)), axis=0)

    def _repeated(self, value: ir.Value) -> ir.Value:
        return self._r.op("BroadcastTo", value, shape=[self._steps, *desc_of(value).shape])

    def _made(self, node: ir.Node) -> list[Lifted]:
        operands = [None if v is None else self.of(v) for v in node.inputs]
        stacked = [i for i, v in enumerate(operands) if v is not None and v.stacked]
        values = [None if v is None else v.value for v in operands]
        if not stacked:
            return [Lifted(v, False) for v in like(self._r, node, values)]
        way = way_to_stack(node, stacked, self._steps)
        assert way is not None, f"{node.op_type} has no way to be done for all steps at once"
        for index in way.also - set(stacked):
            values[index] = self._repeated(values[index])  # type: ignore[arg-type]
        for index, shape in way.shapes.items():
            values[index] = self._shaped(values[index], shape)  # type: ignore[arg-type]
        results = like(self._r, node, values, **way.attrs)
        rows = [(self._steps, *desc_of(v).shape) for v in node.outputs]
        return [Lifted(self._shaped(v, s), True) for v, s in zip(results, rows, strict=True)]

    def _shaped(self, value: ir.Value, shape: tuple[int, ...]) -> ir.Value:
        return value if desc_of(value).shape == shape else self._r.op("Reshape", value, shape=list(shape))


def repeated_source(stack: ir.Value) -> ir.Value | None:
    """The value whose copies are the rows of a tensor, None if they differ."""
    node = stack.producer()
    if node is None or not lookup(node.op_type).broadcasts or node.inputs[0] is None:
        return None
    source, whole = desc_of(node.inputs[0]), desc_of(stack)
    return node.inputs[0] if source.rank < whole.rank else None
