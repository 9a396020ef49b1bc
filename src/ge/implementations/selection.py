"""Selects the implementation of every cube task of a plan and records it in the task."""

from __future__ import annotations

from collections.abc import Iterator

from ge.errors import GeError
from ge.implementations import (
    CANDIDATES,
    DECOMPOSED,
    GENERATED,
    SETTINGS,
    Choice,
    Operation,
    candidates_for,
    choose,
    is_small,
    settings,
)
from ge.plan import Buffer, Plan, Task
from ge.target import Target, fallback

__all__ = ["IMPLEMENTATION", "ON_HOST", "retarget", "select"]

IMPLEMENTATION = "implementation"
ON_HOST = "on_host"  # marks a cube task of a GPU plan that runs on the host processor
_BLOCKS = ("then_block", "else_block", "body_block")


def select(plan: Plan, target: Target) -> list[Choice | None]:
    """Choose an implementation for each cube task of a plan; the choices by task, None for other tasks."""
    loops = {int(t.attrs["body_block"]): t for t in plan.tasks if t.kind == "while"}
    choices: list[Choice | None] = []
    for task in plan.tasks:
        if task.kind == "reorder" and target.kind == "cpu":
            task.attrs["serial"] = is_small(target, 0, task.inputs[0].nbytes + task.outputs[0].nbytes)
        if task.kind not in CANDIDATES and not candidates_for(task.kind, target):
            choices.append(None)
            continue
        operation, device = _operation(plan, task, loops.get(task.block)), target
        choice = choose(operation, target)
        if not choice.name and target.kind == "cuda":
            device = fallback()
            choice = choose(operation, device)
            task.attrs[ON_HOST] = True
        if choice.name in ("", DECOMPOSED, GENERATED):
            raise GeError(
                "E10506",
                f"no implementation of {task.kind} runs it on target '{target.name}': {choice.reason}",
                node=task.name,
            )
        kept = {name: value for name, value in task.attrs.items() if name not in SETTINGS}
        task.attrs = {**kept, IMPLEMENTATION: choice.name, **settings(operation, choice, device)}
        choices.append(choice)
    return choices


def retarget(plan: Plan, target: Target) -> None:
    """Choose again if a plan names implementations that a target lacks, or none, as files of older versions do."""
    cubes = [task for task in plan.tasks if task.kind in CANDIDATES]
    for task in cubes:
        if task.attrs.pop("algorithm", "") == "precise":  # the older name
            task.attrs["precise"] = True
    if any(IMPLEMENTATION not in task.attrs or _lacks(task, target) for task in cubes):
        select(plan, target)


def _lacks(task: Task, target: Target) -> bool:
    """True if the target lacks the instructions of a task's implementation; the runtime reports other refusals."""
    name, dtypes = task.attrs[IMPLEMENTATION], {v.dtype for v in (*task.inputs, *task.outputs)}
    needs = [c.feature(dtypes) for c in CANDIDATES[task.kind] if c.name == name]
    return any(feature and feature not in target.features for feature in needs)


def _operation(plan: Plan, task: Task, loop: Task | None) -> Operation:
    kinds = [plan.buffers[v.buffer].kind for v in task.inputs]
    constant = frozenset(i for i, kind in enumerate(kinds) if kind == "constant")
    if loop is None:
        return Operation.of(task, constant)
    written = list(_written(plan, task.block, loop))
    steady = frozenset(
        i
        for i, view in enumerate(task.inputs)
        if kinds[i] in ("arena", "input")
        and not any(_may_change(plan, b, plan.buffers[view.buffer]) for b in written)
    )
    return Operation.of(task, constant, steady)


def _written(plan: Plan, block: int, loop: Task) -> Iterator[Buffer]:
    """The buffers that a loop and its nested blocks write."""
    for view in loop.outputs:
        yield plan.buffers[view.buffer]
    for task in plan.tasks:
        if task.block != block:
            continue
        for view in task.outputs:
            yield plan.buffers[view.buffer]
        for name in _BLOCKS:
            inner = int(task.attrs.get(name, 0))
            if inner > 0:
                yield from _written(plan, inner, task)


def _may_change(plan: Plan, written: Buffer, read: Buffer) -> bool:
    """True if writing to one buffer may change another; a donated output aliases its input."""
    if read.kind == "input":
        return written.kind == "output" and (written.index, read.index) in plan.donated
    overlap = written.offset < read.offset + read.nbytes and read.offset < written.offset + written.nbytes
    return written.kind == "arena" and overlap
