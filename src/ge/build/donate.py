"""Donated inputs: an output that is the new value of an input takes the input's memory.

The caller passes one address for both. Therefore:
1. Units that read an old value run before the unit that writes the new one, if dependencies allow it.
2. A task may read the old value and write the new one if it reads each element only where it then writes it, or if it
   adds the old value to its result (it accumulates instead).
3. Old values that are themselves results are copied out first.
4. A new value that cannot be written in place is computed in the arena and copied at the end, after all reads.
5. `check_donated` walks the finished plan, loop bodies twice, and finds any read of an old value after it is
   overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from ge.build.aliases import Aliases, root_of
from ge.build.inplace import accumulate
from ge.build.plan_builder import PlanBuilder
from ge.build.units import Unit
from ge.errors import GeError
from ge.ir.values import desc_of
from ge.plan import Plan, Task, View

__all__ = ["Donation", "check_donated", "checked_pairs", "settle_donations", "writers_last"]

Donation = tuple[int, int]  # positions of an output and of the input whose memory it takes


def checked_pairs(graph: ir.Graph, donated: Sequence[Donation]) -> tuple[Donation, ...]:
    """The pairs, validated; raises if one is not possible."""
    for position, side in enumerate(("output", "input")):
        named = [pair[position] for pair in donated]
        if len(set(named)) != len(named):
            raise GeError("E10504", f"an {side} is donated twice", remedy=f"name each {side} once")
    for output, source in donated:
        if not (0 <= output < len(graph.outputs) and 0 <= source < len(graph.inputs)):
            raise GeError("E10504", f"there is no output {output} or no input {source} to donate")
        new, old = desc_of(graph.outputs[output]), desc_of(graph.inputs[source])
        if new != old:
            raise GeError(
                "E10504",
                f"output {output} is {new}, the input {source} whose memory it should take is {old}",
                remedy="donate inputs to outputs of the same shape and type",
            )
    return tuple(donated)


# -- order -------------------------------------------------------------------------------------------------------


def writers_last(
    graph: ir.Graph, units: Sequence[Unit], aliases: Aliases, donated: Sequence[Donation]
) -> dict[Unit, set[Unit]]:
    """For units that write new values, the units that read the old ones and can run earlier."""
    maker = {v: u for u in units for n in u.nodes for v in n.outputs}
    readers: dict[ir.Value, set[Unit]] = {}
    following: dict[Unit, set[Unit]] = {u: set() for u in units}
    for unit in units:
        for value in unit.inputs:
            readers.setdefault(root_of(value, aliases), set()).add(unit)
            if value in maker:
                following[maker[value]].add(unit)
    waits: dict[Unit, set[Unit]] = {}
    for output, source in donated:
        writer = maker.get(root_of(graph.outputs[output], aliases))
        if writer is None:
            continue
        for reader in readers.get(graph.inputs[source], set()) - {writer}:
            if not _leads_to(writer, reader, following):
                waits.setdefault(writer, set()).add(reader)
                following[reader].add(writer)
    return waits


def _leads_to(unit: Unit, other: Unit, following: Mapping[Unit, set[Unit]]) -> bool:
    stack, seen = [unit], {unit}
    while stack:
        for after in following[stack.pop()]:
            if after is other:
                return True
            if after not in seen:
                seen.add(after)
                stack.append(after)
    return False


# -- memory ------------------------------------------------------------------------------------------------------

Pair = tuple[int, int]  # buffers of a new value and of the old one
Leave = Callable[
    [int, Task], Sequence[tuple[int, int]]
]  # by task number: its inputs and outputs that may share memory


def settle_donations(builder: PlanBuilder, donated: Sequence[Donation]) -> int:
    """Make it safe for each pair to share one address; returns the number of new values to copy at the end."""
    places = {(s.kind, s.index): s.id for s in builder.storages if s.kind in ("input", "output")}
    pairs = [(places["output", output], places["input", source]) for output, source in donated]
    same = _copies_to_themselves(builder, pairs)
    tasks = [(n, t) for n, t in enumerate(builder.tasks) if n not in builder.dropped and n not in same]
    late = _Walk(tasks, pairs, lambda number, task: _shared(builder, number, task)).late()
    builder.dropped.update(number for number, pair in same.items() if pair not in late)
    old_of = {new: old for new, old in pairs if (new, old) not in late}
    for number, task in tasks:
        for new in {v.buffer for v in task.outputs} & old_of.keys():
            _accumulate_over(builder, number, new, old_of[new])
    _make_elsewhere(builder, [new for new, old in pairs if (new, old) in late])
    return len(late)


def _copies_to_themselves(builder: PlanBuilder, pairs: Sequence[Pair]) -> dict[int, Pair]:
    """Copies of an old value to its own new value, which are no-ops in place."""
    wanted = set(pairs)
    found: dict[int, Pair] = {}
    for number, task in enumerate(builder.tasks):
        if task.kind == "copy":
            source, target = task.inputs[0], task.outputs[0]
            pair = (target.buffer, source.buffer)
            if pair in wanted and (source.offset, source.nbytes) == (target.offset, target.nbytes):
                found[number] = pair
    return found


def _shared(builder: PlanBuilder, number: int, task: Task) -> list[tuple[int, int]]:
    """The (input, output) pairs in which a task may overwrite what it reads."""
    return [
        (share.input, share.output)
        for share in builder.shares.get(number, ())
        if _same_place(task.inputs[share.input], task.outputs[share.output])
    ]


def _same_place(source: View, target: View) -> bool:
    whole = source.contiguous and target.contiguous
    return source.offset == target.offset and (whole or source.strides == target.strides)


def _accumulate_over(builder: PlanBuilder, number: int, new: int, old: int) -> None:
    """Turn a primitive's addition of the old value it overwrites into accumulation."""
    task = builder.tasks[number]
    for share in builder.shares.get(number, ()):
        source = task.inputs[share.input].buffer if share.input < len(task.inputs) else -1
        if share.post_op >= 0 and source == old and task.outputs[share.output].buffer == new:
            accumulate(builder, number, share)
            return


