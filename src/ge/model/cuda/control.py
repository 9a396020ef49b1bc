"""Branches and loops of a GPU plan.

A loop with a known trip count whose body runs entirely on the GPU is unrolled onto the stream, and so becomes part of
the enclosing CUDA graph. For others the host reads the condition and launches the graphs of the body.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ge.model.cuda.binding import Binding
from ge.model.cuda.checks import groups_of
from ge.model.cuda.host import HostPart, runs_on_host
from ge.model.cuda.streams import Move, schedule
from ge.plan import Plan, Task, View
from npu_runtime import UnsupportedTask, cuda

if TYPE_CHECKING:
    from ge.model.cuda.program import _Loaded

__all__ = ["Branch", "Guard", "Loop", "Part", "Steps", "parts_of_block", "steps_in"]

Shapes = dict[int, tuple[int, ...]]
_MOST_STEPS = 20_000  # of an unrolled loop
_SMALL_COPY = 1 << 16  # bytes of a copy that is merged with others
_JOINED_COPIES = 64


@dataclass
class Step:
    """A function that enqueues one or several tasks."""

    task: Task
    run: Callable[[], None]
    others: Sequence[Task] = ()  # that run with it


@dataclass
class Steps:
    """Consecutive GPU tasks, and the graph captured from them."""

    steps: list[Step]
    shapes: Shapes = field(
        default_factory=dict
    )  # of outputs whose lengths are the trip count of a loop in it
    graphs: dict[Binding, cuda.Graph] = field(default_factory=dict)
    moves: list[tuple[int, bool] | Move] | None = None  # the launch order on two streams

    def warm_up(self, program: _Loaded) -> None:
        """Run once: libraries load lazily in their first run, which cannot be captured."""
        for step in self.steps:
            step.run()

    def capture(self, program: _Loaded) -> None:
        program.stream.begin_capture()
        self.enqueue(program)
        self.graphs[program.binding] = cuda.Graph(program.stream)

    def enqueue(self, program: _Loaded) -> None:
        """Enqueue all tasks, those off the critical path on the side stream (streams.py)."""
        if self.moves is None:
            self.moves = schedule(program.plan, [(s.task, *s.others) for s in self.steps])
        main, side = program.stream, program.side
        for move in self.moves:
            if isinstance(move, tuple):
                number, aside = move
                program.stream = side if aside else main
                self.steps[number].run()
                program.stream = main
            elif move is Move.FORK:
                program.forked.record(main)
                side.wait(program.forked)
            else:
                program.joined.record(side)
                main.wait(program.joined)

    def launch(self, program: _Loaded, feeds: Sequence[np.ndarray] | None) -> Shapes:
        self.graphs[program.binding].launch(program.stream)
        return self.shapes


@dataclass
class Branch:
    """An If: the host reads the condition."""

    condition: View
    then_parts: list[Part]
    else_parts: list[Part]

    def warm_up(self, program: _Loaded) -> None:
        for part in (*self.then_parts, *self.else_parts):
            part.warm_up(program)

    def capture(self, program: _Loaded) -> None:
        for part in (*self.then_parts, *self.else_parts):
            part.capture(program)

    def launch(self, program: _Loaded, feeds: Sequence[np.ndarray] | None) -> Shapes:
        chosen = self.then_parts if program.scalar(self.condition) else self.else_parts
        return _launch_all(chosen, program, feeds)


@dataclass
class Loop:
    """A While: the host counts the iterations and, if they decide, reads trip count and condition."""

    task: Task
    turns: int | None  # None: known only at run time
    turn: int = 0
    parts: list[Part] = field(default_factory=list)
    stored: dict[int, tuple[int, ...]] = field(
        default_factory=dict
    )  # outputs that iterations fill: their dims

    @property
    def counter(self) -> View:
        return self.task.outputs[0]

    def warm_up(self, program: _Loaded) -> None:
        program.write(self.counter, np.array(0))
        for part in self.parts:
            part.warm_up(program)

    def capture(self, program: _Loaded) -> None:
        for part in self.parts:
            part.capture(program)

    def launch(self, program: _Loaded, feeds: Sequence[np.ndarray] | None) -> Shapes:
        shapes: Shapes = {output: (0, *dims[1:]) for output, dims in self.stored.items()}
        inputs = {v.dtype: v for v in self.task.inputs}
        limit = self.turns
        if limit is None and "int64" in inputs:
            limit = int(program.scalar(inputs["int64"]))
        self.turn = 0
        while limit is None or self.turn < limit:
            program.write(self.counter, np.array(self.turn))
            if self.turns is None and "bool" in inputs and not program.scalar(inputs["bool"]):
                return shapes
            shapes |= _launch_all(self.parts, program, feeds)
            self.turn += 1
        program.write(self.counter, np.array(self.turn))
        return shapes


@dataclass
class Eager:
    """A copy whose destination depends on the iteration of a loop; it is not part of a graph."""

    step: Step
    report: Callable[[], Shapes]

    def warm_up(self, program: _Loaded) -> None:
        """Nothing: it needs no library."""

    def capture(self, program: _Loaded) -> None:
        """Nothing: it is enqueued in every iteration."""

    def launch(self, program: _Loaded, feeds: Sequence[np.ndarray] | None) -> Shapes:
        self.step.run()
        return self.report()


@dataclass
class Guard:
    """Checks whose results the host reads before the run continues."""

    steps: list[Step]

    @property
    def tasks(self) -> list[Task]:
        return [task for step in self.steps for task in (step.task, *step.others)]

    def warm_up(self, program: _Loaded) -> None:
        """Nothing: it needs no library."""

    def capture(self, program: _Loaded) -> None:
        """Nothing: it is not part of a graph."""

    def launch(self, program: _Loaded, feeds: Sequence[np.ndarray] | None) -> Shapes:
        for step in self.steps:
            step.run()
        program.checks.settle()
        return {}


Part = Steps | HostPart | Branch | Loop | Eager | Guard


def _launch_all(parts: Sequence[Part], program: _Loaded, feeds: Sequence[np.ndarray] | None) -> Shapes:
    shapes: Shapes = {}
    for part in parts:
        shapes |= part.launch(program, feeds)
    return shapes


def steps_in(parts: Sequence[Part]) -> Iterator[Steps]:
    """All captured parts, including those of branches and loops."""
    for part in parts:
        if isinstance(part, Steps):
            yield part
        elif isinstance(part, Branch):
            yield from steps_in([*part.then_parts, *part.else_parts])
        elif isinstance(part, Loop):
            yield from steps_in(part.parts)


def parts_of_block(program: _Loaded, block: int = 0, loop: Loop | None = None) -> list[Part]:
    """The parts of a block of the plan in order; `loop` is the loop whose body it is."""
    parts: list[Part] = []
    waiting: list[Task] = []  # consecutive host tasks
    checks: list[Task] = []  # consecutive checks
    for task in _checks_first(program.plan, [t for t in program.plan.tasks if t.block == block]):
        if runs_on_host(task):
            _add_checks(parts, program, checks)
            waiting.append(task)
            continue
        _add_host_part(parts, program.plan, waiting)
        if task.kind == "check":
            checks.append(task)
            continue
        _add_checks(parts, program, checks)
        if task.kind == "if":
            blocks = (int(task.attrs.get(name, 0)) for name in ("then_block", "else_block"))
            branches = [parts_of_block(program, inner, loop) if inner > 0 else [] for inner in blocks]
            parts.append(Branch(task.inputs[0], *branches))
        elif task.kind == "while":
            _add_loop(parts, program, task)
        elif task.kind == "scan_store":
            _add_store(parts, program, task, loop)
        else:
            _steps(parts).steps.append(program.step(task))
    _add_host_part(parts, program.plan, waiting)
    _add_checks(parts, program, checks)
    _join_last_copies(parts, program)
    return parts


def _join_last_copies(parts: list[Part], program: _Loaded) -> None:
    """Merge the copies of new state values at the end of a run: small ones of one size in one launch."""
    last = parts[-1] if parts else None
    if not isinstance(last, Steps):
        return
    sizes: dict[int, list[Step]] = {}
    for step in reversed(last.steps):
        if not _is_last_copy(program.plan, step.task):
            break
        if step.task.inputs[0].nbytes <= _SMALL_COPY:
            sizes.setdefault(step.task.inputs[0].nbytes, []).append(step)
    for alike in sizes.values():
        for begin in range(0, len(alike) - 1, _JOINED_COPIES):
            joined = alike[begin : begin + _JOINED_COPIES]
            tasks = [step.task for step in joined]
            where = last.steps.index(joined[-1])
            last.steps[where] = Step(tasks[-1], program.joined_copies(tasks), tasks[:-1])
            last.steps = [s for s in last.steps if s not in joined]


def _is_last_copy(plan: Plan, task: Task) -> bool:
    """True if a task copies from the arena to an output; such copies do not read what others of them write."""
    if task.kind != "copy" or not all(v.contiguous for v in (*task.inputs, *task.outputs)):
        return False
    source, target = (plan.buffers[v.buffer].kind for v in (task.inputs[0], task.outputs[0]))
    return source == "arena" and target == "output"


def _checks_first(plan: Plan, tasks: list[Task]) -> list[Task]:
    """Move checks of the caller's inputs to the front, so that they do not separate two graphs."""

    def is_early(task: Task) -> bool:
        reads = [plan.buffers[v.buffer].kind for v in task.inputs]
        return task.kind == "check" and task.block == 0 and all(kind == "input" for kind in reads)

    return sorted(tasks, key=lambda task: not is_early(task))


