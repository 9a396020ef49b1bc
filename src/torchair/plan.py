"""Host and NPU steps of a compiled graph: `FunctionPlan`, ready to run, and `FunctionPlanData`, plain data."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

import ge
from npu_runtime import take_guests_of
from npu_runtime.activity import host_call
from torchair.gpu import Gpu
from torchair.lowering import Layout, Lowered, NpuPart
from torchair.recycling import LARGE_BYTES, Recycler

__all__ = [
    "Former",
    "FunctionPlan",
    "FunctionPlanData",
    "HostStep",
    "NpuStep",
    "ProgramForm",
    "form_of",
    "getter",
    "host_runner",
    "make_strided",
]

make_strided: Any = torch._C._dynamo.guards._empty_strided_cpu  # type: ignore[attr-defined]


# -- data ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slot:
    """An argument that is one of the values."""

    index: int


@dataclass(frozen=True)
class Row:
    """An argument that is a list or a tuple of arguments."""

    kind: type
    parts: tuple[Any, ...]


@dataclass(frozen=True)
class Span:
    """An argument that is a slice."""

    ends: tuple[Any, Any, Any]


@dataclass(frozen=True)
class ProgramForm:
    """The calling convention of a program: input layouts, outputs, and the outputs that reuse an input's memory."""

    inputs: tuple[Layout, ...]
    outputs: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], ...]
    donated: tuple[tuple[int, int], ...]
    moved: tuple[tuple[int, int], ...]  # outputs that are an NPU's tensors, and which NPU's
    gpu: Gpu | None = None  # the GPU whose memory inputs and outputs are in
    hosted: tuple[int, ...] = ()  # outputs of a GPU's program that are tensors of the host

    @classmethod
    def of(cls, part: NpuPart, gpu: Gpu | None = None) -> ProgramForm:
        devices = list(enumerate(part.output_devices))
        return cls(
            tuple(part.input_layouts),
            tuple((layout.shape, layout.strides, dtype) for layout, dtype in part.output_layouts),
            tuple(part.donated),
            tuple((i, d.index or 0) for i, d in devices if d.type == "npu"),
            gpu,
            tuple(i for i, d in devices if d.type == "cpu") if gpu is not None else (),
        )


@dataclass(frozen=True)
class NpuStep:
    """A program over values: where it reads and where its results go."""

    form: ProgramForm
    reads: tuple[int, ...]
    makes: tuple[int, ...]


@dataclass(frozen=True)
class HostStep:
    """A call that ATen runs."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    makes: int

    def __reduce__(self) -> tuple[Any, ...]:
        target = self.target
        if isinstance(target, torch._ops.OpOverload):
            name = (target.namespace, *target._schema.name.split("::")[1:], target._overloadname)
            return _host_step, (name, self.args, self.kwargs, self.makes)
        return HostStep, (target, self.args, self.kwargs, self.makes)


def _host_step(
    name: tuple[str, str, str], args: tuple[Any, ...], kwargs: dict[str, Any], makes: int
) -> HostStep:
    target = functools.reduce(getattr, name, torch.ops)
    return HostStep(target, args, kwargs, makes)


@dataclass(frozen=True)
class FunctionPlanData:
    """The steps of a graph over a list of values: its arguments first, then one slot a node."""

    arguments: int
    slots: int
    steps: tuple[NpuStep | HostStep, ...]
    returned: tuple[Any, ...]
    writes: tuple[tuple[int, Any], ...]  # inputs that take a new value at the end


def form_of(
    module: fx.GraphModule,
    places: Sequence[fx.Node],
    lowered: Lowered,
    values: dict[fx.Node, Any],
    gpu: Gpu | None = None,
) -> FunctionPlanData:
    """The plan of a lowered graph."""
    return Former(module, places, values).form(lowered, gpu)


class Former:
    """Nodes as slots of a list of values, and their arguments as plain data."""

    def __init__(self, module: fx.GraphModule, places: Sequence[fx.Node], values: dict[fx.Node, Any]) -> None:
        self.module = module
        self.slots: dict[fx.Node, int] = {n: i for i, n in enumerate(places)}
        self.arguments = len(places)
        self.numbers = {
            n: v for n, v in values.items() if isinstance(v, (int, float, bool)) or _is_list_of_ints(v)
        }

    def form(self, lowered: Lowered, gpu: Gpu | None = None) -> FunctionPlanData:
        steps: list[NpuStep | HostStep] = []
        for step in lowered.steps:
            if isinstance(step, NpuPart):
                reads = tuple(self.slot(n) for n in step.inputs)
                makes = tuple(self.slot(n) for n in step.outputs)
                steps.append(NpuStep(ProgramForm.of(step, gpu), reads, makes))
            else:
                steps.append(self.host_step(step.node))
        output = next(n for n in self.module.graph.nodes if n.op == "output")
        returned = tuple(self.argument(r) for r in output.args[0])
        writes = tuple((self.slots[t], self.argument(v)) for t, v in lowered.writes)
        return FunctionPlanData(self.arguments, len(self.slots), tuple(steps), returned, writes)

    def host_step(self, node: fx.Node) -> HostStep:
        """A call as ATen runs it."""
        args = tuple(self.argument(a) for a in node.args)
        named = {k: self.argument(v) for k, v in node.kwargs.items()}
        return HostStep(node.target, args, named, self.slot(node))

    def slot(self, node: fx.Node) -> int:
        """The place of a node's value."""
        return self.slots.setdefault(node, len(self.slots))

    def argument(self, value: Any) -> Any:
        """An argument of a call as plain data."""
        if isinstance(value, fx.Node):
            if value.op == "get_attr":
                return operator.attrgetter(str(value.target))(self.module)
            if value in self.numbers and value not in self.slots:
                return self.numbers[value]
            return Slot(self.slot(value))
        if isinstance(value, (list, tuple)):
            kind = type(value) if type(value) in (list, tuple) else list
            return Row(kind, tuple(self.argument(v) for v in value))
        if isinstance(value, slice):
            return Span((self.argument(value.start), self.argument(value.stop), self.argument(value.step)))
        return value


