"""The frameworks' own values of the nodes of a graph, from the inputs that the NPU had."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

__all__ = ["FlatFunction", "FxGraph"]

_COUNTED = "NpuCounted"  # operators that take the place of TensorFlow's random ones
_WRITES = ("Apply", "Assign")  # updates of variables, whose result is the variable
_serial = itertools.count()


class FlatFunction:
    """A TensorFlow function, or part of a graph, that TensorFlow runs on the host with more results."""

    def __init__(self, graph: Any, functions: Any, inputs: Sequence[Any]) -> None:
        import tensorflow as tf

        self.name = f"TensorFlow {tf.__version__}"
        self._graph, self._functions = graph, functions
        self._kinds = [given.kind for given in inputs]
        self._arrays = [None if given.kind == "host" else np.array(given.numpy()) for given in inputs]

    def line(self, location_of: Callable[[str], str]) -> Callable[[str], str]:
        """The user's line by node."""
        return location_of

    def values(self, nodes: Sequence[str]) -> Mapping[str, np.ndarray]:
        """The results of nodes by name."""
        import tensorflow as tf
        from tensorflow.python.eager import context, execute

        from tf_adapter.randomness import COUNTED

        graph = self._graph
        if "host" in self._kinds:
            raise ValueError("it reads an object that only the host has")
        if any(node.op in COUNTED or node.op.startswith(_COUNTED) for node in graph.nodes.values()):
            raise ValueError("its random numbers cannot be drawn again")
        found = {name: graph.nodes[name] for name in nodes if name in graph.nodes}
        known = [name for name, n in found.items() if len(n.types) == 1 and not n.op.startswith(_WRITES)]
        name = f"{graph.name}_layers_{next(_serial)}"
        handles = {
            arg: replace(graph.nodes[arg], types=(tf.resource.as_datatype_enum,))
            for arg, kind in zip(graph.args, self._kinds, strict=True)
            if kind == "variable"
        }
        asked = [(node, 0) for node in known]
        widened = replace(graph, nodes=graph.nodes | handles, results=asked, effects=[])
        context.context().add_function_def(widened.pruned().function_def(self._functions, name))
        with context.eager_mode(), tf.device("/CPU:0"):
            resources = [kind == "variable" for kind in self._kinds]
            variables = [
                tf.compat.v2.Variable(array) if resource else tf.constant(array)
                for resource, array in zip(resources, self._arrays, strict=True)
            ]
            given = [v.handle if resource else v for resource, v in zip(resources, variables, strict=True)]
            results = execute.execute(name, len(known), given, None, context.context())
        arrays = {node: np.asarray(result.numpy()) for node, result in zip(known, results, strict=True)}
        return {node: array for node, array in arrays.items() if array.dtype.kind in "fV"}


class FxGraph:
    """An ATen graph that PyTorch runs on the host, node by node."""

    def __init__(self, module: Any, arguments: Sequence[Any]) -> None:
        import torch

        self.name = f"PyTorch {torch.__version__}"
        self._module = module
        self._arguments = [
            a.detach().to("cpu", copy=True) if isinstance(a, torch.Tensor) else a for a in arguments
        ]

    def line(self, location_of: Callable[[str], str]) -> Callable[[str], str]:
        """The user's line by node, where it is known by stack trace."""
        traces = {n.name: n.meta.get("stack_trace") or "" for n in self._module.graph.nodes}
        return lambda node: location_of(traces.get(node, ""))

    def values(self, nodes: Sequence[str]) -> Mapping[str, np.ndarray]:
        """The results of nodes by name."""
        import torch

        wanted, found = set(nodes), {}

        class Host(torch.fx.Interpreter):
            def run_node(self, n: Any) -> Any:
                result = super().run_node(n)
                if n.name in wanted and isinstance(result, torch.Tensor) and result.is_floating_point():
                    found[n.name] = result.detach().to(torch.float32).numpy().copy()
                return result

            def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
                return super().call_function(
                    target, args, kwargs | ({"device": "cpu"} if "device" in kwargs else {})
                )

        with torch.no_grad():
            Host(self._module).run(*self._arguments)
        return found
