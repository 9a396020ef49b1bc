"""Collects the tasks, constants and storages (with live ranges) of a plan; memory is planned afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ge.ir.types import TensorDesc
from ge.ir.values import constant_of, desc_of
from ge.plan import Task, View

__all__ = ["PlanBuilder", "Share", "Storage"]


@dataclass(frozen=True)
class Share:
    """An output that may take the memory of an input: positions in the task's lists, and the post-op that adds it."""

    input: int
    output: int
    post_op: int = -1


@dataclass(eq=False, slots=True)
class Storage:
    """A piece of memory and its live range (in task times)."""

    id: int
    kind: str  # as plan.Buffer.kind
    nbytes: int
    index: int = 0
    first: int = -1
    last: int = -1
    label: str = ""
    place: int = -1  # in the arena, if known beforehand

    def touch(self, time: int) -> None:
        """Extend the live range to this time."""
        self.first = time if self.first < 0 else min(self.first, time)
        self.last = max(self.last, time)


@dataclass
class PlanBuilder:
    """Tasks over storages; a view's `buffer` is a storage's id."""

    storages: list[Storage] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    times: list[int] = field(default_factory=list)  # of each task
    constants: list[np.ndarray] = field(default_factory=list)
    shares: dict[int, tuple[Share, ...]] = field(
        default_factory=dict
    )  # by task: outputs that may take an input's memory
    nodes: dict[int, ir.Node] = field(default_factory=dict)  # by task: the node of a cube task
    dropped: set[int] = field(default_factory=set)  # tasks that became no-ops
    blocks: int = 1
    clock: int = 0
    _constant_of: dict[int, Storage] = field(default_factory=dict)

    def storage(self, kind: str, nbytes: int, index: int = 0, label: str = "") -> Storage:
        """Create a piece of memory."""
        item = Storage(len(self.storages), kind, nbytes, index, label=label)
        self.storages.append(item)
        return item

    def arena(self, desc: TensorDesc, label: str = "") -> View:
        """Create a tensor in the arena."""
        return View.of(self.storage("arena", desc.nbytes, label=label).id, desc)

    def constant(self, value: ir.Value) -> View:
        """The view of a constant; the same tensor is stored once."""
        key = id(value.const_value)
        item = self._constant_of.get(key)
        if item is None:
            array = constant_of(value)
            assert array is not None
            item = self.storage("constant", array.nbytes, len(self.constants), label=value.name or "")
            self.constants.append(np.ascontiguousarray(array).reshape(array.shape))
            self._constant_of[key] = item
        return View.of(item.id, desc_of(value))

    def new_constant(self, array: np.ndarray, desc: TensorDesc) -> View:
        """A constant that no graph value holds."""
        item = self.storage("constant", array.nbytes, len(self.constants))
        self.constants.append(np.ascontiguousarray(array).reshape(array.shape))
        return View.of(item.id, desc)

    def tick(self) -> int:
        """Advance to the next moment."""
        self.clock += 1
        return self.clock

    def emit(self, task: Task, shares: Sequence[Share] = ()) -> Task:
        """Append a task at the next moment."""
        time = self.tick()
        if shares:
            self.shares[len(self.tasks)] = tuple(shares)
        self.tasks.append(task)
        self.times.append(time)
        for view in (*task.inputs, *task.outputs):
            self.storages[view.buffer].touch(time)
        return task

    def hold(self, views: Iterable[View], time: int) -> None:
        """Extend the live ranges of the memory behind views to a time."""
        for view in views:
            self.storages[view.buffer].touch(time)
