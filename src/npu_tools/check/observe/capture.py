"""Keeps the graphs that are compiled in a run, with the inputs of their first call, to look at their layers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from npu_tools.check.observe.patching import around
from npu_tools.check.request import Request

__all__ = ["Capture"]


class Capture:
    """Graphs and the inputs of their first calls; the largest one is analysed."""

    def __init__(self) -> None:
        self._graphs: dict[str, Any] = {}
        self._feeds: dict[str, list[np.ndarray]] = {}

    def watch_tensorflow(self) -> Capture:
        """Keep the functions of TensorFlow 2 and the parts of TensorFlow 1's sessions."""
        from tf_adapter import callbacks, lowering

        around(lowering, "compile_plan", self._compiled)
        around(callbacks, "npu_plan", self._planned)
        return self

    def watch_torch(self) -> Capture:
        """Keep the graphs of `torch.compile`."""
        from torchair import executable

        around(executable, "compile_graph", self._loaded)
        return self

    def _compiled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile(graph: Any, options: Any = None, name: str = "model", *args: Any, **kwargs: Any) -> Any:
            self._graphs[name] = graph.clone()
            return original(graph, options, name, *args, **kwargs)

        return compile

    def _planned(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def plan(run: Any, inputs: Sequence[Any]) -> Any:
            model, ports = run.lowered.model, run.lowered.ports
            if model.name in self._graphs and model.name not in self._feeds:
                self._feeds[model.name] = [
                    np.zeros(2, np.uint64) if kind == "random" else np.array(inputs[index].numpy())
                    for kind, index in ports.inputs
                ]
            return original(run, inputs)

        return plan

    def _loaded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile(graph: Any, *args: Any, **kwargs: Any) -> Any:
            model = original(graph, *args, **kwargs)
            name = f"{len(self._graphs)}"
            self._graphs[name] = graph.clone()
            model.program = _Watched(
                model.program, model.inputs, lambda feeds: self._feeds.setdefault(name, feeds)
            )
            return model

        return compile

    def analyse(self, request: Request, location_of: Callable[[str], str]) -> dict[str, Any]:
        """The layers of the largest graph that was compiled."""
        from npu_tools.check import layers

        usable = [name for name in self._feeds if len(self._graphs[name].inputs) == len(self._feeds[name])]
        if not usable:
            return {
                "precision": {"modes": {}, "verdict": "Not compared with float64: no graph was compiled."}
            }
        largest = max(usable, key=lambda name: len(list(self._graphs[name])))
        found = layers.analyse(self._graphs[largest], self._feeds[largest], request, location_of)
        found.pop("exact_outputs", None)  # those of a function are not results of the script
        return found


class _Watched:
    """A program that tells the inputs of its first call."""

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
