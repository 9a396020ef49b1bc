"""Schedules the tasks of a graph on two streams: kernels off the critical path run concurrently with the others.

Weight updates, sums that only they read, and casts of weights are off the critical path. On a side stream they fill
multiprocessors that the main chain of products leaves idle, and their launches do not delay it. Dependences are derived
from the bytes that tasks read and write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ge.ir.types import numpy_dtype
from ge.plan import Plan, Task, View

__all__ = ["Move", "Regions", "schedule"]

SIDE_BYTES = 64 << 20  # read and written by a task of the side stream
_BATCH = 12  # tasks per batch of the side stream: each batch costs the main stream an event
_PATIENCE = 6  # tasks of the main stream that the first of a batch waits for
_AHEAD = 24  # tasks by which a cast of weights is moved ahead
_ALONE = frozenset({"kernel", "copy", "reorder", "check"})  # kinds that need no workspace


class Move(Enum):
    """Synchronisation between the streams."""

    FORK = "the side stream waits for the main stream"
    JOIN = "the main stream waits for the side stream"


@dataclass
class Regions:
    """Memory regions: bytes of the arena, and the caller's inputs and outputs as a whole."""

    ports: set[tuple[str, int]] = field(default_factory=set)
    spans: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, plan: Plan, views: Iterable[View]) -> Regions:
        """The memory of some views; constants are never written and do not count."""
        source = dict(plan.donated)
        found = cls()
        for view in views:
            buffer = plan.buffers[view.buffer]
            if buffer.kind == "arena":
                begin = buffer.offset + view.offset * numpy_dtype(view.dtype).itemsize
                found.spans.append((begin, begin + _reach(view)))
            elif buffer.kind == "output" and buffer.index in source:
                found.ports.add(("input", source[buffer.index]))
            elif buffer.kind != "constant":
                found.ports.add((buffer.kind, buffer.index))
        return found

    def touches(self, other: Regions) -> bool:
        """True if two regions overlap."""
        if not self.ports.isdisjoint(other.ports):
            return True
        return any(a < d and c < b for a, b in self.spans for c, d in other.spans)

    def add(self, other: Regions) -> None:
        self.ports |= other.ports
        self.spans += other.spans


def _reach(view: View) -> int:
    steps = sum((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True) if n > 1)
    return (steps + 1) * numpy_dtype(view.dtype).itemsize if 0 not in view.shape else 0


@dataclass
class _Access:
    """The memory that one or several tasks read and write."""

    reads: Regions = field(default_factory=Regions)
    writes: Regions = field(default_factory=Regions)

    @classmethod
    def of(cls, plan: Plan, tasks: Sequence[Task]) -> _Access:
        inputs = [v for t in tasks for v in t.inputs]
        return cls(Regions.of(plan, inputs), Regions.of(plan, (v for t in tasks for v in t.outputs)))

    def conflicts(self, other: _Access) -> bool:
        """True if the order of the two matters."""
        return (
            self.writes.touches(other.writes)
            or self.writes.touches(other.reads)
            or self.reads.touches(other.writes)
        )

    def add(self, other: _Access) -> None:
        self.reads.add(other.reads)
        self.writes.add(other.writes)


def schedule(plan: Plan, groups: Sequence[Sequence[Task]]) -> list[tuple[int, bool] | Move]:
    """The launch order: (number of a group of tasks, whether on the side stream), forks and joins.

    1. A kernel of few bytes whose results only such kernels, or none, read runs on the side stream.
    2. So does one that reads only inputs and constants; it is moved ahead.
    3. A fork or a join separates two tasks on different streams whose order matters.
    4. A loop, whose body is not among the tasks, runs on the main stream with nothing beside it.
    """
    access = [_Access.of(plan, tasks) for tasks in groups]
    side = _off_the_path(groups)
    early = {
        n: place
        for n, tasks in enumerate(groups)
        if n not in side and _fits(tasks) and (place := _early_place(access, n)) is not None
    }
    order = sorted(range(len(groups)), key=lambda n: (early.get(n, n), n not in early, n))
    moves: list[tuple[int, bool] | Move] = []
    waiting: list[int] = []
    patience = 0
    queued, running = _Access(), _Access()
    forked = False  # tasks that only read, such as checks, have to be joined as well

    def fork() -> None:
        nonlocal queued, forked
        forked = True
        moves.append(Move.FORK)
        moves.extend((n, True) for n in waiting)
        running.add(queued)
        waiting.clear()
        queued = _Access()

    def join() -> None:
        nonlocal running, forked
        forked = False
        moves.append(Move.JOIN)
        running = _Access()

    for number in order:
        if number in side or number in early:
            if not waiting:
                patience = _PATIENCE
            if any(task.kind == "check" for task in groups[number]):
                patience = 0  # the host waits for it
            waiting.append(number)
            queued.add(access[number])
            if len(waiting) == _BATCH:
                fork()
            continue
        whole = any(task.kind == "while" for task in groups[number])
        if waiting and (whole or patience <= 0 or access[number].conflicts(queued)):
            fork()
        if forked and (whole or access[number].conflicts(running)):
            join()
        moves.append((number, False))
        patience -= 1
    if waiting:
        fork()
    if forked:
        join()
    return moves


def _bytes(tasks: Sequence[Task]) -> int:
    return sum(v.nbytes for t in tasks for v in (*t.inputs, *t.outputs))


def _fits(tasks: Sequence[Task]) -> bool:
    return all(t.kind in _ALONE for t in tasks) and _bytes(tasks) <= SIDE_BYTES


def _off_the_path(groups: Sequence[Sequence[Task]]) -> set[int]:
    """Rule 1: groups whose results no later group of the main stream reads."""
    read_on_main: set[int] = set()  # buffers
    found: set[int] = set()
    for number in range(len(groups) - 1, -1, -1):
        tasks = groups[number]
        if _fits(tasks) and not any(v.buffer in read_on_main for t in tasks for v in t.outputs):
            found.add(number)
        else:
            read_on_main.update(v.buffer for t in tasks for v in t.inputs)
    return found


def _early_place(access: Sequence[_Access], number: int) -> int | None:
    """Rule 2: the earliest group before which a group of the main stream may run, if that is early enough."""
    reads = access[number].reads
    if reads.spans or any(kind != "input" for kind, _ in reads.ports):
        return None
    place = number
    while place > max(number - _AHEAD, 0) and not access[number].conflicts(access[place - 1]):
        place -= 1
    return place if number - place > 2 * _PATIENCE else None
