"""Keeps the graphs that are compiled in a run, with the inputs they are compiled for, to look at their layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from npu_tools.check.observe.patching import around
from npu_tools.check.request import Request

__all__ = ["Capture"]


class Capture:
    """The graphs of compiled functions and the inputs of their first calls; the largest one is analysed."""

    def __init__(self) -> None:
        self._graphs: dict[str, Any] = {}
        self._feeds: dict[str, list[np.ndarray]] = {}
        from tf_adapter import callbacks, lowering

        for name in ("compile_graph", "compile_plan"):
            around(lowering, name, self._compiled)
        around(callbacks, "npu_plan", self._planned)

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

    def analyse(self, request: Request, location_of: Callable[[str], str]) -> dict[str, Any]:
        """The layers of the largest graph that was compiled."""
        from npu_tools.check import layers

        usable = [name for name in self._feeds if len(self._graphs[name].inputs) == len(self._feeds[name])]
        if not usable:
            return {
                "precision": {"modes": {}, "verdict": "Not compared with float64: no function was compiled."}
            }
        largest = max(usable, key=lambda name: len(list(self._graphs[name])))
        return layers.analyse(self._graphs[largest], self._feeds[largest], request, location_of)
