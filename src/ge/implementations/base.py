"""Candidates: the implementations of a cube operation, with refusals and costs, and the choice among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ge.plan import Task, View
from ge.target import CostTable, Target

__all__ = [
    *("BINARY_POST_OPS", "LIBRARY", "SETTINGS"),
    *("Candidate", "Choice", "Library", "Operation", "choose_from", "is_small"),
]

LIBRARY = "onednn"
# Attributes of tasks that candidates write: one thread is enough; what cores divide, and sizes of blocks; operands are
# reordered to channels-last.
SETTINGS = frozenset({"channels_last", "serial", "by_rows", "by_pixels", "block_pixels", "down", "across"})
_LEAST_SECONDS = 1e-9
BINARY_POST_OPS = frozenset({"add", "sub", "mul", "div", "max", "min"})

# FLOPs of one run, from the shapes of the first two inputs and the first output.
_FLOPS: dict[str, Callable[[Sequence[View], Sequence[View]], int]] = {
    "matmul": lambda i, o: 2 * math.prod(o[0].shape) * i[0].shape[-1],
    "packed_matmul": lambda i, o: 2 * math.prod(o[0].shape) * i[0].shape[-1],
    "conv": lambda i, o: 2 * math.prod(o[0].shape) * math.prod(i[1].shape[1:]),
    "deconv": lambda i, o: 2 * math.prod(i[0].shape) * math.prod(i[1].shape[1:]),
    "conv_grad_weights": lambda i, o: 2 * math.prod(i[1].shape) * math.prod(o[0].shape[1:]),
    "rnn": lambda i, o: (
        2 * math.prod(i[0].shape[:2]) * sum(math.prod(v.shape) for v in i if len(v.shape) == 5)
    ),
}


@dataclass(frozen=True)
class Operation:
    """One cube operation: operands in the order of the runtime's task, attributes, and known facts about the inputs."""

    kind: str
    inputs: tuple[View, ...]
    outputs: tuple[View, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    constant: frozenset[int] = frozenset()  # inputs that are constants of the program
    steady: frozenset[int] = frozenset()  # inputs that are invariant in the enclosing loop

    @classmethod
    def of(
        cls, task: Task, constant: frozenset[int] = frozenset(), steady: frozenset[int] = frozenset()
    ) -> Operation:
        """The operation of a task."""
        return cls(task.kind, tuple(task.inputs), tuple(task.outputs), task.attrs, constant, steady)

    @property
    def precise(self) -> bool:
        """True if algorithms with larger rounding errors are excluded."""
        return bool(self.attrs.get("precise"))

    @property
    def post_ops(self) -> tuple[str, ...]:
        return tuple(self.attrs.get("post_ops") or ())

    @property
    def post_operands(self) -> int:
        """The number of trailing inputs that belong to post-ops."""
        return sum(text in BINARY_POST_OPS for text in self.post_ops)

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.attrs.get(name, default))

    def integers(self, name: str, default: Sequence[int]) -> tuple[int, ...]:
        """A list attribute."""
        value = self.attrs.get(name)
        return tuple(default if value is None else value)

    @property
    def quantised(self) -> bool:
        return self.flag("has_weight_scales") or "src_scale" in self.attrs or "dst_scale" in self.attrs

    def packs_once(self, index: int) -> bool:
        """True if an input can be packed ahead of the runs, or of the loop, that read it."""
        return index in self.constant or index in self.steady

    @property
    def flops(self) -> int:
        count = _FLOPS.get(self.kind)
        if count:
            return count(self.inputs, self.outputs)
        window = math.prod(self.integers("kernel", (1,)))
        return window * sum(math.prod(v.shape) for v in self.outputs)

    @property
    def rounds(self) -> int:
        """The number of times that the cores meet: once per step of a recurrent layer."""
        return max(self.inputs[0].shape[0], 1) if self.kind == "rnn" else 1

    @property
    def moved_bytes(self) -> int:
        """Bytes of the data that cores divide: no weights of convolutions."""
        divided = {
            "matmul": (*self.inputs[:2], *self.outputs),
            "conv_grad_weights": self.inputs[:2],
        }.get(self.kind, (self.inputs[0], self.outputs[0]))
        return sum(v.nbytes for v in divided)

    @property
    def nbytes(self) -> int:
        """Bytes that the operation reads and writes, excluding operands of post-ops."""
        own = self.inputs[: len(self.inputs) - self.post_operands]
        return sum(v.nbytes for v in (*own, *self.outputs))


