"""Lowering: turns the units of a placed graph into tasks over storages, and nested graphs into nested blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

import tbe
from ge.build.aliases import Aliases
from ge.build.carries import Carry, coalesce_carries
from ge.build.donate import Donation
from ge.build.expression import Expression, express
from ge.build.form_units import form_units
from ge.build.kernels import KernelTable
from ge.build.plan_builder import PlanBuilder, Share
from ge.build.units import Unit
from ge.build.views import view_backward, view_forward
from ge.engines.aicore import accepts_input, accepts_output
from ge.engines.algorithms import precision_attrs
from ge.errors import GeError
from ge.implementations import Operation, choose, takes_late_sum
from ge.implementations.base import BINARY_POST_OPS
from ge.ir import facts
from ge.ir.types import TensorDesc
from ge.ir.values import constant_of, desc_of
from ge.ops.base import (
    CompiledProgram,
    Engine,
    NodeView,
    has_dynamic_size,
    is_custom,
    is_whole_view,
    lookup,
    plain_type,
    program_of,
)
from ge.options import CompileOptions
from ge.plan import Task, View
from ge.target import Target

__all__ = ["LoweringContext", "lower_graph"]


@dataclass
class LoweringContext:
    """State shared by all blocks of a model during lowering."""

    builder: PlanBuilder
    kernels: KernelTable
    options: CompileOptions
    donated: tuple[Donation, ...] = ()


def lower_graph(
    graph: ir.Graph, context: LoweringContext, inputs: Sequence[View], outputs: Sequence[View], block: int = 0
) -> None:
    """Emit the tasks of a graph that reads its inputs from given views and writes its outputs to given views."""
    _GraphLowering(graph, context, block, outputs).lower(inputs)


class _GraphLowering:
    def __init__(
        self, graph: ir.Graph, context: LoweringContext, block: int, outputs: Sequence[View]
    ) -> None:
        self.graph = graph
        self.context = context
        self.builder = context.builder
        self.block = block
        self.targets = list(outputs)
        self.views: dict[ir.Value, View] = {}
        self.copies: dict[ir.Value, View] = {}  # contiguous copies of strided values
        self.aliases = Aliases()

    def lower(self, inputs: Sequence[View]) -> None:
        donated = self.context.donated if self.block == 0 else ()
        parts = form_units(self.graph, self.context.options, donated)
        self.aliases = parts.aliases
        self.views.update(zip(self.graph.inputs, inputs, strict=True))
        late = self._claim_outputs()
        given = {self.graph.inputs[source] for _, source in donated}
        for value, target in late:
            if self._whole_source(value) in given:  # before it is overwritten
                self._copy(self.view(value), target, value.name or "output")
        for unit in parts.units:
            _LOWER[unit.engine](self, unit)
        for value, target in late:
            if self._whole_source(value) not in given:
                self._copy(self.view(value), target, value.name or "output")

    # -- locations of values --------------------------------------------------------------------------------------

    def _claim_outputs(self) -> list[tuple[ir.Value, View]]:
        """Write results directly to the caller's memory where possible; copy the others at the end."""
        late: list[tuple[ir.Value, View]] = []
        for value, target in zip(self.graph.outputs, self.targets, strict=True):
            root = self._whole_source(value)
            taken = root in self.views or constant_of(root) is not None or root in self.aliases.backward
            maker = root.producer()
            if taken or maker is None or maker in self.aliases.forward or not target.contiguous:
                late.append((value, target))
            else:
                self.views[root] = target.reshape(desc_of(root).shape)
        return late

    def _whole_source(self, value: ir.Value) -> ir.Value:
        """The value whose entire memory is also this value's."""
        node = value.producer()
        while node in self.aliases.forward and is_whole_view(node):
            source = node.inputs[0]
            assert source is not None
            if facts.storage_dtype(source) != facts.storage_dtype(value):
                break
            value = source
            node = value.producer()
        return value

    def view(self, value: ir.Value) -> View:
        """The view of a value."""
        known = self.views.get(value)
        if known is None:
            known = self.views[value] = self._locate(value)
        return known

    def _locate(self, value: ir.Value) -> View:
        if constant_of(value) is not None:
            return self.builder.constant(value)
        node = value.producer()
        if node in self.aliases.forward:
            return self._forward(node, value)
        if value in self.aliases.backward:
            by, index = self.aliases.backward[value]
            view = view_backward(by, index, self.view(by.outputs[0]))
            assert view is not None, f"{value.name} cannot be a view of {by.name}"
            return view
        desc = desc_of(value)
        return self.builder.arena(TensorDesc(desc.shape, facts.storage_dtype(value)), label=value.name or "")

    def _forward(self, node: ir.Node, value: ir.Value) -> View:
        source = node.inputs[0]
        assert source is not None
        if node.op_type == "Cast":
            return self.view(source)
        view = view_forward(node, value.index() or 0, self.view(source))
        if view is None:
            view = view_forward(node, value.index() or 0, self.contiguous(source))
        assert view is not None, f"{node.name} is not a view of its input"
        return view

    def contiguous(self, value: ir.Value) -> View:
        """A contiguous view of a value; a strided one is copied once."""
        view = self.view(value)
        if view.contiguous:
            return view
        if value not in self.copies:
            copy = self.builder.arena(view.desc, label=f"{value.name}.copy")
            self._copy(view, copy, value.name or "")
            self.copies[value] = copy
        return self.copies[value]

    def _copy(self, source: View, target: View, name: str) -> None:
        if source == target:
            return
        plain = source.contiguous and target.contiguous and source.dtype == target.dtype
        if plain:
            source = source.reshape(target.shape)
        shares = [Share(0, 0)] if plain else []
        kind = "copy" if plain else "reorder"
        self.emit(Task(kind, f"copy:{name}", [source], [target], engine=Engine.VIEW.value), shares)

    def emit(
        self, task: Task, shares: Sequence[Share] = (), node: ir.Node | None = None, sized: bool = False
    ) -> None:
        """Append a task to this block unless it is a no-op; `node` is the node of a cube task.

        sized: the task also determines the shape of an output, which matters even if that has no elements.
        """
        if task.outputs and all(0 in v.shape for v in task.outputs) and not sized:
            return
        task.block = self.block
        if node is not None:
            self.builder.nodes[len(self.builder.tasks)] = node
        self.builder.emit(task, shares)

    # -- units -------------------------------------------------------------------------------------------------

    def lower_aicore(self, unit: Unit) -> None:
        """Emit an AI Core primitive; copy operands that it cannot access with their strides."""
        node = unit.last
        op = NodeView.of(node)
        operator = lookup(node.op_type)
        assert operator.task is not None
        inputs: list[Any] = []
        for index, value in enumerate(node.inputs):
            if value is None:
                inputs.append(None)
                continue
            view = self.view(value)
            fits = accepts_input(node, index, view, self.context.options.target)
            inputs.append(view if fits else self.contiguous(value))
        wanted = [self.view(v) for v in node.outputs]
        outputs = [
            v if accepts_output(node, v, self.context.options.target, n) else self.builder.arena(v.desc)
            for n, v in enumerate(wanted)
        ]
        task = operator.task(op, inputs, outputs)
        task.attrs.update(precision_attrs(node, self.context.options))
        self._describe(task, unit, operator.flops(op))
        self.emit(task, _accumulations(task, self.context.options.target), node)
        for view, target in zip(outputs, wanted, strict=True):
            self._copy(view, target, node.name or "")

    def lower_vector(self, unit: Unit) -> None:
        """Emit a generated kernel, or several if one cannot compute all results."""
        if unit.nodes[0] in self.aliases.joined:
            self._join(unit.nodes[0])
            return
        program = program_of(unit.last)
        if program is not None:
            self._emit_program(unit, program)
            return
        kernel = express(unit.nodes, unit.outputs, self.aliases)
        # A large reduction that would run on one core.
        target = self.context.options.target
        serial = bool(
            tbe.in_two_steps(kernel.outputs, target.cores, target.kind == "cuda", target.processor)[1]
        )
        try:
            (self._emit_kernels if serial else self._emit_kernel)(unit, kernel)
        except tbe.Unfusable as error:
            try:
                self._emit_kernels(unit, kernel)
            except tbe.Unfusable:
                raise _no_kernel(unit, error) from error

    def _emit_kernel(self, unit: Unit, kernel: Expression) -> None:
        index = self._kernel(unit, kernel.inputs, kernel.outputs)
        wanted = [self.view(v) for v in unit.outputs]
        outputs = [v if v.contiguous else self.builder.arena(v.desc) for v in wanted]
        self._run_kernel(unit, index, [self.contiguous(v) for v in kernel.reads], outputs)
        for view, target in zip(outputs, wanted, strict=True):
            self._copy(view, target, unit.name)

    def _emit_kernels(self, unit: Unit, kernel: Expression) -> None:
        """Emit several kernels for what one cannot compute, with temporaries between them."""
        target = self.context.options.target
        parts = tbe.split_into_kernels(
            kernel.inputs, kernel.outputs, target.cores, target.kind == "cuda", target.processor
        )
        indices = [self._kernel(unit, step.inputs, step.outputs) for step in parts.steps]
        places = {number: self.contiguous(v) for number, v in enumerate(kernel.reads)}
        for number, value in zip(parts.outputs, unit.outputs, strict=True):
            if number not in places and self.view(value).contiguous:
                places[number] = self.view(value)
        for step, index in zip(parts.steps, indices, strict=True):
            for number in step.writes:
                if number not in places:
                    places[number] = self.builder.arena(TensorDesc(*parts.values[number]))
            reads, writes = ([places[n] for n in side] for side in (step.reads, step.writes))
            self._run_kernel(unit, index, reads, writes)
        for number, value in zip(parts.outputs, unit.outputs, strict=True):
            self._copy(places[number], self.view(value), unit.name)

    def _emit_program(self, unit: Unit, program: CompiledProgram) -> None:
        """Emit a user's TIK program, which returns status 0 if all its checks held."""
        node = unit.last
        if self.context.options.target.kind == "cuda":
            cause = "it is a TIK program, which has machine code for processors only"
            raise GeError("E10503", cause, node=node.name or "", operator=plain_type(node.op_type))
        index = self.context.kernels.add_code(program.symbol, program.object)
        wanted = [self.view(v) for v in node.outputs]
        outputs = [v if v.contiguous else self.builder.arena(v.desc) for v in wanted]
        status = self.builder.arena(TensorDesc((1,), "int64"))
        scratch = self.builder.arena(TensorDesc((program.arena,), "uint8"))
        inputs = [self.contiguous(v) for v in node.inputs if v is not None]
        self._run_kernel(unit, index, inputs, [*outputs, status, scratch])
        message = (
            "statement {value} of the TIK program reaches outside of a tensor, or breaks another rule of TIK"
        )
        rule = {"limits": [1], "what": "status", "message": message}
        self.emit(Task("check", unit.name, [status], [], rule, unit.engine.value, unit.origin))
        for view, target in zip(outputs, wanted, strict=True):
            self._copy(view, target, unit.name)

    def _kernel(self, unit: Unit, inputs: Sequence[tbe.Tensor], outputs: Sequence[tbe.Tensor]) -> int:
        isolated = any(is_custom(lookup(n.op_type)) for n in unit.nodes)
        return self.context.kernels.add(inputs, outputs, _symbol(unit), isolated=isolated)

    def _run_kernel(self, unit: Unit, index: int, inputs: Sequence[View], outputs: Sequence[View]) -> None:
        task = Task("kernel", unit.name, list(inputs), list(outputs), {"kernel": index})
        self._describe(task, unit, sum(lookup(n.op_type).flops(NodeView.of(n)) for n in unit.nodes))
        self.emit(task, [Share(i, o) for i, o in self.context.kernels.aliases(index)])

    def _join(self, node: ir.Node) -> None:
        """Copy the parts of a Concat that were not written in place."""
        whole = self.view(node.outputs[0])
        for index, value in enumerate(node.inputs):
            assert value is not None
            if self.aliases.backward.get(value) != (node, index):
                target = view_backward(node, index, whole)
                assert target is not None
                self._copy(self.view(value), target, node.name or "")

    def lower_aicpu(self, unit: Unit) -> None:
        """Emit a C++ kernel; one that only checks its input has no output memory."""
        node = unit.last
        op = NodeView.of(node)
        operator = lookup(node.op_type)
        looks = node in self.aliases.forward
        inputs = [self.view(v) if looks else self.contiguous(v) for v in node.inputs if v is not None]
        outputs = [] if looks else [self.view(v) for v in node.outputs]
        present = [v is not None for v in node.inputs]
        attrs = {"op": operator.aicpu, **operator.kernel_attrs(op)}
        if not all(present):
            attrs["present"] = [int(p) for p in present]
        self._check_dynamic(node)
        task = Task(operator.task_kind, unit.name, inputs, outputs, attrs)
        self._describe(task, unit, operator.flops(op))
        sized = any(has_dynamic_size(v) for v in node.outputs)
        self.emit(task, [Share(0, 0)] if operator.overwrites and outputs else (), sized=sized)

    def _check_dynamic(self, node: ir.Node) -> None:
        if any(v.uses() for v in node.outputs if has_dynamic_size(v)):
            raise GeError(
                "E10503",
                "its result's size is known only at run time, so no other node can be compiled for it",
                node=node.name or "",
                operator=node.op_type,
                remedy="make it an output of the model, or cut the model there",
            )

    def lower_view(self, unit: Unit) -> None:
        """Emit nothing: the memory is the input's."""

    def lower_control(self, unit: Unit) -> None:
        """Emit a branch or a loop."""
        self._check_dynamic(unit.last)
        _CONTROL[unit.last.op_type](self, unit.last)

    def _describe(self, task: Task, unit: Unit, flops: int) -> None:
        task.name = unit.name
        task.engine = unit.engine.value
        task.origin = unit.origin
        task.flops = flops

    # -- control flow ------------------------------------------------------------------------------------------

    def lower_if(self, node: ir.Node) -> None:
        """Emit both branches as blocks that write their results to the If's outputs."""
        op = NodeView.of(node)
        condition, *captures = [self.contiguous(v) for v in node.inputs if v is not None]
        outputs = [self.view(v) for v in node.outputs]
        then_block, else_block = self._new_block(), self._new_block()
        attrs = {"then_block": then_block, "else_block": else_block}
        self.emit(
            Task("if", node.name or "If", [condition], [], attrs, Engine.CONTROL.value, facts.origin(node))
        )
        for graph, block in ((op.then_branch, then_block), (op.else_branch, else_block)):
            lower_graph(graph, self.context, captures, outputs, block)
        self.builder.hold(outputs, self.builder.tick())

    def lower_loop(self, node: ir.Node) -> None:
        """Emit the body as a block; states have their own memory, and each iteration ends by copying the new ones."""
        op = NodeView.of(node)
        count = op.num_states
        values = [None if v is None else self.contiguous(v) for v in (*node.inputs, *[None] * 2)]
        trip, condition = values[:2]
        initial = values[2 : 2 + count]
        captures = [v for v in values[2 + count : len(node.inputs)] if v is not None]
        states = [self.view(v) for v in node.outputs[:count]]
        scans = [self.view(v) for v in node.outputs[count:]]
        for source, state, value in zip(initial, states, node.outputs, strict=False):
            assert source is not None
            self._copy(source, state, f"{value.name}.initial")
        go_on = self._flag(condition)
        counter = self.builder.arena(TensorDesc((), "int64"), label=f"{node.name}.counter")
        body_block = self._new_block()
        attrs = {"body_block": body_block}
        task_inputs = [go_on] if trip is None else [trip, go_on]
        start = self.builder.tick()
        self.builder.hold(scans, start)
        self.emit(
            Task("while", node.name or "Loop", task_inputs, [counter], attrs, "control", facts.origin(node))
        )
        first_task = len(self.builder.tasks)
        counted = [has_dynamic_size(v) for v in node.outputs[count:]]
        body = _Body(self, op.body, body_block, counter, go_on, states, scans, counted)
        body.lower(captures)
        end = self.builder.tick()
        read = [v for task in self.builder.tasks[first_task:] for v in (*task.inputs, *task.outputs)]
        outside = [v for v in read if self.builder.storages[v.buffer].first <= start]
        self.builder.hold([*outside, *states, *scans, counter, *task_inputs], end)

    def _flag(self, condition: View | None) -> View:
        flag = self.builder.arena(TensorDesc((), "bool"), label="condition")
        if condition is None:
            condition = self.builder.new_constant(np.asarray(True), TensorDesc((), "bool"))
        self._copy(condition, flag, "condition")
        return flag

    def _new_block(self) -> int:
        block = self.builder.blocks
        self.builder.blocks += 1
        return block


