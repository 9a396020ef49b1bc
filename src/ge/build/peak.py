"""The tensors that are live at a model's memory peak, with the nodes that produce them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ge.build.plan_builder import PlanBuilder, Storage

__all__ = ["peak_tensors"]

MOST = 64  # tensors that are listed


def peak_tensors(builder: PlanBuilder, used: Sequence[Storage]) -> list[dict[str, Any]]:
    """The tensors that are live at the memory peak, largest first: name, shape, type and bytes."""
    moment = _fullest(used)
    alive = sorted((s for s in used if s.first <= moment <= s.last), key=lambda s: -s.nbytes)[:MOST]
    number = {time: i for i, time in enumerate(builder.times)}
    return [_described(builder, item, number.get(item.first)) for item in alive]


def _fullest(used: Sequence[Storage]) -> int:
    changes: dict[int, int] = {}
    for item in used:
        changes[item.first] = changes.get(item.first, 0) + item.nbytes
        changes[item.last + 1] = changes.get(item.last + 1, 0) - item.nbytes
    live = most = moment = 0
    for time in sorted(changes):
        live += changes[time]
        if live > most:
            most, moment = live, time
    return moment


def _described(builder: PlanBuilder, item: Storage, number: int | None) -> dict[str, Any]:
    task = None if number is None else builder.tasks[number]
    views = [] if task is None else [v for v in (*task.outputs, *task.inputs) if v.buffer == item.id]
    name = item.label if task is None else (task.origin[-1] if task.origin else task.name)
    shape, dtype = (list(views[0].shape), views[0].dtype) if views else ([], "")
    return {"name": name, "shape": shape, "dtype": dtype, "nbytes": item.nbytes}
