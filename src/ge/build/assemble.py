"""Assembly: builds a plan from a lowered graph, plans its memory and compiles its kernels."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir

import tbe
from ge.build.donate import Donation, check_donated, checked_pairs, settle_donations
from ge.build.inplace import merge_in_place
from ge.build.kernels import KernelTable
from ge.build.lower import LoweringContext, lower_graph
from ge.build.memory import MemoryPlan, Piece, check, plan_memory
from ge.build.peak import peak_tensors
from ge.build.plan_builder import PlanBuilder, Storage
from ge.build.resident import NOTHING, ResidentValues, check_resident
from ge.implementations.selection import select
from ge.ir import facts
from ge.ir.graphs import subgraphs_of
from ge.ir.values import desc_of
from ge.ops.base import has_dynamic_size
from ge.options import CompileOptions
from ge.plan import Buffer, Plan, Port, Task, View

__all__ = ["build_plan"]

_SMALL = 8 << 20  # bytes of a small piece of the arena
_REST = (
    32  # tasks for which memory rests if a step updates state, so that a GPU's two streams do not wait for it
)


def build_plan(
    graph: ir.Graph,
    options: CompileOptions,
    name: str,
    donated: Sequence[Donation] = (),
    resident: ResidentValues = NOTHING,
) -> Plan:
    """Build the plan of a placed graph; a donated pair is an output that takes the memory of an input.

    Resident values are not ports of the plan; they stay in its arena.
    """
    check_resident(graph, resident, donated)
    context = LoweringContext(
        PlanBuilder(),
        KernelTable(options.target.code, options.target.processor),
        options,
        checked_pairs(graph, donated),
    )
    builder = context.builder
    inputs = _outer(builder, "input", graph.inputs, resident.given)
    outputs = _outer(builder, "output", graph.outputs, resident.left)
    for position, place in resident.given.items():
        storage = builder.storages[inputs[position].buffer]
        storage.place = place
        storage.touch(builder.clock)
    lower_graph(graph, context, inputs, outputs)
    pairs = resident.ports(context.donated)
    copied = settle_donations(builder, pairs)
    builder.hold([outputs[position] for position in resident.left], builder.tick())
    owner = (
        merge_in_place(builder, {output for output, _ in pairs})
        if "in_place" not in options.disabled_passes
        else list(range(len(builder.storages)))
    )
    memory, offsets = _plan_arena(builder, owner, _REST if options.target.kind == "cuda" and pairs else 0)
    context.kernels.compile()
    _finish_kernel_tasks(builder, context.kernels)
    kept = [number for number in range(len(builder.tasks)) if number not in builder.dropped]
    plan = Plan(
        name=name,
        inputs=[
            Port(v.name or f"input{i}", desc_of(v))
            for i, v in enumerate(graph.inputs)
            if i not in resident.given
        ],
        outputs=[
            Port(v.name or f"output{i}", desc_of(v), dynamic=has_dynamic_size(v))
            for i, v in enumerate(graph.outputs)
            if i not in resident.left
        ],
        buffers=[_buffer(s, offsets.get(owner[s.id])) for s in builder.storages],
        tasks=[builder.tasks[number] for number in kept],
        blocks=builder.blocks,
        constants=builder.constants,
        kernels=context.kernels.images(),
        arena_bytes=memory.nbytes,
        donated=pairs,
        left=tuple(offsets.get(owner[outputs[position].buffer], 0) for position in resident.left),
        report=_report(builder, memory)
        | {"peak": peak_tensors(builder, _used(builder, owner))}
        | ({"donated_copies": copied} if donated else {}),
    )
    for number, choice in zip(kept, select(plan, options.target), strict=True):
        if choice is not None and number in builder.nodes:
            facts.set_implementation(builder.nodes[number], choice.name, choice.reason)
    _explain_loops(graph)
    over = {
        id(builder.tasks[number])
        for number in builder.shares
        if builder.tasks[number].kind in ("aicpu", "check")
    }
    check_donated(plan, lambda task: ((0, 0),) if id(task) in over else _leave(task, context.kernels))
    return plan


def _explain_loops(graph: ir.Graph) -> None:
    """Explain how loops run, and why not otherwise."""
    for node in graph:
        chosen = facts.choice(node)
        if chosen:
            facts.set_implementation(node, chosen.partition(";")[0], chosen)
    for inner in subgraphs_of(graph):
        _explain_loops(inner)


def _buffer(storage: Storage, offset: int | None) -> Buffer:
    """A buffer of the plan; arena storage that no task touches gets no offset and no bytes."""
    unused = storage.kind == "arena" and offset is None
    return Buffer(storage.kind, 0 if unused else storage.nbytes, offset or 0, storage.index)


def _outer(
    builder: PlanBuilder, kind: str, values: Sequence[ir.Value], resident: Collection[int]
) -> list[View]:
    """The views of inputs or outputs: the caller's memory, or the arena for resident ones."""
    views, ports = [], 0
    for position, value in enumerate(values):
        desc = desc_of(value)
        if position in resident:
            views.append(builder.arena(desc, label=value.name or ""))
            continue
        views.append(View.of(builder.storage(kind, desc.nbytes, ports).id, desc))
        ports += 1
    return views


def _leave(task: Task, kernels: KernelTable) -> Sequence[tuple[int, int]]:
    """The inputs and outputs of a task that may share memory."""
    return kernels.aliases(task.attrs["kernel"]) if task.kind == "kernel" else ()


def _plan_arena(builder: PlanBuilder, owner: list[int], rest: int) -> tuple[MemoryPlan, dict[int, int]]:
    """Assign arena offsets; small pieces rest for some tasks before and after their use."""
    used = _used(builder, owner)
    rests = [rest if s.nbytes <= _SMALL else 0 for s in used]
    pieces = [Piece(s.nbytes, max(s.first - n, 0), s.last + n) for s, n in zip(used, rests, strict=True)]
    memory = plan_memory(pieces, {i: s.place for i, s in enumerate(used) if s.place >= 0})
    check(pieces, memory.offsets)
    return memory, {s.id: o for s, o in zip(used, memory.offsets, strict=True)}


def _used(builder: PlanBuilder, owner: list[int]) -> list[Storage]:
    """The storages in the arena that are used."""
    return [
        s for s in builder.storages if s.kind == "arena" and owner[s.id] == s.id and s.last >= 0 and s.nbytes
    ]


def _finish_kernel_tasks(builder: PlanBuilder, kernels: KernelTable) -> None:
    for task in builder.tasks:
        if task.kind == "kernel":
            kernel: tbe.Kernel = kernels.kernel(task.attrs["kernel"])
            task.attrs.update(total=kernel.total, grain=kernel.grain)


def _report(builder: PlanBuilder, memory: MemoryPlan) -> dict[str, object]:
    return {
        "arena_bytes": memory.nbytes,
        "arena_lower_bound": memory.lower_bound,
        "arena_ratio": round(memory.ratio, 4),
        "arena_strategy": memory.strategy,
        "constant_bytes": sum(c.nbytes for c in builder.constants),
        "tasks": len(builder.tasks),
    }
