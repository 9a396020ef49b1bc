"""Donated inputs: outputs that are the new values of inputs, and lie in the same memory.

The caller passes one address for both. Hence:
1. Units that read an old value run before the unit that writes the new one, where dependencies allow it.
2. A task may read the old value and write the new one when it reads each element only where it then writes it, or when
   it adds the old value to its result (it accumulates instead).
3. Old values that are themselves results are copied out first.
4. A new value that cannot be written in place is made in the arena and copied at the end, after all reads.
5. `check_donated` walks the finished plan, loops twice, and finds any read of an old value after its overwriting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from ge.build.aliases import Aliases, root_of
from ge.build.draft import Draft, Share
from ge.build.inplace import accumulate
from ge.build.units import Unit
from ge.errors import GeError
from ge.ir.values import desc_of
from ge.model.plan import Plan, Task, View

__all__ = ["Donation", "check_donated", "checked_pairs", "settle_donations", "writers_last"]

Donation = tuple[int, int]  # positions of an output and of the input whose memory it takes


def checked_pairs(graph: ir.Graph, donated: Sequence[Donation]) -> tuple[Donation, ...]:
    """The pairs as given; raises when one is not possible."""
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
    """For units that write new values, the units that read the old ones and can run before."""
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


# -- places ------------------------------------------------------------------------------------------------------


def settle_donations(draft: Draft, donated: Sequence[Donation]) -> int:
    """Make every pair safe to share one address; how many new values have to be copied at the end."""
    places = {(s.kind, s.index): s.id for s in draft.storages if s.kind in ("input", "output")}
    pairs = [(places["output", output], places["input", source]) for output, source in donated]
    writers = _tasks_by_storage(draft, outputs=True)
    for new, old in pairs:
        _drop_copies_to_itself(draft, new, old, writers.get(new, ()))
    moved = [new for new, old in pairs if not _in_place(draft, new, old, writers.get(new, ()))]
    _make_elsewhere(draft, moved)
    return len(moved)


def _tasks_by_storage(draft: Draft, *, outputs: bool) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for number, task in enumerate(draft.tasks):
        for view in task.outputs if outputs else task.inputs:
            found.setdefault(view.buffer, []).append(number)
    return found


def _drop_copies_to_itself(draft: Draft, new: int, old: int, writers: Sequence[int]) -> None:
    for number in writers:
        task = draft.tasks[number]
        if task.kind == "copy" and task.inputs[0].buffer == old and _same_bytes(task):
            draft.dropped.add(number)


def _same_bytes(task: Task) -> bool:
    source, target = task.inputs[0], task.outputs[0]
    return (source.offset, source.nbytes) == (target.offset, target.nbytes)


def _in_place(draft: Draft, new: int, old: int, writers: Sequence[int]) -> bool:
    """Whether all reads of the old value lie before the first write of the new one, or in the task that makes it."""
    writers = [n for n in writers if n not in draft.dropped]
    first, last = draft.storages[new].first, draft.storages[old].last
    if not writers or last < first:
        return True
    number = writers[0]
    if last > first or draft.times[number] != first:
        return False
    share = _share(draft, number, new, old)
    if share is not None and share.post_op >= 0:
        accumulate(draft, number, share)
    return share is not None


def _share(draft: Draft, number: int, new: int, old: int) -> Share | None:
    """The leave a task has to write the new value where it reads the old one."""
    task = draft.tasks[number]
    if sum(v.buffer == old for v in task.inputs) != 1:
        return None
    for share in draft.shares.get(number, ()):
        source, target = task.inputs[share.input], task.outputs[share.output]
        if source.buffer == old and target.buffer == new and _same_place(source, target):
            return share
    return None


def _same_place(source: View, target: View) -> bool:
    whole = source.contiguous and target.contiguous
    return source.offset == target.offset and (whole or source.strides == target.strides)


def _make_elsewhere(draft: Draft, outputs: Sequence[int]) -> None:
    """Let new values be made in the arena and copied to their places at the end."""
    if not outputs:
        return
    elsewhere: dict[int, int] = {}
    for new in outputs:
        place = draft.storages[new]
        made = draft.storage("arena", place.nbytes, label=f"output{place.index}.made")
        made.first, made.last = place.first, place.last
        place.first = place.last = -1
        elsewhere[new] = made.id
    for task in draft.tasks:
        task.inputs = [replace(v, buffer=elsewhere.get(v.buffer, v.buffer)) for v in task.inputs]
        task.outputs = [replace(v, buffer=elsewhere.get(v.buffer, v.buffer)) for v in task.outputs]
    for new in outputs:
        size = draft.storages[new].nbytes
        whole = View(new, "uint8", (size,), (1,))
        draft.emit(Task("copy", "donate", [replace(whole, buffer=elsewhere[new])], [whole], engine="view"))


# -- the check ---------------------------------------------------------------------------------------------------

Leave = Callable[[Task], Sequence[tuple[int, int]]]


@dataclass
class _Walk:
    """A walk through a plan's tasks that knows which old values are gone."""

    plan: Plan
    leave: Leave
    old_of: dict[int, int] = field(default_factory=dict)  # by buffer of the new value
    blocks: dict[int, list[Task]] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)

    def block(self, number: int) -> None:
        for task in self.blocks.get(number, ()):
            self._task(task)
            if task.kind == "while":
                self.block(task.attrs["body_block"])
                self.block(task.attrs["body_block"])
            elif task.kind == "if":
                before = set(self.gone)
                self.block(task.attrs["then_block"])
                after, self.gone = self.gone, before
                self.block(task.attrs["else_block"])
                self.gone |= after

    def _task(self, task: Task) -> None:
        for view in task.inputs:
            assert view.buffer not in self.gone, f"{task.name} reads an old value after its overwriting"
        for position, view in enumerate(task.outputs):
            old = self.old_of.get(view.buffer)
            if old is None:
                continue
            reads = [i for i, v in enumerate(task.inputs) if v.buffer == old]
            allowed = {i for i, o in self.leave(task) if o == position}
            assert set(reads) <= allowed and len(reads) < 2, f"{task.name} writes over what it reads"
            self.gone.add(old)


def check_donated(plan: Plan, leave: Leave) -> None:
    """Raise AssertionError when a plan would read a new value for an old one, run with one address for both.

    `leave` gives the (input, output) positions of a task that may be one memory.
    """
    buffers = {(b.kind, b.index): i for i, b in enumerate(plan.buffers) if b.kind in ("input", "output")}
    walk = _Walk(plan, leave)
    walk.old_of = {buffers["output", output]: buffers["input", source] for output, source in plan.donated}
    for task in plan.tasks:
        walk.blocks.setdefault(task.block, []).append(task)
    walk.block(0)
