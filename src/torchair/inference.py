"""Inference: compiled models kept on disk from process to process, and sizes that are known beforehand."""

from __future__ import annotations

import enum
import hashlib
import json
import logging
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo.aot_compile_types import SerializableCallable
from torch._guards import TracingContext

import npu_runtime
from ge.identity import compile_identity
from ge.model import packed
from ge.model.folder import CacheFolder
from npu_runtime import environment
from torchair import kept
from torchair.backend import compile_graphs, get_compiler, get_npu_backend, why_wrapped
from torchair.config import CompilerConfig
from torchair.executable import CompiledGraph
from torchair.gears import set_dim_gears
from torchair.identities import Identities, Undescribed
from torchair.kept import Changed, Digests, StoredGraph, Unkept
from torchair.plan import FunctionPlan

__all__ = ["cache_compile", "set_dim_gears"]

_log = logging.getLogger("torchair")
LIMIT_BYTES = 8 << 30  # of graphs in a folder that the caller does not name
_NO_CACHE = {  # AOT Autograd's own files take only inductor's results
    "force_autograd_cache": False,
    "bundled_autograd_cache": False,
    "strict_autograd_cache": False,
    "enable_autograd_cache": False,
}


def cache_compile(
    func: Callable[..., Any],
    *,
    config: CompilerConfig | None = None,
    dynamic: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
    global_rank: int | None = None,
    tp_rank: int | None = None,
    pp_rank: int | None = None,
) -> Callable[..., Any]:
    """A method of a module, compiled for inference and kept on disk for other processes.

    The files are in `cache_dir` (NPU_CACHE_DIR, or `.torchair_cache` in the working directory), one folder a rank. A
    folder that is not named here is bounded: the files unused for longest go first.
    Files are found by the model's structure, versions and sizes of inputs, and used where Dynamo's guards hold and
    parameters and source code are the same. Each set of sizes is a file of its own, whatever `dynamic` says. A
    method that cannot be traced whole is compiled but not kept; the log `torchair` says why.

    >>> model = torch.nn.Linear(3, 2)
    >>> forward = cache_compile(model.forward, cache_dir=".torchair_cache")      # doctest: +SKIP
    """
    module = getattr(func, "__self__", None)
    if not isinstance(module, nn.Module):
        raise TypeError(f"cache_compile takes a method of a torch.nn.Module, got {func!r}")
    ranks = {"global": global_rank, "tp": tp_rank, "pp": pp_rank}
    base = Path(cache_dir) if cache_dir is not None else _default_folder()
    folder = base.joinpath(*(f"{name}_rank_{rank}" for name, rank in ranks.items() if rank is not None))
    files = CacheFolder(base, LIMIT_BYTES, f"**/*{kept.SUFFIX}", f"**/*{packed.SUFFIX}")
    given = config if config is not None else CompilerConfig()
    return _Cached(func, module, given, folder, dynamic, files if cache_dir is None else None)


def _default_folder() -> Path:
    given = environment.text("NPU_CACHE_DIR")
    return Path(given) / "graphs" if given not in ("", environment.OFF) else Path(".torchair_cache")


@dataclass(frozen=True)
class _Entry:
    """A compiled method, and the objects that it is compiled for."""

    function: Any  # Dynamo's AOTCompiledFunction
    identities: Identities


