"""Compiled graphs as callables: programs by concrete shape, parameters bound as constants, calls left to ATen."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from ge import faults
from ge.collection import compile_scope
from ge.compiler import compile_graph
from ge.errors import UserCodeError
from ge.explanation import Placement, explain
from ge.hybrid import Patience, Specialiser
from ge.model.model import Model
from ge.options import CompileOptions
from ge.target.cuda import architecture_of
from npu_runtime import Fetcher, TaskError
from torchair.faults import as_torch_error
from torchair.gears import gears_of
from torchair.gpu import Gpu, gpu_of, options_for
from torchair.lowering import Layout, NpuPart, Refusal, lower
from torchair.plan import FunctionPlan, form_of
from torchair.symbolic import SymbolicPlan

__all__ = ["CompiledGraph", "GraphReport", "observe"]

MAX_SHAPES = (
    8  # sizes of one graph with programs of their own, each with parameters as constants and as inputs
)
_LINE = 64  # bytes of memory that come at once
FIRST_PATIENCE = 16  # calls with unchanged parameters before they become constants again

_observers: list[list[GraphReport]] = []  # gradients are compiled in threads of their own


@dataclass
class GraphReport:
    """How one graph was compiled: NPU and host parts, and the reasons for the host ones."""

    name: str
    kind: str
    npu_calls: int = 0
    parts: int = 0
    refusals: list[Refusal] = field(default_factory=list)
    operators: dict[str, bool] = field(default_factory=dict)
    failure: str = ""
    choices: list[Placement] = field(default_factory=list)  # nodes that a custom operator was there to take
    programs: int = 0  # programs of the engine that were compiled for it so far
    memory: str = ""  # what its tensors are in
    copied_bytes: int = 0  # from the host to the GPU and back in each call, where tensors are the host's

    def note_copies(self, models: Sequence[Model], gpu: Gpu | None) -> None:
        """Count what each call copies, and say so once."""
        plans = [m.plan for m in models if gpu is None and architecture_of(m.plan.report)]
        self.copied_bytes = sum(p.desc.nbytes for plan in plans for p in (*plan.inputs, *plan.outputs))
        if self.copied_bytes:
            _warn_of_copies()


class observe:
    """Collects the reports of graphs compiled in a block.

    >>> with observe() as reports:      # doctest: +SKIP
    ...     model(x)
    """

    def __enter__(self) -> list[GraphReport]:
        self.found: list[GraphReport] = []
        _observers.append(self.found)
        return self.found

    def __exit__(self, *error: object) -> None:
        _observers[:] = [sink for sink in _observers if sink is not self.found]


@functools.cache
def _warn_of_copies() -> None:
    warnings.warn(
        "graphs run on the GPU and their tensors are in the memory of the host: each call copies its inputs to the GPU "
        "and its results back (torchair.explain tells how much). Tensors with device='cuda' are used where they are",
        stacklevel=2,
    )


def _tell(report: GraphReport) -> None:
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
        _resolve_negatives(module)
        self.module = module
        self.kind = kind
        self.options = options
        self.places: list[fx.Node] = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.numbers = [
            i for i, n in enumerate(self.places) if not isinstance(n.meta.get("val"), torch.Tensor)
        ]
        self.static = _unwritten(module, self.places, static) if kind == "inference" else []
        self.plans: Specialiser[Any, Callable[[list[Any]], Any]] = Specialiser(
            2 * MAX_SHAPES, free=MAX_SHAPES
        )
        self.general: dict[
            bool, Callable[[list[Any]], Any]
        ] = {}  # for any sizes; with parameters as constants or not
        self.bound: list[tuple[int, int, int]] | None = None  # position, address, version
        self.fetch = Fetcher([])
        self.calls_unchanged = 0
        self.patience = 0
        self.changes: Patience[None] = Patience(FIRST_PATIENCE)
        self.gears: dict[tuple[int, int], tuple[int, ...]] = {}
        self.lock = self.plans.lock
        self.on_compile = on_compile
        self.reports: list[GraphReport] = []

    # -- calls --------------------------------------------------------------------------------------------------

    def __call__(self, args: list[Any]) -> Any:
        key: Any = tuple([args[i] for i in self.numbers]) if self.numbers else None
        if self.static:
            key = (key, self._settled(args))
        plan = self.plans.find(key)
        if plan is None:
            plan = self._planned(key, args)
        try:
            result = plan(args)
        except TaskError as error:
            raise as_torch_error(error) from error
        args.clear()
        return result

    def _settled(self, args: list[Any]) -> bool:
        """Whether parameters are what the programs hold; when they have changed, they are inputs for a while."""
        bound = self.bound
        if bound is not None:
            self.fetch()
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
                self.patience = self.changes.lengthen(None)
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
        self.fetch = Fetcher([address for i in self.static for address in _records(args[i])])

    def _forget_constants(self) -> None:
        self.general.pop(True, None)
        self.plans.forget(lambda key: isinstance(key, tuple) and key[-1] is True)

    # -- compiling ----------------------------------------------------------------------------------------------

    def _planned(self, key: Any, args: list[Any]) -> Callable[[list[Any]], Any]:
        with self.lock:
            plan = self.plans.find(key)
            if plan is not None:
                return plan
            folded = bool(self.static) and key[-1]
            # PyTorch's trace of an open size takes a slice such as x[:1] for one row, which an empty x does not have.
            empty = any(args[i] == 0 for i in self.numbers)
            general = self.numbers and not empty and not self._is_geared(args) and not self.plans.is_hot(key)
            if general and self._has_aten:
                return self._for_any_sizes(args, folded)
            return self.plans.program(key, lambda: self._compiled(args, folded))

    def _is_geared(self, args: list[Any]) -> bool:
        """Whether the sizes are among those that the user has announced."""
        if not self.gears:
            self.gears = gears_of(args)
        return bool(self.gears) and all(
            args[position].shape[axis] in sizes for (position, axis), sizes in self.gears.items()
        )

    @functools.cached_property
    def _has_aten(self) -> bool:
        return _runs_on_aten(self.module)

    def _for_any_sizes(self, args: list[Any], folded: bool) -> Callable[[list[Any]], Any]:
        """The graph with its sizes open."""
        if folded not in self.general:
            self.general[folded] = self._opened(args, folded)
        return self.general[folded]

    @compile_scope()
    def _opened(self, args: list[Any], folded: bool) -> Callable[[list[Any]], Any]:
        report = GraphReport(self.module._get_name(), self.kind)
        self.reports.append(report)

        def note(model: Model) -> None:
            report.programs += 1
            report.note_copies([model], plan.gpu)
            report.choices += [row for row in explain(model) if row.choice and row not in report.choices]

        try:
            constants = {self.places[i]: args[i] for i in self.static} if folded else {}
            gpu, options = self._target(report)
            plan = SymbolicPlan(self.module, self.places, constants, options, note, gpu)
            report.operators, report.refusals = plan.operators, plan.reasons()
            report.npu_calls, report.parts = len(plan.native), len(plan.parts)
            return plan if plan.parts else self._on_aten
        except Exception as error:  # a fault of ours must not stop the user's program
            return self._given_up(report, error)
        finally:
            _tell(report)

    def _given_up(self, report: GraphReport, error: Exception) -> Callable[[list[Any]], Any]:
        if isinstance(error, UserCodeError):
            raise error
        if isinstance(error, faults.REFUSALS):
            report.failure = f"{type(error).__name__}: {error}"
            warnings.warn(
                f"a graph could not be compiled for the NPU and runs on ATen: {report.failure}", stacklevel=3
            )
        else:
            report.failure = str(faults.absorb(f"{self.kind} graph {self.module._get_name()}", error))
        return self._on_aten

    def _on_aten(self, args: list[Any]) -> Any:
        """The graph as it is, call by call."""
        return self.module(*args)

    @compile_scope()
    def _compiled(self, args: list[Any], folded: bool) -> Callable[[list[Any]], Any]:
        report = GraphReport(self.module._get_name(), self.kind)
        self.reports.append(report)
        try:
            values = self._values(args)
            constants = {self.places[i]: args[i] for i in self.static} if folded else {}
            layouts = {
                n: Layout.of(a) for n, a in zip(self.places, args, strict=True) if isinstance(a, torch.Tensor)
            }
            gpu, options = self._target(report)
            lowered = lower(self.module, values, constants, layouts, self.free)
            report.npu_calls, report.refusals = lowered.npu_calls, lowered.refusals
            report.operators = lowered.operators
            report.parts = sum(isinstance(s, NpuPart) for s in lowered.steps)
            models = [
                compile_graph(part.graph, options, "torch", part.donated)
                for part in lowered.steps
                if isinstance(part, NpuPart)
            ]
            report.programs = len(models)
            report.choices = [row for model in models for row in explain(model) if row.choice]
            report.note_copies(models, gpu)
            training = self.kind != "inference" and not self.numbers
            form = form_of(self.module, self.places, lowered, values, gpu)
            plan = FunctionPlan(form, models, lowered, training)
            if self.on_compile is not None:
                self.on_compile(plan)
            return plan.fastest()
        except Exception as error:  # a fault of ours must not stop the user's program
            return self._given_up(report, error)
        finally:
            _tell(report)

    def _target(self, report: GraphReport) -> tuple[Gpu | None, CompileOptions]:
        """The GPU whose memory the tensors are in, None for the host's, and the options for it."""
        gpu = gpu_of(n.meta.get("val") for n in self.module.graph.nodes)
        report.memory = "the host" if gpu is None else f"GPU {gpu.index}"
        return gpu, options_for(self.options, gpu)

    def _values(self, args: list[Any]) -> dict[fx.Node, Any]:
        """The fake result of each node in concrete sizes."""
        if not self.numbers:
            return {n: n.meta["val"] for n in self.module.graph.nodes if "val" in n.meta}
        return _concrete(self.module, args)


def _records(tensor: torch.Tensor) -> list[int]:
    """Where the lines of memory are that tell a tensor's version and address: its own and its storage's records.

    A model in between leaves none of them in the caches; 300 parameters, one by one, take 0.15 ms more.
    """
    own, storage = tensor._cdata, tensor.untyped_storage()._cdata
    return [id(tensor), own, own + _LINE, own + 2 * _LINE, storage, storage + _LINE]


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


def _resolve_negatives(module: fx.GraphModule) -> None:
    """Read arguments that are the negative of their memory (`z.conj().imag`) through a copy; write them in place."""
    places = [n for n in module.graph.nodes if n.op == "placeholder"]
    for place in places:
        value = place.meta.get("val")
        if not isinstance(value, torch.Tensor) or not value.is_neg():
            continue
        with module.graph.inserting_after(places[-1]):
            read = module.graph.call_function(torch.ops.aten.resolve_neg.default, (place,))
        read.meta = {**place.meta, "val": value.resolve_neg()}
        place.replace_all_uses_with(read, lambda user, read=read: user is not read and not _writes(user))
        module.recompile()


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


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
