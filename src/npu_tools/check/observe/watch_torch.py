"""Observes a PyTorch script, on the CPU or with its modules compiled for the NPU.

1. A step ends with an optimizer's `step`; its loss is what `backward` was called on. Without an optimizer, a call of
   the outermost module is a step.
2. On the NPU, outermost modules are compiled with the backend `npu` when they are first called, `torch.compile` uses
   that backend, and `cuda` means `npu`. In the plain run, `npu` and `cuda` mean the CPU.
"""

from __future__ import annotations

import re
import runpy
import sys
import time
import types
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.data import dataloader

from ge.distributions import ascend
from npu_tools.check.drawing import DrawnNode, draw
from npu_tools.check.observe.batch_sizes import Repeatable, common_batch
from npu_tools.check.observe.patching import around
from npu_tools.check.observe.watcher import Watcher
from npu_tools.check.recorder import Recorder
from npu_tools.check.request import Request

__all__ = ["TorchWatcher"]

_READS = ("item", "tolist", "numpy", "cpu", "__float__", "__int__", "__bool__")
_DEVICES = ("npu", "cuda")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_NAMED = 8


class _OnHost(TorchFunctionMode):
    """`npu` and `cuda` mean the CPU."""

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _DEVICES:  # tensor.npu(), tensor.cuda()
            return args[0]
        args, kwargs = pytree.tree_map(_host_device, (args, kwargs or {}))
        return func(*args, **kwargs)


def _host_device(value: Any) -> Any:
    if isinstance(value, str) and value.partition(":")[0] in _DEVICES:
        return "cpu"
    if isinstance(value, torch.device) and value.type in _DEVICES:
        return torch.device("cpu")
    return value