class Candidate:
    """One way to run an operation. The order of candidates breaks ties of equal cost."""

    name: ClassVar[str]
    device: ClassVar[str] = "cpu"  # the kind of target it runs on
    needs: ClassVar[str] = ""  # the target feature it requires
    needs_bf16: ClassVar[str] = ""  # the feature required for bfloat16 operands, if different
    rounds_more: ClassVar[bool] = False  # larger rounding errors than a plain sum of products

    def refuse(self, op: Operation, target: Target) -> str:
        """The reason why the candidate cannot run an operation on a target, "" if it can."""
        if target.kind != self.device:
            return f"it runs on a {self.device}"
        feature = self.feature({v.dtype for v in (*op.inputs, *op.outputs)})
        if feature and feature not in target.features:
            return f"the target has no {feature.upper()}"
        if self.rounds_more and op.precise:
            return "high_precision excludes algorithms with larger rounding errors"
        return self.unfit(op)

    def feature(self, dtypes: Collection[str]) -> str:
        """The target feature that the candidate requires for operands of these types, "" for none."""
        return self.needs_bf16 if self.needs_bf16 and "bfloat16" in dtypes else self.needs

    def unfit(self, op: Operation) -> str:
        """The target-independent reason why the candidate cannot compute an operation, post-ops included."""
        return ""

    def cost(self, op: Operation, target: Target, otherwise: float | None = None) -> float:
        """Estimated seconds; `otherwise` is the cost of the best candidate after this one in the list."""
        if otherwise is None:
            return max(target.seconds(op.flops, op.nbytes, op.inputs[0].dtype), _LEAST_SECONDS)
        measured = target.costs_of(op.inputs[0].dtype)
        gain = (
            self.modelled_gain(op, target) if measured is None else self.measured_gain(op, target, measured)
        )
        return otherwise / max(gain, 1e-6)

    def measured_gain(self, op: Operation, target: Target, costs: CostTable) -> float:
        """Time of the following candidates divided by this one's; 1 at the measured crossover."""
        return 1.0

    def modelled_gain(self, op: Operation, target: Target) -> float:
        """The same, modelled from operations and bytes, for a target without measurements."""
        return 1.0

    def settings(self, op: Operation, target: Target) -> dict[str, Any]:
        """Attributes (among SETTINGS) that tell the runtime how to run the operation on a target."""
        return {}


class Library(Candidate):
    """oneDNN's primitive, with the layouts and types it supports: the last candidate of most lists."""

    name = LIBRARY

    def settings(self, op: Operation, target: Target) -> dict[str, Any]:
        return {"serial": True} if self.is_serial(op, target) else {}

    def is_serial(self, op: Operation, target: Target) -> bool:
        """True if waking other cores costs more than they save."""
        return is_small(target, op.flops / op.rounds, op.moved_bytes / op.rounds)


def is_small(target: Target, flops: float, nbytes: float) -> bool:
    """True if one core runs a primitive of this size as fast as all."""
    costs = target.measured
    return flops < costs.library_flops and nbytes < costs.library_bytes


@dataclass(frozen=True)
class Choice:
    """The candidate that runs an operation and the reasons against the others, in the order of the list."""

    name: str  # "" if every candidate refuses
    seconds: float
    against: tuple[tuple[str, str], ...] = ()

    @property
    def is_library(self) -> bool:
        return self.name.startswith(LIBRARY)

    @property
    def reason(self) -> str:
        """The choice in one line.

        >>> Choice("narrow", 1e-6, (("strassen", "it is too small"),)).reason
        'narrow; not strassen: it is too small'
        """
        return "; ".join([self.name, *(f"not {name}: {why}" for name, why in self.against)])


def choose_from(candidates: Sequence[Candidate], op: Operation, target: Target) -> Choice:
    """The candidate of least estimated cost; the earlier one on a tie."""
    best: Candidate | None = None
    seconds: float | None = None
    against: dict[str, str] = {}
    for candidate in reversed(candidates):
        why = candidate.refuse(op, target)
        if why:
            against[candidate.name] = why
            continue
        mine = candidate.cost(op, target, seconds)
        if best is None or seconds is None or mine <= seconds:
            if best is not None:
                against[best.name] = f"{candidate.name} is estimated to be faster"
            best, seconds = candidate, mine
        else:
            against[candidate.name] = f"it is estimated at {mine / seconds:.2f} times the time of {best.name}"
    ordered = tuple((c.name, against[c.name]) for c in candidates if c.name in against)
    return Choice(best.name if best else "", seconds or 0.0, ordered)
