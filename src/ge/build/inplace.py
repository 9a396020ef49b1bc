"""In-place updates: a task may overwrite an input that it is the last to read.

1. A kernel that reads an input only at the position it writes may write there.
2. A primitive that adds an operand of its output's shape accumulates into that operand's memory instead ("sum"), unless
   that selects a slow implementation.
3. An AI CPU kernel that changes a few elements of a tensor updates them in place.
4. A copy of a value that dies is elided.
5. Only arena memory is overwritten, only by the last task that uses it, and only one output takes it.
6. A value that dies into an output of the program is computed in the caller's memory from the start, unless that memory
   holds an input until then.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ge.build.plan_builder import PlanBuilder, Share, Storage
from ge.plan import Task, View

__all__ = ["accumulate", "merge_in_place"]

# Post-ops that replace NaN in the library.
_BOUNDED = frozenset({"relu", "clip", "hardsigmoid", "max", "min"})


def merge_in_place(builder: PlanBuilder, occupied: Collection[int] = ()) -> list[int]:
    """Let outputs take the memory of dying inputs; returns the representative of each storage.

    occupied: outputs of the program (by index) whose memory initially holds something else.
    """
    return _Merging(builder, occupied).run()


class _Merging:
    def __init__(self, builder: PlanBuilder, occupied: Collection[int]) -> None:
        self.builder = builder
        self.occupied = frozenset(occupied)
        self.owner = list(range(len(builder.storages)))

    def run(self) -> list[int]:
        for number, task in enumerate(self.builder.tasks):
            if number in self.builder.dropped:
                continue
            for share in self.builder.shares.get(number, ()):
                if self._share(number, task, share):
                    break
        self._move_to_callers()
        return [self._find(index) for index in range(len(self.owner))]

    def _move_to_callers(self) -> None:
        """Let tasks write directly to the caller's memory if an output is computed there, instead of to the arena."""
        moved = {
            index: owner
            for index in range(len(self.owner))
            if (owner := self._find(index)) != index and self.builder.storages[owner].kind == "output"
        }
        if not moved:
            return
        for task in self.builder.tasks:
            task.inputs = [replace(v, buffer=moved.get(v.buffer, v.buffer)) for v in task.inputs]
            task.outputs = [replace(v, buffer=moved.get(v.buffer, v.buffer)) for v in task.outputs]
        for index in moved:
            self.builder.storages[index].nbytes = 0
            self.owner[index] = index

    def _find(self, index: int) -> int:
        while self.owner[index] != index:
            self.owner[index] = self.owner[self.owner[index]]
            index = self.owner[index]
        return index

    def _storage(self, view: View) -> Storage:
        return self.builder.storages[self._find(view.buffer)]

    def _share(self, number: int, task: Task, share: Share) -> bool:
        source, target = self._storage(task.inputs[share.input]), self._storage(task.outputs[share.output])
        time = self.builder.times[number]
        if source is target or source.kind != "arena" or not self._takes(target, source):
            return False
        if source.last != time or target.first != time:
            return False
        if any(self._storage(v) is source for i, v in enumerate(task.inputs) if i != share.input):
            return False
        if not _same_place(task.inputs[share.input], task.outputs[share.output]):
            return False
        if share.post_op >= 0 and task.inputs[share.input].dtype != task.outputs[share.output].dtype:
            return False
        kept, gone = (source, target) if target.kind == "arena" else (target, source)
        self.owner[gone.id] = kept.id
        kept.first, kept.last = source.first, max(source.last, target.last)
        kept.nbytes = max(source.nbytes, target.nbytes)
        if share.post_op >= 0:
            accumulate(self.builder, number, share)
            self._watch(number, kept)
        if task.kind == "copy":
            self.builder.dropped.add(number)
        return True

    def _watch(self, number: int, addend: Storage) -> None:
        """Have the tasks that compute the addend of a product report NaN and infinities, if the product has bounds that
        would hide NaN.

        The product runs again if it meets NaN, and needs its addend then: the sum of two infinities is NaN. Without a
        report it keeps a copy.
        """
        task = self.builder.tasks[number]
        later = task.attrs["post_ops"][task.attrs["post_ops"].index("sum") + 1 :]
        makers = [
            maker
            for other, maker in enumerate(self.builder.tasks[:number])
            if other not in self.builder.dropped and any(self._storage(v) is addend for v in maker.outputs)
        ]
        if (
            any(p.partition(",")[0] in _BOUNDED for p in later)
            and makers
            and all(m.block == task.block and len(m.outputs) == 1 for m in makers)
        ):
            task.attrs["addend_raises_on_nan"] = True
            for maker in makers:
                maker.attrs["raises_on_nan"] = True

    def _takes(self, target: Storage, source: Storage) -> bool:
        """True if a target can be the memory of a source from the source's first use on."""
        if target.kind == "arena":
            return source.place < 0 or target.nbytes <= source.nbytes
        caller = target.kind == "output" and target.index not in self.occupied
        return caller and source.place < 0 and source.nbytes <= target.nbytes


def _same_place(source: View, target: View) -> bool:
    return source.offset == target.offset and (
        (source.contiguous and target.contiguous)
        or (source.shape, source.strides) == (target.shape, target.strides)
    )


def accumulate(builder: PlanBuilder, number: int, share: Share) -> None:
    """Turn the addition of an operand into accumulation into the output, which takes the operand's memory."""
    task = builder.tasks[number]
    builder.shares.pop(number, None)
    post_ops = list(task.attrs["post_ops"])
    post_ops[share.post_op] = "sum"
    task.attrs["post_ops"] = post_ops
    del task.inputs[share.input]
