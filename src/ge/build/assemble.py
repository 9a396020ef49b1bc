"""Assembly: a lowered graph, with memory planned and kernels compiled, becomes a plan."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir

import tbe
from ge.build.donate import Donation, check_donated, checked_pairs, settle_donations
from ge.build.draft import Draft, Storage
from ge.build.handover import NOTHING, Handover, check_handover
from ge.build.inplace import merge_in_place
from ge.build.kernels import KernelBook
from ge.build.lower import Workshop, lower_graph
from ge.build.memory import MemoryPlan, Piece, check, plan_memory
from ge.build.peak import peak_tensors
from ge.implementations.selection import select
from ge.ir import facts
from ge.ir.values import desc_of
from ge.ops.base import has_dynamic_size
from ge.options import CompileOptions
from ge.plan import Buffer, Plan, Port, Task, View

__all__ = ["build_plan"]


def build_plan(
    graph: ir.Graph,
    options: CompileOptions,
    name: str,
    donated: Sequence[Donation] = (),
    handover: Handover = NOTHING,
) -> Plan:
    """The plan of a placed graph; a donated pair is an output that takes the memory of an input.

    What is handed over is no port of the plan but memory of its arena.
    """
    check_handover(graph, handover, donated)
    shop = Workshop(Draft(), KernelBook(options.target.code), options, checked_pairs(graph, donated))
    draft = shop.draft
    inputs = _outer(draft, "input", graph.inputs, handover.given)
    outputs = _outer(draft, "output", graph.outputs, handover.left)
    for position, place in handover.given.items():
        storage = draft.storages[inputs[position].buffer]
        storage.place = place
        storage.touch(draft.clock)
    lower_graph(graph, shop, inputs, outputs)
    pairs = handover.ports(shop.donated)
    copied = settle_donations(draft, pairs)
    draft.hold([outputs[position] for position in handover.left], draft.tick())
    owner = (
        merge_in_place(draft, {output for output, _ in pairs})
        if "in_place" not in options.disabled_passes
        else list(range(len(draft.storages)))
    )
    memory, offsets = _plan_arena(draft, owner)
    shop.kernels.compile()
    _finish_kernel_tasks(draft, shop.kernels)
    kept = [number for number in range(len(draft.tasks)) if number not in draft.dropped]
    plan = Plan(
        name=name,
        inputs=[
            Port(v.name or f"input{i}", desc_of(v))
            for i, v in enumerate(graph.inputs)
            if i not in handover.given
        ],
        outputs=[
            Port(v.name or f"output{i}", desc_of(v), dynamic=has_dynamic_size(v))
            for i, v in enumerate(graph.outputs)
            if i not in handover.left
        ],
        buffers=[_buffer(s, offsets.get(owner[s.id])) for s in draft.storages],
        tasks=[draft.tasks[number] for number in kept],
        blocks=draft.blocks,
        constants=draft.constants,
        kernels=shop.kernels.images(),
        arena_bytes=memory.nbytes,
        donated=pairs,
        left=tuple(offsets.get(owner[outputs[position].buffer], 0) for position in handover.left),
        report=_report(draft, memory)
        | {"peak": peak_tensors(draft, _used(draft, owner))}
        | ({"donated_copies": copied} if donated else {}),
    )
    for number, choice in zip(kept, select(plan, options.target), strict=True):
        if choice is not None and number in draft.nodes:
            facts.set_implementation(draft.nodes[number], choice.name, choice.reason)
    over = {id(draft.tasks[number]) for number in draft.shares if draft.tasks[number].kind == "aicpu"}
    check_donated(plan, lambda task: ((0, 0),) if id(task) in over else _leave(task, shop.kernels))
    return plan


def _buffer(storage: Storage, offset: int | None) -> Buffer:
    """A buffer of the plan; storage of the arena that no task touches has no place in it, and no bytes."""
    unused = storage.kind == "arena" and offset is None
    return Buffer(storage.kind, 0 if unused else storage.nbytes, offset or 0, storage.index)


def _outer(draft: Draft, kind: str, values: Sequence[ir.Value], handed: Collection[int]) -> list[View]:
    """Memory of the caller for inputs or outputs; that of the arena for those handed over."""
    views, ports = [], 0
    for position, value in enumerate(values):
        desc = desc_of(value)
        if position in handed:
            views.append(draft.arena(desc, label=value.name or ""))
            continue
        views.append(View.of(draft.storage(kind, desc.nbytes, ports).id, desc))
        ports += 1
    return views


def _leave(task: Task, kernels: KernelBook) -> Sequence[tuple[int, int]]:
    """The inputs and outputs of a task that may be one memory."""
    return kernels.aliases(task.attrs["kernel"]) if task.kind == "kernel" else ()


def _plan_arena(draft: Draft, owner: list[int]) -> tuple[MemoryPlan, dict[int, int]]:
    used = _used(draft, owner)
    pieces = [Piece(s.nbytes, s.first, s.last) for s in used]
    memory = plan_memory(pieces, {i: s.place for i, s in enumerate(used) if s.place >= 0})
    check(pieces, memory.offsets)
    return memory, {s.id: o for s, o in zip(used, memory.offsets, strict=True)}


def _used(draft: Draft, owner: list[int]) -> list[Storage]:
    """The pieces of the arena."""
    return [
        s for s in draft.storages if s.kind == "arena" and owner[s.id] == s.id and s.last >= 0 and s.nbytes
    ]


def _finish_kernel_tasks(draft: Draft, kernels: KernelBook) -> None:
    for task in draft.tasks:
        if task.kind == "kernel":
            kernel: tbe.Kernel = kernels.kernel(task.attrs["kernel"])
            task.attrs.update(total=kernel.total, grain=kernel.grain)


def _report(draft: Draft, memory: MemoryPlan) -> dict[str, object]:
    return {
        "arena_bytes": memory.nbytes,
        "arena_lower_bound": memory.lower_bound,
        "arena_ratio": round(memory.ratio, 4),
        "arena_strategy": memory.strategy,
        "constant_bytes": sum(c.nbytes for c in draft.constants),
        "tasks": len(draft.tasks),
    }
