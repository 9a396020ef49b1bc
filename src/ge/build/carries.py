"""Copy coalescing for loop states: compute a new state in place of the old one once the old one is dead.

1. Each iteration of a loop ends by copying its new states over the old ones; initial states are copied in before it.
2. The copy goes if the new state's memory is first written after the last read of the old state in the body, or by a
   task that may overwrite it; the new state then takes the old one's memory.
3. A new state that is also an old state, a constant, or another state's new value keeps its copy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ge.build.plan_builder import PlanBuilder
from ge.plan import View

__all__ = ["Carry", "coalesce_carries"]


@dataclass(frozen=True)
class Carry:
    """The copy of a new state over an old one: the task that does it, and the first task of the body."""

    task: int
    first: int


def coalesce_carries(builder: PlanBuilder, carries: list[Carry]) -> None:
    """Remove unneeded copies (they stay in the task list as no-ops)."""
    for carry in carries:
        task = builder.tasks[carry.task]
        new, old = task.inputs[0], task.outputs[0]
        if _replaceable(builder, carry, new, old):
            _put_in_place(builder, carry, new.buffer, old)
            builder.dropped.add(carry.task)


def _replaceable(builder: PlanBuilder, carry: Carry, new: View, old: View) -> bool:
    made = builder.storages[new.buffer]
    if made.kind != "arena" or new.buffer == old.buffer or made.first <= builder.times[carry.first - 1]:
        return False
    if not (new.contiguous and old.contiguous and new.offset == 0 and old.nbytes == made.nbytes):
        return False
    for number in range(carry.first, len(builder.tasks)):
        task = builder.tasks[number]
        if number == carry.task or number in builder.dropped:
            continue
        if any(v.buffer == old.buffer for v in task.outputs):
            return False
        if not any(v.buffer == old.buffer for v in task.inputs) or builder.times[number] < made.first:
            continue
        if builder.times[number] > made.first or not _over(builder, number, new.buffer, old.buffer):
            return False
    return True


def _over(builder: PlanBuilder, number: int, new: int, old: int) -> bool:
    """True if a task that reads the old state may overwrite it with the new one."""
    task = builder.tasks[number]
    if sum(v.buffer == old for v in task.inputs) != 1:
        return False
    return any(
        share.post_op < 0
        and task.inputs[share.input].buffer == old
        and task.outputs[share.output].buffer == new
        for share in builder.shares.get(number, ())
    )


def _put_in_place(builder: PlanBuilder, carry: Carry, new: int, old: View) -> None:
    """Redirect every use of the new state's memory to the old state's."""

    def moved(view: View) -> View:
        return (
            replace(view, buffer=old.buffer, offset=view.offset + old.offset) if view.buffer == new else view
        )

    for task in builder.tasks[carry.first :]:
        task.inputs = [moved(v) for v in task.inputs]
        task.outputs = [moved(v) for v in task.outputs]
    made = builder.storages[new]
    builder.storages[old.buffer].touch(made.first)
    made.first = made.last = -1