def _is_list_of_ints(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(v, int) for v in value)


# -- running ---------------------------------------------------------------------------------------------------


class Program:
    """A part of a graph, loaded; called with the tensors it reads."""

    def __init__(self, form: ProgramForm, model: ge.Model, training: bool = False) -> None:
        self.model = model
        run = model.program.run_pointers
        self.run = functools.partial(run, guests=True) if training and _has_guests() else run
        self.layouts = form.inputs
        self.plain = [layout.plain for layout in form.inputs]
        self.donated = dict(form.donated)
        self.outputs = list(form.outputs)
        self.moved = form.moved
        self.makers = [
            Recycler(*output)
            if training and _nbytes(output) >= LARGE_BYTES
            else functools.partial(make_strided, *output)
            for output in self.outputs
        ]

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        held = list(tensors)
        addresses = []
        for index, tensor in enumerate(tensors):
            if not (
                tensor.is_contiguous()
                if self.plain[index]
                else tensor.stride() == self.layouts[index].strides
            ):
                tensor = held[index] = self._laid_out(tensor, index)
            addresses.append(tensor.data_ptr())
        donated = self.donated
        if not donated:
            results = [make() for make in self.makers]
            self.run(addresses, [r.data_ptr() for r in results])
            return self._on_devices(results) if self.moved else results
        results = [held[donated[i]] if i in donated else make() for i, make in enumerate(self.makers)]
        self.run(addresses, [r.data_ptr() for r in results])
        for source in donated.values():
            if held[source] is not tensors[source]:
                tensors[source].copy_(held[source])
        return self._on_devices(results) if self.moved else results

    def on_arguments(self, reads: Sequence[int], arguments: int) -> Callable[[list[Any]], list[torch.Tensor]]:
        """The program as a function of a graph's arguments: a fast path where all of them have the expected layout."""
        if self.donated or self.moved or not all(self.plain):
            return lambda args: self([args[r] for r in reads])
        count, run, makers = len(reads), self.run, self.makers
        as_given = list(reads) == list(range(arguments))

        def short(args: list[Any]) -> list[torch.Tensor]:
            tensors = args if as_given else [args[r] for r in reads]
            addresses = [t.data_ptr() for t in tensors if t.is_contiguous()]
            if len(addresses) != count:
                return self(tensors)
            results = [make() for make in makers]
            run(addresses, [r.data_ptr() for r in results])
            return results

        return short

    @staticmethod
    def of(form: ProgramForm, model: ge.Model, training: bool = False) -> Program:
        """The program for the memory that its tensors are in."""
        return Program(form, model, training) if form.gpu is None else GpuProgram(form, model, form.gpu)

    def _on_devices(self, results: list[torch.Tensor]) -> list[torch.Tensor]:
        """Results of a graph of NPU tensors are NPU tensors, over the same memory."""
        from torch_npu.memory import as_npu

        for index, device in self.moved:
            if results[index].device.type == "cpu":
                results[index] = as_npu(results[index], device)
        return results

    def _laid_out(self, tensor: torch.Tensor, index: int) -> torch.Tensor:
        layout = self.layouts[index]
        if self.plain[index]:
            return tensor.contiguous()
        laid_out = torch.empty_strided(layout.shape, layout.strides, dtype=tensor.dtype, device=tensor.device)
        return laid_out.copy_(tensor)


