"""Compiled graphs as callables: programs by concrete shape, parameters bound as constants, calls left to ATen."""

from __future__ import annotations

import operator
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

import ge
from ge.compiler import compile_graph
from ge.options import CompileOptions
from torchair.lowering import HostCall, Layout, Lowered, NpuPart, Refusal, lower

__all__ = ["CompiledGraph", "Report", "observe"]

MAX_SHAPES = 8  # programs kept for one graph of symbolic sizes
HOT_CALLS = 4  # calls with the same sizes, on ATen, before a graph of symbolic sizes is compiled for them
MAX_COUNTED = 4096  # sizes whose calls are counted
FIRST_PATIENCE = 16  # calls with unchanged parameters before they become constants again

_make: Any = torch._C._dynamo.guards._empty_strided_cpu  # type: ignore[attr-defined]
_observers: list[list[Report]] = []  # gradients are compiled in threads of their own


@dataclass
class Report:
    """What one compiled graph is made of."""

    name: str
    kind: str
    npu_calls: int = 0
    parts: int = 0
    refusals: list[Refusal] = field(default_factory=list)
    operators: dict[str, bool] = field(default_factory=dict)
    failure: str = ""


class observe:
    """Collects the reports of graphs compiled in a block.

    >>> with observe() as reports:      # doctest: +SKIP
    ...     model(x)
    """

    def __enter__(self) -> list[Report]:
        self.found: list[Report] = []
        _observers.append(self.found)
        return self.found

    def __exit__(self, *error: object) -> None:
        _observers[:] = [sink for sink in _observers if sink is not self.found]


def _tell(report: Report) -> None:
    for sink in list(_observers):
        sink.append(report)


class CompiledGraph:
    """An ATen graph that is compiled when it is called: once a shape, again when parameters have changed."""

    _boxed_call = True  # it takes one list of arguments, which it may empty

    def __init__(
        self,
        module: fx.GraphModule,
        kind: str,
        static: Sequence[int],
        options: CompileOptions,
        on_compile: Callable[[Any], None] | None = None,
        returned: int | None = None,
    ) -> None:
        self.free = _only_saved(module, returned) if returned is not None else frozenset()
        self.module = module
        self.kind = kind
        self.options = options
        self.places: list[fx.Node] = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.numbers = [
            i for i, n in enumerate(self.places) if not isinstance(n.meta.get("val"), torch.Tensor)
        ]
        self.static = _unwritten(module, self.places, static) if kind == "inference" else []
        self.plans: OrderedDict[Any, Callable[[list[Any]], Any]] = OrderedDict()
        self.bound: list[tuple[int, int, int]] | None = None  # position, address, version
        self.calls_unchanged = 0
        self.patience = 0
        self.compiles = 0
        self.seen: OrderedDict[Any, int] = OrderedDict()  # sizes without a program -> calls so far
        self.lock = threading.RLock()
        self.on_compile = on_compile
        self.reports: list[Report] = []

    # -- calls --------------------------------------------------------------------------------------------------

    def __call__(self, args: list[Any]) -> Any:
        key: Any = tuple([args[i] for i in self.numbers]) if self.numbers else None
        if self.static:
            key = (key, self._settled(args))
        plan = self.plans.get(key)
        if plan is None:
            plan = self._planned(key, args)
        result = plan(args)
        args.clear()
        return result

    def _settled(self, args: list[Any]) -> bool:
        """Whether parameters are what the programs hold; when they have changed, they are inputs for a while."""
        bound = self.bound
        if bound is not None:
            for position, address, version in bound:
                tensor = args[position]
                if tensor._version != version or tensor.data_ptr() != address:
                    break
            else:
                if self.patience == 0 or self.calls_unchanged >= self.patience:
                    return True
                self.calls_unchanged += 1
                return self.calls_unchanged >= self.patience
            with self.lock:
                self._forget_constants()
                self.patience = FIRST_PATIENCE if not self.patience else min(2 * self.patience, 1 << 40)
                self.calls_unchanged = 0
                self._bind(args)
            return False
        self._bind(args)
        return True

    def _bind(self, args: list[Any]) -> None:
        if any(args[i].is_inference() for i in self.static):
            self.static = []
            return
        self.bound = [(i, args[i].data_ptr(), args[i]._version) for i in self.static]

    def _forget_constants(self) -> None:
        for key in [k for k in self.plans if isinstance(k, tuple) and k[-1] is True]:
            del self.plans[key]

    # -- compiling ----------------------------------------------------------------------------------------------

    def _planned(self, key: Any, args: list[Any]) -> Callable[[list[Any]], Any]:
        with self.lock:
            plan = self.plans.get(key)
            if plan is not None:
                return plan
            if self.numbers and not self._is_hot(key) and _runs_on_aten(self.module):
                return self._on_aten
            while len(self.plans) >= 2 * MAX_SHAPES:
                self.plans.popitem(last=False)
            folded = bool(self.static) and key[-1]
            plan = self._compiled(args, folded)
            self.plans[key] = plan
            return plan

    def _is_hot(self, key: Any) -> bool:
        """Whether these sizes come back often enough to be worth a program; each program doubles the demand."""
        calls = self.seen.pop(key, 0) + 1
        if len(self.seen) >= MAX_COUNTED:
            self.seen.popitem(last=False)
        if calls > HOT_CALLS << max(self.compiles - MAX_SHAPES, 0):
            return True
        self.seen[key] = calls
        return False

    def _on_aten(self, args: list[Any]) -> Any:
        """The graph as it is, call by call."""
        return self.module(*args)

    def _compiled(self, args: list[Any], folded: bool) -> Callable[[list[Any]], Any]:
        report = Report(self.module._get_name(), self.kind)
        self.reports.append(report)
        self.compiles += 1
        try:
            values = self._values(args)
            constants = {self.places[i]: args[i] for i in self.static} if folded else {}
            layouts = {
                n: Layout.of(a) for n, a in zip(self.places, args, strict=True) if isinstance(a, torch.Tensor)
            }
            lowered = lower(self.module, values, constants, layouts, self.free)
            report.npu_calls, report.refusals = lowered.npu_calls, lowered.refusals
            report.operators = lowered.operators
            report.parts = sum(isinstance(s, NpuPart) for s in lowered.steps)
            plan = _Plan(self.module, self.places, lowered, self.options, values)
            if self.on_compile is not None:
                self.on_compile(plan)
            return plan.fastest()
        except Exception as error:  # a fault of ours must not stop the user's program
            report.failure = f"{type(error).__name__}: {error}"
            warnings.warn(
                f"a graph could not be compiled for the NPU and runs on ATen: {report.failure}", stacklevel=2
            )
            return self._on_aten
        finally:
            _tell(report)

    def _values(self, args: list[Any]) -> dict[fx.Node, Any]:
        """The fake result of each node in concrete sizes."""
        if not self.numbers:
            return {n: n.meta["val"] for n in self.module.graph.nodes if "val" in n.meta}
        return _concrete(self.module, args)


