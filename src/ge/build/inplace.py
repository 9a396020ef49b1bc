"""In-place: a task whose input dies with it may write its output over that input.

1. A kernel that reads an input only at the position it writes may write there.
2. A primitive that adds an operand of its output's shape accumulates into that operand's memory instead ("sum").
3. Only memory of the arena is overwritten, only by the last task that uses it, and only one output takes it.
"""

from __future__ import annotations

from ge.build.draft import Draft, Share, Storage
from ge.model.plan import Task, View

__all__ = ["merge_in_place"]


def merge_in_place(draft: Draft) -> list[int]:
    """Let outputs take their dying inputs' memory; the representative of each storage's memory."""
    owner = list(range(len(draft.storages)))

    def find(index: int) -> int:
        while owner[index] != index:
            owner[index] = owner[owner[index]]
            index = owner[index]
        return index

    for number, task in enumerate(draft.tasks):
        for share in draft.shares.get(number, ()):
            source = draft.storages[find(task.inputs[share.input].buffer)]
            target = draft.storages[find(task.outputs[share.output].buffer)]
            if _may_share(draft, number, task, share, source, target):
                owner[target.id] = source.id
                source.last = max(source.last, target.last)
                source.nbytes = max(source.nbytes, target.nbytes)
                if share.post_op >= 0:
                    _accumulate(draft, number, share)
                break
    return [find(index) for index in range(len(owner))]


def _may_share(draft: Draft, number: int, task: Task, share: Share, source: Storage, target: Storage) -> bool:
    time = draft.times[number]
    if source is target or source.kind != "arena" or target.kind != "arena":
        return False
    if source.last != time or target.first != time:
        return False
    others = [v for i, v in enumerate(task.inputs) if i != share.input]
    if share.post_op >= 0 and any(draft.storages[v.buffer] is source for v in others):
        return False
    return _same_place(task.inputs[share.input], task.outputs[share.output])


def _same_place(source: View, target: View) -> bool:
    return source.offset == target.offset and (
        (source.contiguous and target.contiguous) or (source.shape, source.strides) == (target.shape, target.strides)
    )


def _accumulate(draft: Draft, number: int, share: Share) -> None:
    """Turn the addition of an operand into accumulation into the output."""
    task = draft.tasks[number]
    post_ops = list(task.attrs["post_ops"])
    post_ops[share.post_op] = "sum"
    task.attrs["post_ops"] = post_ops
    del task.inputs[share.input]