@dataclass
class _Body:
    """One iteration of a loop."""

    outer: _GraphLowering
    graph: ir.Graph
    block: int
    counter: View
    go_on: View
    states: list[View]
    scans: list[View]
    counted: list[bool]  # whether the number of steps is the actual length of a scan

    def lower(self, captures: Sequence[View]) -> None:
        """Emit the body, then store scan outputs and carry the states over."""
        builder = self.outer.builder
        first = len(builder.tasks)
        results = [builder.arena(desc_of(v), label=f"{v.name}.next") for v in self.graph.outputs]
        inputs = [self.counter, self.go_on, *self.states, *captures]
        lower_graph(self.graph, self.outer.context, inputs, results, self.block)
        new_states = results[1 : 1 + len(self.states)]
        stacked = results[1 + len(self.states) :]
        for value, scan, counted in zip(stacked, self.scans, self.counted, strict=True):
            attrs = {"counted": True} if counted else {}
            builder.emit(
                Task("scan_store", "scan", [value, self.counter], [scan], attrs, "control", (), self.block)
            )
        carries: list[Carry] = []
        for source, target in zip([results[0], *new_states], [self.go_on, *self.states], strict=True):
            if 0 not in target.shape:
                carries.append(Carry(len(builder.tasks), first))
                builder.emit(Task("copy", "carry", [source], [target], {}, "control", (), self.block))
        if "in_place" not in self.outer.context.options.disabled_passes:
            coalesce_carries(builder, carries)