def _unwritten(module: fx.GraphModule, places: list[fx.Node], static: Sequence[int]) -> list[int]:
    """The parameters that the graph does not write."""
    written = {
        n.args[0]
        for n in module.graph.nodes
        if n.op == "call_function" and str(n.target).partition(".")[2].partition(".")[0].endswith("_")
        and n.args
    }  # fmt: skip
    return [
        i for i in static if places[i] not in written and isinstance(places[i].meta.get("val"), torch.Tensor)
    ]


def _only_saved(module: fx.GraphModule, returned: int) -> frozenset[fx.Node]:
    """The results of a forward graph beyond those that the user gets: only the backward graph reads them."""
    output = next(n for n in module.graph.nodes if n.op == "output")
    results = list(output.args[0])
    kept = {r for r in results[:returned] if isinstance(r, fx.Node)}
    return frozenset(r for r in results[returned:] if isinstance(r, fx.Node) and r not in kept)


class _Recorder(fx.Interpreter):
    """Runs a graph on fake tensors and remembers what each node gives."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.found: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.found[n] = super().run_node(n)
        return self.found[n]


def _runs_on_aten(module: fx.GraphModule) -> bool:
    """Whether every operator has an implementation for the host; users' operators may have none."""
    targets = {n.target for n in module.graph.nodes if isinstance(n.target, torch._ops.OpOverload)}
    own = [t for t in targets if t.namespace not in ("aten", "prims")]
    return all(torch._C._dispatch_has_computed_kernel_for_dispatch_key(t.name(), "CPU") for t in own)


def _concrete(module: fx.GraphModule, args: list[Any]) -> dict[fx.Node, Any]:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, torch.no_grad():
        fakes = [
            torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device=a.device)
            if isinstance(a, torch.Tensor)
            else a
            for a in args
        ]
        recorder = _Recorder(module)
        recorder.run(*fakes)
    return recorder.found


# -- running ---------------------------------------------------------------------------------------------------


