"""The dataflow trait: which elements of the inputs an operator's outputs depend on.

Passes that tile batches, push slices toward the inputs, move transposes or hoist work out of loops ask an operator's
`dataflow` three questions: which parts of the inputs a part of the outputs needs, how the operator works on inputs with
permuted axes, and how it works on many inputs at once, stacked along a new first axis. An operator that answers takes
part in all of these passes, also a custom one:

    class Swoosh(Operator):
        x, y = Input("T", FLOATS), Output("T")
        dataflow = Aligned()

Operators of the patterns ELEMENTWISE and BROADCAST are `Aligned` unless they declare otherwise; a custom operator has
no dataflow unless it declares one, because its code may depend on the shapes of its inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ge.errors import GeError

if TYPE_CHECKING:
    from ge.ops.base import NodeView

__all__ = [
    "Aligned",
    "Dataflow",
    "Order",
    "OverAxes",
    "Part",
    "Reordered",
    "Rows",
    "Sliced",
    "Stack",
    "Stacked",
    "aligned_part",
    "check_promise",
    "joined_rows",
]


@dataclass(frozen=True)
class Part:
    """`length` positions from `start` on in every `period` along an axis.

    The first token of every sequence is a part even if the axes of batch and sequence are merged.
    """

    axis: int
    period: int
    start: int
    length: int

    def at(self, axis: int) -> Part:
        """The same positions of another axis."""
        return replace(self, axis=axis)

    def of(self, shape: Sequence[int]) -> list[int]:
        """The shape of this part of a tensor."""
        return [n // self.period * self.length if i == self.axis else n for i, n in enumerate(shape)]


@dataclass(frozen=True)
class Sliced:
    """How a node computes a part of its outputs: parts of inputs by index (others in full), changed attributes."""

    parts: dict[int, Part]
    attrs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Order:
    """The permutation of a transposed value: its axis i is axis perm[i] of the source."""

    perm: tuple[int, ...]

    @property
    def inverse(self) -> tuple[int, ...]:
        return tuple(sorted(range(len(self.perm)), key=lambda i: self.perm[i]))

    def axis(self, axis: int) -> int:
        """The source's axis of an axis of the transposed value."""
        return self.perm[axis % len(self.perm)]

    def axes(self, axes: Iterable[int]) -> list[int]:
        """The source's axes of axes of the transposed value."""
        return sorted(self.axis(a) for a in axes)

    def entries(self, values: Sequence[Any]) -> list[Any]:
        """One entry per axis, from the transposed order to the source's."""
        return [values[i] for i in self.inverse]

    def without(self, axes: Iterable[int]) -> tuple[int, ...]:
        """The permutation that remains without some axes (of the transposed value)."""
        gone = {a % len(self.perm) for a in axes}
        kept = [p for i, p in enumerate(self.perm) if i not in gone]
        return tuple(sorted(kept).index(p) for p in kept)