class TorchWatcher(Watcher):
    """Sets up PyTorch for one side, runs the script and collects the compiled graphs."""

    def __init__(self, request: Request, recorder: Recorder) -> None:
        super().__init__(request, recorder)
        self._ended = 0.0
        self._spent: dict[str, float] = defaultdict(float)
        self._half: dict[str, float] | None = None
        self._steps: dict[str, Repeatable] = {}  # calls of modules by name
        self._calls: list[tuple[Any, Counter[str]]] = []  # operators of a report, and how many calls of each
        self.reports: list[Any] = []
        self._observing: Any = None
        self._graph: tuple[Any, frozenset[str]] | None = None  # the largest one, and its nodes on the host
        self._compiled: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        if request.side == "npu":
            self._use_npu()
        if request.other_kernels:
            torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
            torch.set_num_threads(1)
        torch.manual_seed(request.seed)
        self._install()

    def _use_npu(self) -> None:
        ascend("torch_npu.contrib.transfer_to_npu")
        from npu_tools.check.observe import recorded
        from npu_tools.check.observe.capture import Capture
        from torchair import executable

        recorded.start()
        self._observing = executable.observe()
        self.reports = self._observing.__enter__()
        self.captured = Capture(self.request).watch_torch()
        around(torch, "compile", lambda original: lambda *a, **k: original(*a, **(k | {"backend": "npu"})))
        around(executable, "lower", self._lowered)

    def _install(self) -> None:
        around(torch.nn.Module, "__call__", self._module_call)
        around(torch.Tensor, "backward", self._backward)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        around(dataloader._BaseDataLoaderIter, "__next__", self._next)
        for name in _READS:
            around(torch.Tensor, name, self._read(name))

    # -- hooks -------------------------------------------------------------------------------------------------

    def _module_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self.recorder

        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or recorder.busy or not recorder.roots.here():
                return original(module, *args, **kwargs)
            name = type(module).__name__
            if isinstance(module, torch.nn.modules.loss._Loss):
                return original(module, *args, **kwargs)
            recorder.check_limit("call", name)
            called = self._on_npu(module)
            begin = recorder.now()
            torch.nn.Module.__call__ = original  # type: ignore[method-assign]  # Dynamo must not see this function
            try:
                with recorder.inside():
                    result = original(called, *args, **kwargs)
                    recorder.output(name, _floats(result))
            finally:
                torch.nn.Module.__call__ = call  # type: ignore[method-assign]
            self._spent["calls"] += recorder.now() - begin
            recorder.step("call", name, begin, None, recorder.roots.here())
            if name not in self._steps:
                self._steps[name] = self._repeatable(called, args, kwargs)
            return result

        return call

    def _repeatable(self, module: Any, args: Any, kwargs: Any) -> Repeatable:
        """A call of a module with more or fewer rows; where the script trains, with its gradients."""
        given = pytree.tree_map(_copied, (args, kwargs))
        shapes = [tuple(a.shape) for a in pytree.tree_leaves(given) if isinstance(a, torch.Tensor)]

        def step(batch: int) -> Callable[[], Any]:
            more, named = pytree.tree_map(lambda a: _rows(a, batch), given)
            return lambda: self._repeated(module, more, named)

        return Repeatable(lambda: common_batch(shapes), step)

    def _repeated(self, module: Any, args: Any, kwargs: Any) -> None:
        series = self.recorder.main_series()
        training = series is not None and series.kind == "optimizer"
        with torch.set_grad_enabled(training):
            results = pytree.tree_leaves(module(*args, **kwargs))
            made = [r for r in results if isinstance(r, torch.Tensor) and r.is_floating_point()]
            if training and any(r.requires_grad for r in made):
                sum(r.float().sum() for r in made if r.requires_grad).backward()  # type: ignore[union-attr]
                module.zero_grad()

    def _on_npu(self, module: Any) -> Any:
        """The module compiled for the NPU; unchanged in the plain run or if the script compiled it."""
        compiled = type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None
        if self.request.side != "npu" or compiled:
            return module
        if module not in self._compiled:
            self._compiled[module] = torch.compile(module, backend="npu")
        return self._compiled[module]

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self.recorder

        def backward(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            with recorder.inside():
                if tensor.numel() == 1:
                    recorder.loss(float(tensor.detach()))
                result = original(tensor, *args, **kwargs)
            self._spent["calls"] += time.perf_counter() - begin
            return result

        return backward

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        del args, kwargs
        self.recorder.check_limit("optimizer", type(optimizer).__name__)
        self._stepping = time.perf_counter()

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        del args, kwargs
        recorder = self.recorder
        self._spent["host"] += time.perf_counter() - self._stepping
        recorder.step("optimizer", type(optimizer).__name__, self._ended, None, recorder.roots.here())
        self._ended = recorder.now()
        if recorder.steps_done() == max(1, self.request.steps // 2):
            self._half = dict(self._spent)

    def _next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self.recorder

        def following(iterator: Any) -> Any:
            begin = time.perf_counter()
            try:
                return original(iterator)
            finally:
                waited = time.perf_counter() - begin
                self._spent["input"] += waited
                recorder.wait(waited, recorder.roots.here())

        return following

    def _read(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        recorder = self.recorder

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
                if not recorder.busy and not torch.compiler.is_compiling():
                    recorder.read(name.strip("_"), sys._getframe(1))
                return original(tensor, *args, **kwargs)

            return read

        return make

    def _lowered(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Keep the largest graph that is compiled, and count the calls of each operator."""

        def lower(module: Any, *args: Any, **kwargs: Any) -> Any:
            made = original(module, *args, **kwargs)
            called = Counter(str(n.target) for n in module.graph.nodes if n.op == "call_function")
            self._calls.append((made.operators, called))
            if self._graph is None or len(module.graph.nodes) > len(self._graph[0].nodes):
                self._graph = module.graph, frozenset(refusal.node for refusal in made.refusals)
            return made

        return lower

    # -- the run -----------------------------------------------------------------------------------------------

    def run(self, path: str) -> None:
        """Run the script as `python path` would."""
        if self.request.side == "npu":
            runpy.run_path(path, run_name="__main__")
            return
        sys.modules.setdefault("torch_npu", _inert("torch_npu"))
        around(torch, "compile", _plain_compile)
        with _OnHost():
            runpy.run_path(path, run_name="__main__")

    def location(self, node: str) -> str:
        """The user's line of a node."""
        return "" if self.captured is None else str(self.captured.line(node, self.line))

    def repeatable(self) -> Repeatable | None:
        """The step in a form that can be repeated with another batch."""
        return next(iter(self._steps.values()), None)

    def seen(self) -> dict[str, Any]:
        """The NPU's work so far: devices, operators, memory, times."""
        import npu_runtime
        from npu_tools.check.observe.recorded import Recorded

        done = Recorded(self.recorder)
        self._observing.__exit__(None, None, None)
        return {
            "devices": [f"npu:{i}" for i in range(torch.npu.device_count())],  # type: ignore[attr-defined]
            "operators": self._operators(),
            "graph": self._graphs(),
            "drawing": self._drawing(),
            "npu_memory": dict(npu_runtime.memory_info()),
            "kernels": done.kernels(),
            "spans": done.last_steps(),
            "spent": self._where(done),
        }

    def _where(self, done: Any) -> dict[str, float]:
        """Breakdown of the seconds of the later half of the training steps."""
        series = self.recorder.main_series()
        if series is None or series.kind != "optimizer" or self._half is None:
            return {}
        steps = series.steps[max(1, self.request.steps // 2) :]
        if not steps:
            return {}
        total = steps[-1].end - steps[0].begin
        parts = {name: self._spent[name] - self._half.get(name, 0.0) for name in ("calls", "input", "host")}
        return {
            "total": total,
            "NPU": min(parts["calls"], done.seconds(steps[0].begin, steps[-1].end)),
            "input": parts["input"],
            "host": parts["host"],
            "between": max(0.0, total - sum(parts.values())),
            "steps": float(len(steps)),
        }

    def _operators(self) -> list[dict[str, Any]]:
        rows: dict[tuple[str, str, str], dict[str, Any]] = {}
        for report in self.reports:
            refused = {refusal.operator for refusal in report.refusals}
            counted = (calls for operators, calls in self._calls if operators is report.operators)
            called: Counter[str] = next(counted, Counter())
            for operator, on_npu in report.operators.items():
                if on_npu and operator not in refused:
                    _row(rows, operator, "NPU", "")["count"] += called.get(operator, 1)
            for refusal in report.refusals:
                row = _row(rows, refusal.operator, "host", refusal.reason)
                row["count"] += 1
                row["nodes"] = [*row["nodes"], refusal.node][:_NAMED]
                line = self.line(refusal.trace)
                if line and line not in row["locations"]:
                    row["locations"].append(line)
            if report.failure:
                _row(rows, report.name, "host", report.failure)["count"] += 1
        for row in rows.values():
            row["calls"] = self.recorder.steps_done()  # graphs are those of modules, which steps call
        return sorted(rows.values(), key=lambda row: (row["place"] == "NPU", -row["count"]))

    def line(self, trace: str) -> str:
        """The innermost line of the user's in a stack trace of PyTorch."""
        roots = self.recorder.roots
        own = [(file, line) for file, line in _FRAME.findall(trace) if roots.owns(file)]
        return f"{roots.name(own[-1][0])}:{own[-1][1]}" if own else ""

    def _drawing(self) -> dict[str, Any]:
        """The layers of the largest graph and how they are connected."""
        if self._graph is None:
            return {}
        graph, on_host = self._graph
        nodes = [node for node in graph.nodes if node.op == "call_function"]
        names = {node: f"{_module_of(node)}{node.name}" for node in nodes}
        return draw(
            DrawnNode(
                names[node], _operator(node), "host" if node.name in on_host else "NPU",
                tuple(names[source] for source in node.all_input_nodes if source in names),
                location=self.line(str(node.meta.get("stack_trace") or "")) if node.name in on_host else "",
            )
            for node in nodes
        )  # fmt: skip

    def _graphs(self) -> list[dict[str, Any]]:
        groups = []
        for index, report in enumerate(self.reports):
            on_npu = Counter(name for name, npu in report.operators.items() if npu)
            groups.append(_group(index, "NPU", f"{report.kind} graph", report.npu_calls, on_npu))
            if report.refusals:
                host = Counter(refusal.operator for refusal in report.refusals)
                lines = list(dict.fromkeys(filter(None, (self.line(r.trace) for r in report.refusals))))
                groups.append(
                    _group(index, "host", "ATen", sum(host.values()), host) | {"locations": lines[:_NAMED]}
                )
        return groups


def _operator(node: Any) -> str:
    """The name of an operator of PyTorch, or of a function of Python."""
    return str(node.target) if isinstance(node.target, torch._ops.OpOverload) else node.target.__name__


def _module_of(node: Any) -> str:
    """The module that a node, or what it is the gradient of, was traced in, as a scope."""
    ahead, back = (node.meta.get(f"{kind}nn_module_stack") or {} for kind in ("", "fwd_"))
    stack = [path for path, _ in (ahead or back).values()]
    path = re.sub(r"\['?(\w+)'?\]", r".\1", stack[-1]) if stack else ""
    parts = [part for part in path.split(".") if part not in ("L", "self", "module", "_modules", "")]
    return "".join(f"{part}/" for part in (["gradient"] if back and not ahead else []) + parts)


def _group(index: int, place: str, engine: str, nodes: int, operators: Counter[str]) -> dict[str, Any]:
    named = operators.most_common(8)
    return {
        "step": index,
        "place": place,
        "engine": engine,
        "nodes": nodes,
        "operators": named,
        "scopes": named,
        "locations": [],
    }


def _row(
    rows: dict[tuple[str, str, str], dict[str, Any]], operator: str, place: str, reason: str
) -> dict[str, Any]:
    fresh: dict[str, Any] = {
        "operator": operator, "place": place, "reason": reason, "remedy": "", "count": 0, "flops": 0.0,
        "eager": False, "calls": 0, "nodes": [], "locations": [],
    }  # fmt: skip
    return rows.setdefault((operator, place, reason), fresh)


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _rows(value: Any, batch: int) -> Any:
    """Resize a tensor to another number of rows; return other values unchanged."""
    if not isinstance(value, torch.Tensor) or not value.dim():
        return value
    return value[torch.arange(batch) % len(value)]


def _floats(value: Any) -> list[np.ndarray]:
    found = []
    for item in pytree.tree_leaves(value):
        if isinstance(item, torch.Tensor) and item.is_floating_point() and item.numel():
            found.append(item.detach().to("cpu", torch.float32).numpy().copy())
    return found


def _plain_compile(original: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compile` in the plain run: eager, where the script asks for the NPU's backend."""

    def compile(*args: Any, **kwargs: Any) -> Any:
        backend = kwargs.get("backend", "inductor")
        ours = backend == "npu" or "torchair" in str(getattr(backend, "__module__", ""))
        return original(*args, **(kwargs | {"backend": "eager"} if ours else kwargs))

    return compile


def _inert(name: str) -> types.ModuleType:
    """A stub module with every name, for imports whose only purpose is the device."""
    module = types.ModuleType(name)
    module.__path__ = []
    module.__getattr__ = lambda attribute: _missing(attribute)  # type: ignore[method-assign]
    return module


def _missing(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda *args, **kwargs: None