class _Program:
    """A part of a graph, loaded; called with the tensors it reads."""

    def __init__(self, part: NpuPart, options: CompileOptions) -> None:
        self.model: ge.Model = compile_graph(part.graph, options, "torch", part.donated)
        self.run = self.model.program.run_pointers
        self.layouts = part.input_layouts
        self.plain = [layout.plain for layout in part.input_layouts]
        self.donated = dict(part.donated)
        self.outputs = [(layout.shape, layout.strides, dtype) for layout, dtype in part.output_layouts]
        self.moved = [i for i, device in enumerate(part.output_devices) if device != "cpu"]

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
            results = [_make(shape, strides, dtype) for shape, strides, dtype in self.outputs]
            self.run(addresses, [r.data_ptr() for r in results])
            return self._on_devices(results) if self.moved else results
        results = [
            held[donated[i]] if i in donated else _make(shape, strides, dtype)
            for i, (shape, strides, dtype) in enumerate(self.outputs)
        ]
        self.run(addresses, [r.data_ptr() for r in results])
        for source in donated.values():
            if held[source] is not tensors[source]:
                tensors[source].copy_(held[source])
        return self._on_devices(results) if self.moved else results

    def _on_devices(self, results: list[torch.Tensor]) -> list[torch.Tensor]:
        """Results of a graph of NPU tensors are NPU tensors, over the same memory."""
        from torch_npu.memory import as_npu

        for index in self.moved:
            if results[index].device.type == "cpu":
                results[index] = as_npu(results[index])
        return results

    def _laid_out(self, tensor: torch.Tensor, index: int) -> torch.Tensor:
        layout = self.layouts[index]
        if self.plain[index]:
            return tensor.contiguous()
        return torch.empty_strided(layout.shape, layout.strides, dtype=tensor.dtype).copy_(tensor)


class _Plan:
    """The steps of a graph over a list of values, one slot a node."""

    def __init__(
        self,
        module: fx.GraphModule,
        places: list[fx.Node],
        lowered: Lowered,
        options: CompileOptions,
        values: dict[fx.Node, Any],
    ) -> None:
        self.module = module
        self.lowered = lowered
        self.slots: dict[fx.Node, int] = {n: i for i, n in enumerate(places)}
        self.first = len(places)
        self.steps: list[Callable[[list[Any]], None]] = []
        self.programs: list[_Program] = []
        self.numbers = {
            n: v for n, v in values.items() if isinstance(v, (int, float, bool)) or _is_list_of_ints(v)
        }
        output = next(n for n in module.graph.nodes if n.op == "output")
        self.result = output.args[0]
        for step in lowered.steps:
            self.steps.append(self._npu(step, options) if isinstance(step, NpuPart) else self._host(step))
        self.returned = [self._template(r) for r in self.result]
        self.writes = [(self.slots[t], self._template(v)) for t, v in lowered.writes]

    def _slot(self, node: fx.Node) -> int:
        return self.slots.setdefault(node, len(self.slots))

    def _npu(self, part: NpuPart, options: CompileOptions) -> Callable[[list[Any]], None]:
        program = _Program(part, options)
        self.programs.append(program)
        reads = [self._slot(n) for n in part.inputs]
        makes = [self._slot(n) for n in part.outputs]

        def step(values: list[Any]) -> None:
            for slot, result in zip(makes, program([values[r] for r in reads]), strict=True):
                values[slot] = result

        return step

    def _host(self, call: HostCall) -> Callable[[list[Any]], None]:
        node = call.node
        arguments = [self._template(a) for a in node.args]
        named = {k: self._template(v) for k, v in node.kwargs.items()}
        target: Any = node.target
        slot = self._slot(node)

        def step(values: list[Any]) -> None:
            given = [a(values) for a in arguments]
            values[slot] = target(*given, **{k: v(values) for k, v in named.items()})

        return step

    def _template(self, value: Any) -> Callable[[list[Any]], Any]:
        """An argument as a function of the values."""
        if isinstance(value, fx.Node):
            if value.op == "get_attr":
                found = operator.attrgetter(str(value.target))(self.module)
                return lambda values: found
            if value in self.numbers and value not in self.slots:
                number = self.numbers[value]
                return lambda values: number
            slot = self._slot(value)
            return lambda values: values[slot]
        if isinstance(value, (list, tuple)):
            parts = [self._template(v) for v in value]
            kind = type(value) if type(value) in (list, tuple) else list
            return lambda values: kind([p(values) for p in parts])
        if isinstance(value, slice):
            ends = [self._template(v) for v in (value.start, value.stop, value.step)]
            return lambda values: slice(*(e(values) for e in ends))
        return lambda values: value

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        values = list(args) + [None] * (len(self.slots) - self.first)
        with torch.no_grad():
            for step in self.steps:
                step(values)
            for slot, value in self.writes:
                values[slot].copy_(value(values))
        return tuple([r(values) for r in self.returned])

    def fastest(self) -> Callable[[list[Any]], Any]:
        """A shorter way where all of the graph is one program."""
        single = (
            len(self.lowered.steps) == 1 and isinstance(self.lowered.steps[0], NpuPart) and not self.writes
        )
        if not single:
            return self
        part: Any = self.lowered.steps[0]
        program, reads = self.programs[0], [self.slots[n] for n in part.inputs]
        made = {n: i for i, n in enumerate(part.outputs)}
        if all(isinstance(r, fx.Node) and r in made for r in self.result):
            order = [made[r] for r in self.result]
            if order == list(range(len(part.outputs))):
                return lambda args: program([args[r] for r in reads])

            def direct(args: list[Any]) -> Any:
                results = program([args[r] for r in reads])
                return [results[i] for i in order]

            return direct
        return self


def _is_list_of_ints(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(v, int) for v in value)