@dataclass(frozen=True)
class Reordered:
    """How a node works on the sources of transposed inputs: its outputs then need the transpose `perm`.

    Either all inputs are in the source's order (`first_only` false), or only the first is.
    """

    perm: tuple[int, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    first_only: bool = False


@dataclass(frozen=True)
class Stack:
    """The inputs of `count` runs of a node at once: those in `inputs` have a new first axis over the runs."""

    count: int
    inputs: frozenset[int]


@dataclass(frozen=True)
class Stacked:
    """How a node works on stacked inputs: changed attributes, other shapes of stacked inputs, inputs that must be
    stacked too. Outputs without the new first axis are reshaped to have it.
    """

    attrs: dict[str, Any] = field(default_factory=dict)
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    also: frozenset[int] = frozenset()


class Dataflow:
    """What is known about an operator's dataflow; this base class knows nothing."""

    def slice(self, op: NodeView, part: Part) -> Sliced | None:
        """The parts of the inputs that a part of every output needs; None if unknown."""
        return None

    def reorder(self, op: NodeView, order: Order) -> Reordered | None:
        """How the node works if inputs of this permutation are given in their source's order; None if it cannot."""
        return None

    def stack(self, op: NodeView, stack: Stack) -> Stacked | None:
        """How the node does many runs at once; None if it cannot."""
        return None


def joined_rows(op: NodeView, stack: Stack) -> Stacked | None:
    """The rows of all runs as one batch, if only the first input has rows."""
    first = op.inputs[0]
    if stack.inputs != {0} or first is None or not first.rank:
        return None
    return Stacked(shapes={0: (stack.count * first.shape[0], *first.shape[1:])})


def check_promise(op: NodeView, promised: Sequence[int], made: Sequence[int]) -> None:
    """Raise unless an output has the shape that the operator's dataflow promised for the changed inputs."""
    if tuple(promised) != tuple(made):
        cause = f"its dataflow promises an output of shape {list(promised)}, its inference gives {list(made)}"
        raise GeError(
            "E10005", cause, node=op.name, operator=op.type, remedy="correct its dataflow, or declare none"
        )


def aligned_part(op: NodeView, index: int, part: Part) -> Part | None:
    """The part of an input that aligns with the output at its last axes; None if all of it is needed."""
    desc = op.input(index)
    if desc is None:
        return None
    axis = part.axis - (op.outputs[0].rank - desc.rank)
    return None if axis < 0 or desc.shape[axis] == 1 else part.at(axis)


@dataclass(frozen=True)
class Aligned(Dataflow):
    """Elementwise; inputs broadcast against each other by NumPy's rules."""

    def slice(self, op: NodeView, part: Part) -> Sliced | None:
        parts = {i: p for i in range(len(op.inputs)) if (p := aligned_part(op, i, part)) is not None}
        size = op.outputs[0].shape[part.axis]
        if any(op.inputs[i].shape[p.axis] != size for i, p in parts.items()):  # type: ignore[union-attr]
            return None
        return Sliced(parts)

    def reorder(self, op: NodeView, order: Order) -> Reordered | None:
        return Reordered(order.perm) if op.outputs[0].rank == len(order.perm) else None

    def stack(self, op: NodeView, stack: Stack) -> Stacked | None:
        """Runs are the first axis of every stacked input; inputs of lower rank get axes of one element."""
        rank = op.outputs[0].rank
        shapes = {}
        for index in stack.inputs:
            shape = op.inputs[index].shape  # type: ignore[union-attr]
            shapes[index] = (stack.count, *(1,) * (rank - len(shape)), *shape)
        return Stacked(shapes=shapes)


@dataclass(frozen=True)
class Rows(Dataflow):
    """Some axes are independent: position i along one of them depends only on position i of the first input.

    Outputs have these axes in the same places as the first input; other inputs are needed in full.
    """

    axes: tuple[int, ...] = (0,)

    def slice(self, op: NodeView, part: Part) -> Sliced | None:
        return Sliced({0: part}) if part.axis in self.axes else None

    def stack(self, op: NodeView, stack: Stack) -> Stacked | None:
        return joined_rows(op, stack) if 0 in self.axes else None


@dataclass(frozen=True)
class OverAxes(Dataflow):
    """Every position depends on all positions along the axes in an attribute, and on the same one along the others.

    Further inputs (scales) extend along these axes.
    """

    attribute: str = "axes"
    reorders: bool = True

    def _axes(self, op: NodeView) -> list[int]:
        named = getattr(op, self.attribute)
        return [named] if isinstance(named, int) else list(named)

    def slice(self, op: NodeView, part: Part) -> Sliced | None:
        if part.axis in {a % op.outputs[0].rank for a in self._axes(op)}:
            return None
        if any(aligned_part(op, i, part) is not None for i in range(1, len(op.inputs))):
            return None
        return Sliced({0: part})

    def reorder(self, op: NodeView, order: Order) -> Reordered | None:
        if not self.reorders:
            return None
        axes = order.axes(self._axes(op))
        return Reordered(order.perm, self._changed(op, axes))

    def stack(self, op: NodeView, stack: Stack) -> Stacked | None:
        if stack.inputs != {0}:
            return None
        rank = op.inputs[0].rank  # type: ignore[union-attr]
        return Stacked(self._changed(op, [a % rank + 1 for a in self._axes(op)]))

    def _changed(self, op: NodeView, axes: list[int]) -> dict[str, Any]:
        single = isinstance(getattr(op, self.attribute), int)
        return {self.attribute: axes[0] if single else axes}
