"""Captures the graphs that a run compiles, with the inputs of their first calls, to analyse their layers."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ge.options import CompileOptions
from ge.options.table import Option
from npu_tools.check.observe.patching import around
from npu_tools.check.request import Request

__all__ = ["Capture"]

_MOST_PIECES = 6
_SMALL = 0.1  # graphs below this share of the largest one's nodes are left out
_DUMPS = ("enable_dump", "enable_dump_debug", "data_dump_type")  # options of scripts that ask for tensors


class Capture:
    """Graphs, the inputs of their first calls, and how the framework computes them.

    Captured if the request includes layers, or if the script enables tensor dumps or overflow detection, which the
    report's tables replace.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self.asked: list[str] = []
        around(Option, "parse", self._parsed)
        self._graphs: dict[str, Any] = {}
        self._feeds: dict[str, list[np.ndarray]] = {}
        self._frameworks: dict[str, Any] = {}
        self._options: dict[str, CompileOptions] = {}
        self._plans: dict[str, Any] = {}
        self._sources: dict[str, tuple[Any, Any]] = {}
        self._parsing = threading.local()
        self._ended = False

    def end(self) -> None:
        """Stop capturing: the script has ended."""
        self._ended = True

    def watch_tensorflow(self) -> Capture:
        """Capture the functions of TensorFlow 2 and the parts of TensorFlow 1 sessions."""
        from tf_adapter import callbacks, lowering

        around(lowering, "compile_plan", self._compiled)
        around(callbacks, "npu_plan", self._planned)
        around(lowering, "_attempt", self._attempted)
        return self

    def watch_torch(self) -> Capture:
        """Capture the graphs of `torch.compile`."""
        from torchair import executable

        around(executable, "compile_graph", self._loaded)
        around(executable.CompiledGraph, "_compiled", self._traced)
        return self

    @property
    def wanted(self) -> bool:
        """True if layers are to be analysed."""
        return bool(self._request.layers or self._request.mixlist or self.asked)

    def _parsed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def parse(option: Any, value: Any, spelling: str = "") -> Any:
            found = original(option, value, spelling)
            if option.name in _DUMPS and found and option.name not in self.asked:
                self.asked.append(option.name)
            return found

        return parse

    # -- TensorFlow --------------------------------------------------------------------------------------------

    def _attempted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Note the parsed function: it is compiled next, on the same thread."""

        def attempt(request: Any, functions: Any, *args: Any) -> Any:
            self._parsing.source = (request.graph, functions)
            return original(request, functions, *args)

        return attempt

    def _compiled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile(graph: Any, options: Any = None, name: str = "model", *args: Any, **kwargs: Any) -> Any:
            if self._ended or not self.wanted:
                return original(graph, options, name, *args, **kwargs)
            copy, source = graph.clone(), self._parsing.source
            plan = original(graph, options, name, *args, **kwargs)
            key = f"{name} {hash(tuple(source[0].nodes))}"  # sessions call all of their parts alike
            if key not in self._feeds:
                self._graphs[key], self._options[key] = copy, options or CompileOptions.from_environment()
                self._plans[key], self._sources[key] = plan, source
            return plan

        return compile

    def _planned(self, original: Callable[..., Any]) -> Callable[..., Any]:
        from npu_tools.check.observe.frameworks import FlatFunction

        def plan(run: Any, inputs: Sequence[Any]) -> Any:
            model, ports = run.lowered.model, run.lowered.ports
            key = next((key for key, made in self._plans.items() if made is model.plan), None)
            if key is not None and key not in self._feeds and not self._ended:
                self._feeds[key] = [
                    np.zeros(2, np.uint64) if kind == "random" else np.array(inputs[index].numpy())
                    for kind, index in ports.inputs
                ]
                self._frameworks[key] = FlatFunction(*self._sources[key], inputs)
            return original(run, inputs)

        return plan

    # -- PyTorch -----------------------------------------------------------------------------------------------

    def _traced(self, original: Callable[..., Any]) -> Callable[..., Any]:
        from npu_tools.check.observe.frameworks import FxGraph

        def compiled(graph: Any, args: list[Any], folded: bool) -> Any:
            if self._ended or not self.wanted:
                return original(graph, args, folded)
            first = len(self._graphs)
            framework = FxGraph(graph.module, args)
            try:
                return original(graph, args, folded)
            finally:
                self._frameworks |= {str(number): framework for number in range(first, len(self._graphs))}

        return compiled

    def _loaded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile(graph: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
            model = original(graph, options, *args, **kwargs)
            if self._ended or not self.wanted:
                return model
            name = f"{len(self._graphs)}"
            self._graphs[name], self._options[name] = graph.clone(), options
            model.program = _Watched(
                model.program, model.inputs, lambda feeds: self._feeds.setdefault(name, feeds)
            )
            return model

        return compile

    # -- the result --------------------------------------------------------------------------------------------

    def line(self, node: str, location_of: Callable[[str], str]) -> str:
        """The user's line of a node, by the framework that computes it."""
        lines = (framework.line(location_of)(node) for framework in self._frameworks.values())
        return next(filter(None, lines), "")

    def analyse(
        self, location_of: Callable[[str], str], tell: Callable[[str, int, int], None]
    ) -> dict[str, Any]:
        """Analyse the layers of the captured graphs in the order of their first calls, without the small ones.

        `location_of` gives the user's line of a node of TensorFlow's, or of a stack trace of PyTorch's.
        """
        from npu_tools.check import layers

        if not self.wanted:
            return {}
        request = replace(self._request, layers=self._request.layers or bool(self.asked))
        sizes = {
            name: len(list(self._graphs[name]))
            for name, feeds in self._feeds.items()
            if len(self._graphs[name].inputs) == len(feeds)
        }
        large = [name for name, size in sizes.items() if size >= _SMALL * max(sizes.values())]
        if not large:
            return {
                "precision": {"modes": {}, "verdict": "Not compared with float64: no graph was compiled."}
            }
        chosen = sorted(large, key=lambda name: -sizes[name])[:_MOST_PIECES]
        pieces = []
        for name in (n for n in large if n in chosen):
            framework = self._frameworks.get(name)
            line = location_of if framework is None else framework.line(location_of)
            pieces.append(
                layers.Piece(self._graphs[name], self._feeds[name], framework, line, self._options[name])
            )
        found = layers.analyse(pieces, request, tell)
        if self.asked and "precision" in found:
            said = f"The script asks for the values of layers: {', '.join(self.asked)}."
            found["precision"].setdefault("notes", []).append(said)
        return found


class _Watched:
    """A program that captures the inputs of its first call."""

    def __init__(self, program: Any, ports: Sequence[Any], tell: Callable[[list[np.ndarray]], Any]) -> None:
        self._program, self._ports, self._tell = program, ports, tell
        self._told = False

    def run_pointers(self, inputs: Sequence[int], outputs: Sequence[int], guests: bool = False) -> Any:
        """Run; the inputs of the first call are copied before."""
        if not self._told:
            self._told = True
            self._tell([_at(int(i), port.desc) for i, port in zip(inputs, self._ports, strict=True)])
        return self._program.run_pointers(inputs, outputs, guests)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)


def _at(address: int, desc: Any) -> np.ndarray:
    """A copy of the dense array at an address."""
    from ge.ir.types import numpy_dtype

    dtype = np.dtype(numpy_dtype(desc.dtype))
    count = int(np.prod(desc.shape, dtype=np.int64))
    if not count:
        return np.zeros(desc.shape, dtype)
    raw = ctypes.string_at(address, count * dtype.itemsize)
    return np.frombuffer(raw, dtype, count).reshape(desc.shape).copy()