def _steps(parts: list[Part]) -> Steps:
    """The steps at the end of the parts, created if needed."""
    last = parts[-1] if parts else None
    if not isinstance(last, Steps):
        last = Steps([])
        parts.append(last)
    return last


def _add_host_part(parts: list[Part], plan: Plan, tasks: list[Task]) -> None:
    if tasks:
        parts.append(HostPart(plan, list(tasks)))
        tasks.clear()


def _add_checks(parts: list[Part], program: _Loaded, tasks: list[Task]) -> None:
    steps = [Step(group[0], program.checks.add(group), group[1:]) for group in groups_of(tasks)]
    tasks.clear()
    if steps and program.checks.at_once:
        parts.append(Guard(steps))
    elif steps:
        _steps(parts).steps += steps


# -- loops -----------------------------------------------------------------------------------------------------


def _add_loop(parts: list[Part], program: _Loaded, task: Task) -> None:
    loop = Loop(task, _known_turns(program.plan, task))
    body = int(task.attrs["body_block"])
    loop.parts = parts_of_block(program, body, loop)
    loop.stored = _stored_outputs(program.plan, body)
    steps = [p for p in loop.parts if isinstance(p, Steps | Eager)]
    count = sum(len(p.steps) if isinstance(p, Steps) else 1 for p in steps)
    if loop.turns is None or len(steps) < len(loop.parts) or loop.turns * count > _MOST_STEPS:
        parts.append(loop)
        return
    inner = [step for p in steps for step in (p.steps if isinstance(p, Steps) else [p.step])]
    around = _steps(parts)
    around.steps.append(Step(task, _unrolled(program, loop, inner)))
    around.shapes |= {output: (loop.turns, *dims[1:]) for output, dims in loop.stored.items()}