_LOWER: dict[Engine, Callable[[_GraphLowering, Unit], None]] = {
    Engine.AI_CORE: _GraphLowering.lower_aicore,
    Engine.VECTOR: _GraphLowering.lower_vector,
    Engine.AI_CPU: _GraphLowering.lower_aicpu,
    Engine.CONTROL: _GraphLowering.lower_control,
    Engine.VIEW: _GraphLowering.lower_view,
}

_CONTROL: dict[str, Callable[[_GraphLowering, ir.Node], None]] = {
    "If": _GraphLowering.lower_if,
    "Loop": _GraphLowering.lower_loop,
}


def _accumulations(task: Task, target: Target) -> list[Share]:
    """The operands that a primitive adds to its result and could accumulate into instead."""
    post_ops = task.attrs.get("post_ops") or () if target.kind == "cpu" else ()
    operand = len(task.inputs) - sum(p in BINARY_POST_OPS for p in post_ops)
    found: list[Share] = []
    for number, post_op in enumerate(post_ops):
        if post_op not in BINARY_POST_OPS:
            continue
        source, result = task.inputs[operand], task.outputs[0]
        fits = post_op == "add" and (source.shape, source.dtype) == (result.shape, result.dtype)
        if fits and (number == 0 or _supports_late_sum(task, operand, number, target)):
            found.append(Share(operand, 0, number))
        operand += 1
    return found


def _supports_late_sum(task: Task, operand: int, number: int, target: Target) -> bool:
    """True if a product may add to its result after other post-ops: few library kernels can."""
    ops, rest = [*task.attrs["post_ops"]], [*task.inputs]
    ops[number] = "sum"
    del rest[operand]
    changed = replace(task, inputs=rest, attrs={**task.attrs, "post_ops": ops})
    op = Operation.of(changed, constant=frozenset(range(1, len(rest))))
    return not choose(op, target).is_library or takes_late_sum(op, target)


def _no_kernel(unit: Unit, error: tbe.Unfusable) -> GeError:
    return GeError(
        "E10502",
        f"cannot be computed by one kernel: {error}",
        node=unit.last.name or "",
        operator=unit.last.op_type,
        location=", ".join(unit.origin),
        remedy="report it with the model, and run the operator on the host meanwhile",
    )


def _symbol(unit: Unit) -> str:
    return "_".join(dict.fromkeys(plain_type(n.op_type).lower() for n in unit.nodes))[:48]