def _make_elsewhere(builder: PlanBuilder, outputs: Sequence[int]) -> None:
    """Compute new values in the arena and copy them to their destinations at the end."""
    if not outputs:
        return
    elsewhere: dict[int, int] = {}
    for new in outputs:
        place = builder.storages[new]
        made = builder.storage("arena", place.nbytes, label=f"output{place.index}.made")
        made.first, made.last = place.first, place.last
        place.first = place.last = -1
        elsewhere[new] = made.id
    for task in builder.tasks:
        task.inputs = [replace(v, buffer=elsewhere.get(v.buffer, v.buffer)) for v in task.inputs]
        task.outputs = [replace(v, buffer=elsewhere.get(v.buffer, v.buffer)) for v in task.outputs]
    for new in outputs:
        size = builder.storages[new].nbytes
        whole = View(new, "uint8", (size,), (1,))
        builder.emit(Task("copy", "donate", [replace(whole, buffer=elsewhere[new])], [whole], engine="view"))


# -- the walk ----------------------------------------------------------------------------------------------------


class _Walk:
    """Walks the tasks, loop bodies twice, and finds tasks that read an old value after it was overwritten."""

    def __init__(self, tasks: Sequence[tuple[int, Task]], pairs: Sequence[Pair], leave: Leave) -> None:
        self.leave = leave
        self.old_of = dict(pairs)
        self.pair_of = {old: (new, old) for new, old in pairs}
        self.blocks: dict[int, list[tuple[int, Task]]] = {}
        for number, task in tasks:
            self.blocks.setdefault(task.block, []).append((number, task))
        self.gone: set[int] = set()
        self.found: dict[Pair, str] = {}

    def late(self) -> dict[Pair, str]:
        """The pairs that cannot share memory, and the task that prevents it."""
        if self.old_of:
            self._block(0)
        return self.found

    def _block(self, number: int) -> None:
        for place, task in self.blocks.get(number, ()):
            self._task(place, task)
            if task.kind == "while":
                self._block(task.attrs["body_block"])
                self._block(task.attrs["body_block"])
            elif task.kind == "if":
                before = set(self.gone)
                self._block(task.attrs["then_block"])
                after, self.gone = self.gone, before
                self._block(task.attrs["else_block"])
                self.gone |= after

    def _task(self, number: int, task: Task) -> None:
        for view in task.inputs:
            if view.buffer in self.gone:
                self.found.setdefault(self.pair_of[view.buffer], f"{task.name} reads an old value too late")
        for position, view in enumerate(task.outputs):
            old = self.old_of.get(view.buffer)
            if old is None:
                continue
            reads = [i for i, v in enumerate(task.inputs) if v.buffer == old]
            if len(reads) > 1 or (reads and (reads[0], position) not in self.leave(number, task)):
                self.found.setdefault((view.buffer, old), f"{task.name} writes over what it reads")
            self.gone.add(old)


def check_donated(plan: Plan, leave: Callable[[Task], Sequence[tuple[int, int]]]) -> None:
    """Raise AssertionError if a plan, run with one address for both, would read a new value in place of an old one.

    `leave` gives the (input, output) positions of a task that may share memory.
    """
    buffers = {(b.kind, b.index): i for i, b in enumerate(plan.buffers) if b.kind in ("input", "output")}
    pairs = [(buffers["output", output], buffers["input", source]) for output, source in plan.donated]
    late = _Walk(list(enumerate(plan.tasks)), pairs, lambda number, task: leave(task)).late()
    assert not late, next(iter(late.values()))