def _unrolled(program: _Loaded, loop: Loop, steps: Sequence[Step]) -> Callable[[], None]:
    """All iterations of a loop, in sequence."""
    assert loop.turns is not None
    numbers = program.keep(np.arange(loop.turns + 1))
    counted = any(v.buffer == loop.counter.buffer for v in _read_in(program.plan, steps))

    def run() -> None:
        for turn in range(loop.turns or 0):
            loop.turn = turn
            if counted:
                program.stream.copy(program.address(loop.counter), numbers.address + 8 * turn, 8)
            for step in steps:
                step.run()

    return run


def _read_in(plan: Plan, steps: Sequence[Step]) -> Iterator[View]:
    """The views that steps read, including nested loop bodies; stores depend on the iteration."""
    for step in steps:
        if step.task.kind == "while":
            inner = int(step.task.attrs["body_block"])
            yield from (v for t in plan.tasks if t.block == inner for v in t.inputs)
        elif step.task.kind != "scan_store":
            yield from step.task.inputs


def _known_turns(plan: Plan, task: Task) -> int | None:
    """The trip count of a loop, None if it is known only at run time."""
    by_type = {v.dtype: v for v in task.inputs}
    trip, condition = by_type.get("int64"), by_type.get("bool")
    limit = None if trip is None else _constant(plan, trip)
    if limit is None:
        return None
    return max(limit, 0) if condition is None or condition.buffer in _always_true(plan) else None


def _always_true(plan: Plan) -> set[int]:
    """The buffers that only ever hold a true constant, directly or copied from one another."""
    copies: dict[int, list[Task]] = {}
    for task in plan.tasks:
        for view in task.outputs:
            copies.setdefault(view.buffer, []).append(task)
    found = set(copies)
    while True:
        kept = {
            buffer
            for buffer in found
            if all(
                t.kind == "copy" and (t.inputs[0].buffer in found or _constant(plan, t.inputs[0]) == 1)
                for t in copies[buffer]
            )
        }
        if kept == found:
            return found
        found = kept


def _constant(plan: Plan, view: View) -> int | None:
    """The single count or truth value of a constant, None for others."""
    buffer = plan.buffers[view.buffer]
    if buffer.kind != "constant" or view.dtype not in ("bool", "int64") or math.prod(view.shape) != 1:
        return None
    return int(plan.constants[buffer.index].reshape(-1)[view.offset])


def _stored_outputs(plan: Plan, block: int) -> dict[int, tuple[int, ...]]:
    """The outputs of the model whose lengths are the trip count of a loop."""
    found: dict[int, tuple[int, ...]] = {}
    for task in plan.tasks:
        if task.block == block and task.kind == "scan_store" and task.attrs.get("counted"):
            buffer = plan.buffers[task.outputs[0].buffer]
            if buffer.kind == "output":
                found[buffer.index] = tuple(task.outputs[0].shape)
    return found


def _add_store(parts: list[Part], program: _Loaded, task: Task, loop: Loop | None) -> None:
    """Copy the value of an iteration to its slot in a stacked result."""
    assert loop is not None, "only loops stack results"
    value, whole = task.inputs[0], task.outputs[0]
    steps = whole.shape[0]
    stored = program.plan.buffers[whole.buffer]
    counted = bool(task.attrs.get("counted")) and stored.kind == "output"

    def run() -> None:
        if loop.turn >= steps:
            raise UnsupportedTask(f"{task.name}: step {loop.turn} of {steps}")
        index = steps - 1 - loop.turn if task.attrs.get("reverse") else loop.turn
        target = program.address(whole) + index * value.nbytes
        program.stream.copy(target, program.address(value), value.nbytes)

    def report() -> Shapes:
        return {stored.index: (loop.turn + 1, *whole.shape[1:])} if counted else {}

    parts.append(Eager(Step(task, run), report))