class GpuProgram(Program):
    """A program over CUDA tensors."""

    def __init__(self, form: ProgramForm, model: ge.Model, gpu: Gpu) -> None:
        super().__init__(form, model)
        self.gpu, self.hosted = gpu, form.hosted
        self.run = gpu.runner(model)
        self.makers = [functools.partial(gpu.make, *output) for output in self.outputs]

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        with self.gpu.guard():
            taken = [self.gpu.take(tensor) for tensor in tensors]
            results = super().__call__(taken)
            for source in self.donated.values():
                if taken[source] is not tensors[source]:
                    tensors[source].copy_(taken[source])
            for index in self.hosted:
                results[index] = results[index].cpu()
        return results

    def on_arguments(self, reads: Sequence[int], arguments: int) -> Callable[[list[Any]], list[torch.Tensor]]:
        return lambda args: self([args[r] for r in reads])


@functools.cache
def _has_guests() -> bool:
    """Whether the threads of PyTorch's OpenMP can be had."""
    return take_guests_of(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))


def _nbytes(output: tuple[tuple[int, ...], tuple[int, ...], torch.dtype]) -> int:
    return math.prod(output[0]) * output[2].itemsize


class FunctionPlan:
    """A plan with its programs loaded: a function of a list of arguments.

    training: other operators of PyTorch run between the calls. The memory of large results is kept for those of the
    next call, and PyTorch's threads, which are awake, do the work.
    """

    def __init__(
        self,
        form: FunctionPlanData,
        models: Sequence[ge.Model],
        lowered: Lowered | None = None,
        training: bool = False,
    ) -> None:
        self.form = form
        self.lowered = lowered  # None for a plan from a file
        loaded = iter(models)
        self.programs: list[Program] = []
        self.steps: list[Callable[[list[Any]], None]] = []
        for step in form.steps:
            if isinstance(step, NpuStep):
                self.programs.append(Program.of(step.form, next(loaded), training))
                self.steps.append(_npu(self.programs[-1], step))
            else:
                self.steps.append(host_runner(step))
        self.returned = [getter(r) for r in form.returned]
        self.writes = [(slot, getter(value)) for slot, value in form.writes]

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        values = list(args) + [None] * (self.form.slots - self.form.arguments)
        with torch.no_grad():
            for step in self.steps:
                step(values)
            for slot, value in self.writes:
                values[slot].copy_(value(values))
        return tuple([r(values) for r in self.returned])

    def fastest(self) -> Callable[[list[Any]], Any]:
        """A shorter way where all of the graph is one program."""
        steps = self.form.steps
        if len(steps) != 1 or not isinstance(steps[0], NpuStep) or self.writes:
            return self
        program, reads = self.programs[0], steps[0].reads
        made = {slot: i for i, slot in enumerate(steps[0].makes)}
        if not all(isinstance(r, Slot) and r.index in made for r in self.form.returned):
            return self
        order = [made[r.index] for r in self.form.returned]
        if order == list(range(len(made))):
            return program.on_arguments(reads, self.form.arguments)

        def direct(args: list[Any]) -> Any:
            results = program([args[r] for r in reads])
            return [results[i] for i in order]

        return direct


def _npu(program: Program, step: NpuStep) -> Callable[[list[Any]], None]:
    def run(values: list[Any]) -> None:
        for slot, result in zip(step.makes, program([values[r] for r in step.reads]), strict=True):
            values[slot] = result

    return run


def host_runner(step: HostStep) -> Callable[[list[Any]], None]:
    """A call of ATen's as a function of the values."""
    arguments = [getter(a) for a in step.args]
    named = {k: getter(v) for k, v in step.kwargs.items()}
    target, slot = step.target, step.makes
    if target is operator.truediv:
        target = _quotient

    def run(values: list[Any]) -> None:
        given = [a(values) for a in arguments]
        values[slot] = target(*given, **{k: v(values) for k, v in named.items()})

    return host_call(str(target), run)


def _quotient(a: Any, b: Any) -> Any:
    """A quotient of sizes, by zero too: torch.var's gradient divides by the number of elements less one."""
    try:
        return a / b
    except ZeroDivisionError:
        return math.copysign(math.inf, a) if a and not math.isnan(a) else math.nan


def getter(value: Any) -> Callable[[list[Any]], Any]:
    """An argument as a function of the values."""
    if isinstance(value, Slot):
        return operator.itemgetter(value.index)
    if isinstance(value, Row):
        parts, kind = [getter(p) for p in value.parts], value.kind
        return lambda values: kind([p(values) for p in parts])
    if isinstance(value, Span):
        ends = [getter(e) for e in value.ends]
        return lambda values: slice(*(e(values) for e in ends))
    return lambda values: value