class _Cached:
    """A method with its compiled forms, newest first."""

    def __init__(
        self,
        method: Any,
        module: nn.Module,
        config: CompilerConfig,
        folder: Path,
        dynamic: bool,
        files: CacheFolder | None,
    ) -> None:
        self.method, self.module, self.config, self.folder = method, module, config, folder
        self.dynamic = dynamic
        self.files = files  # to keep within their limit
        self.entries: list[_Entry] = []
        self.names: list[str] | None = None  # of the arguments, with self
        self.plain: Callable[..., Any] | None = None  # what runs where nothing can be kept
        self.loads = self.compiles = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            if self.plain is not None:
                return self.plain(*args, **kwargs)
            for entry in self.entries:
                if self._fits(entry, args, kwargs):
                    try:
                        return entry.function.fn(self.module, *args, **kwargs)
                    except Changed:
                        self.entries.remove(entry)
                        break
            return self._first(args, kwargs)

    def _fits(self, entry: _Entry, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        values = self._values(entry.function, args, kwargs)
        if not entry.function._artifacts.guard_manager.check(values):
            return False
        return entry.identities.hold(values, entry.function.fn.__globals__)

    def _values(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name, as guards read them."""
        artifacts = function._artifacts
        if self.names is None:
            self.names = list(artifacts.signature.parameters)
        if kwargs or len(args) + 1 != len(self.names) or artifacts.runtime_env.closure:
            return dict(function.prepare_f_locals(self.module, *args, **kwargs))
        return dict(zip(self.names, (self.module, *args), strict=True))

    def _loaded(
        self, function: Any, described: Mapping[str, str], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> _Entry | None:
        """A function from a file, if its guards hold for these arguments."""
        values = self._values(function, args, kwargs)
        if not function._artifacts.guard_manager.check(values):
            return None
        identities = Identities.found(described, values, function.fn.__globals__)
        return None if identities is None else _Entry(function, identities)

    # -- the first call with a kind of arguments ---------------------------------------------------------------

    def _first(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        folder = self.folder / self._key(args, kwargs)
        tensors = _tensors(self.module)
        digests = Digests(tensors)
        scope = self.method.__func__.__globals__
        found = kept.load(
            folder,
            digests,
            scope,
            lambda function, described: self._loaded(function, described, args, kwargs),
        )
        if found is not None:
            self.loads += 1
            self.entries.insert(0, found)
            return found.function.fn(self.module, *args, **kwargs)
        try:
            entry, tracer = self._traced(args, kwargs)
        except Unkept as error:
            _log.warning("%s is not kept on disk: %s", self.method.__qualname__, error)
            self.plain = torch.compile(
                self.method, backend=get_npu_backend(compiler_config=self.config), dynamic=self.dynamic
            )
            return self.plain(*args, **kwargs)
        self.compiles += 1
        self.entries.insert(0, entry)
        result = entry.function.fn(self.module, *args, **kwargs)
        try:
            tracer.save(folder, entry, tensors, digests)
            if self.files is not None:
                self.files.bound()
        except (Unkept, Undescribed, OSError) as error:
            _log.warning("%s is not kept on disk: %s", self.method.__qualname__, error)
        return result

    def _traced(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[_Entry, _Tracer]:
        from torch._dynamo.aot_compile import aot_compile_fullgraph
        from torch._dynamo.hooks import Hooks

        tracer = _Tracer(self.config)
        guards = _Guards()
        hooks = Hooks(guard_filter_fn=guards.storable)
        try:
            function = aot_compile_fullgraph(self.method, (tuple(args), dict(kwargs)), hooks, tracer, False)
        except Unkept:
            raise
        except Exception as error:  # Dynamo's refusals are of many kinds
            raise Unkept(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}") from error
        return _Entry(function, guards.identities), tracer

    def _key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The folder of everything that is known before a trace."""
        facts = [
            kept.FORMAT,
            torch.__version__,
            platform.python_version(),
            npu_runtime.version(),
            npu_runtime.num_threads(),
            [self.method.__func__.__module__, self.method.__qualname__],
            [[n, _kind(m), m.training] for n, m in self.module.named_modules(remove_duplicate=False)],
            [[n, _described(t)] for n, t in _tensors(self.module).items()],
            _described(list(args)),
            _described(dict(kwargs)),
            compile_identity(self.config.options()),
            str(torch.get_default_dtype()),
            [torch.is_autocast_enabled("cpu"), str(torch.get_autocast_dtype("cpu"))],
        ]
        digest = hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()
        return f"{type(self.module).__name__}.{self.method.__name__}-{digest[:24]}"


class _Guards:
    """The guards of a trace, divided into those that Dynamo can write and the identities of objects."""

    def __init__(self) -> None:
        self.identities = Identities({})

    def storable(self, guards: Sequence[Any]) -> list[bool]:
        """The guards that can be written.

        They forget the lines of code they come from, which are read again and written out whenever guards are made.
        """
        from torch._dynamo.guards import CheckFunctionManager

        for guard in guards:
            guard.orig_guard.user_stack = guard.orig_guard.stack = None
        refused = set(CheckFunctionManager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES)
        stored = [refused.isdisjoint({g.guard_type, *g.derived_guard_types}) for g in guards]
        self.identities = Identities.of([g for g, kept in zip(guards, stored, strict=True) if not kept])
        return stored


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """A module's parameters and buffers by name."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _described(value: Any) -> Any:
    """What of an argument decides where to look for a file; the guards decide the rest."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), str(value.device), list(value.shape), list(value.stride())]
    if isinstance(value, (list, tuple)):
        return [_described(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, (enum.Enum, os.PathLike)):
        return str(value)
    if isinstance(value, dict):
        return {str(k): _described(v) for k, v in value.items()}
    return repr(value) if isinstance(value, (int, float, str, bool, type(None))) else _kind(value)


class _Live(SerializableCallable):
    """A graph just compiled: remembers the arguments of its first call, whose constants have names in the module."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run
        self.first: Sequence[Any] | None = None

    @classmethod
    def serialize_compile_artifacts(cls, fn: Any) -> bytes:
        raise Unkept("a graph is written as a StoredGraph")

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> Any:
        raise Unkept("a graph is written as a StoredGraph")

    def __call__(self, *args: Any) -> Any:
        if self.first is None:
            self.first = args
        return self.run(*args)


class _Tracer:
    """The backend of one trace: remembers the compiled graph and its plan."""

    compiler_name = "npu"

    def __init__(self, config: CompilerConfig) -> None:
        self.config = config
        self.graphs: list[CompiledGraph] = []
        self.plans: list[FunctionPlan] = []

    def __call__(self, module: fx.GraphModule, example_inputs: list[Any], **options: Any) -> _Live:
        with torch._functorch.config.patch(_NO_CACHE):
            run = compile_graphs(module, example_inputs, self.config, inference=self._compile)
        self.live = _Live(run)
        if len(self.graphs) != 1:
            raise Unkept("it is not one graph for inference")
        return self.live

    def _compile(self, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        context = TracingContext.try_get()
        reason = why_wrapped(context.fw_metadata if context is not None else None)
        if reason:
            raise Unkept(reason)
        graph = get_compiler(self.config, "inference")(module, example_inputs)
        if not isinstance(graph, CompiledGraph):
            raise Unkept("debug.run_eagerly leaves it to ATen")
        tell = graph.on_compile

        def remember(plan: FunctionPlan) -> None:
            self.plans.append(plan)
            if tell is not None:
                tell(plan)

        graph.on_compile = remember
        self.graphs.append(graph)
        return graph

    def save(
        self, folder: Path, entry: _Entry, tensors: Mapping[str, torch.Tensor], digests: Digests
    ) -> None:
        """Write the graph as its first call has compiled it."""
        if len(self.plans) != 1 or self.live.first is None:
            raise Unkept("it could not be compiled for the NPU")
        plan, static = self.plans[0], self.graphs[0].static
        names = _names(tensors, [self.live.first[i] for i in static])
        self.live.first = ()
        models = [program.model for program in plan.programs]
        described = entry.identities.descriptions()
        graph = StoredGraph(plan.form, static)
        kept.save(folder, entry.function, graph, models, digests.of(names), described)


def _names(tensors: Mapping[str, torch.Tensor], wanted: Sequence[torch.Tensor]) -> list[str]:
    places = {_place(t): name for name, t in tensors.items()}
    names = [places.get(_place(t)) for t in wanted]
    if None in names:
        raise Unkept("it reads a constant tensor that is not the module's")
    return [n for n in names if n is not None]


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())
