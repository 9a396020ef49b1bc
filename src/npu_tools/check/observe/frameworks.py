"""Evaluates the nodes of a graph with the framework, on the NPU's inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from npu_tools.check.layers import Drawn

__all__ = ["FlatFunction", "FxGraph"]

_COUNTED = "NpuCounted"  # operators that take the place of TensorFlow's random ones
_WRITES = ("Apply", "Assign")  # updates of variables, whose result is the variable
_serial = itertools.count()


class FlatFunction:
    """A TensorFlow function or subgraph that TensorFlow runs on the host with additional outputs."""

    def __init__(self, graph: Any, functions: Any, inputs: Sequence[Any]) -> None:
        import tensorflow as tf

        self.name = f"TensorFlow {tf.__version__}"
        self._graph, self._functions = graph, functions
        self._kinds = [given.kind for given in inputs]
        self._arrays = [None if given.kind == "host" else np.array(given.numpy()) for given in inputs]

    def line(self, location_of: Callable[[str], str]) -> Callable[[str], str]:
        """The user's line by node."""
        return location_of

    def values(self, nodes: Sequence[str], drawn: Drawn) -> Mapping[str, np.ndarray]:
        """The results of nodes by name."""
        import tensorflow as tf
        from tensorflow.python.eager import context, execute

        graph, arrays = self._with_arguments(drawn)
        found = {name: graph.nodes[name] for name in nodes if name in graph.nodes}
        known = [name for name, n in found.items() if len(n.types) == 1 and not n.op.startswith(_WRITES)]
        if not known:
            return {}
        name = f"{graph.name}_layers_{next(_serial)}"
        asked = replace(graph, results=[(node, 0) for node in known], effects=[])
        context.context().add_function_def(asked.pruned().function_def(self._functions, name))
        with context.eager_mode(), tf.device("/CPU:0"):
            resources = [graph.nodes[arg].types[0] == tf.resource.as_datatype_enum for arg in graph.args]
            variables = [
                tf.compat.v2.Variable(array) if resource else tf.constant(array)
                for resource, array in zip(resources, arrays, strict=True)
            ]
            given = [v.handle if resource else v for resource, v in zip(resources, variables, strict=True)]
            results = execute.execute(name, len(known), given, None, context.context())
        made = {node: np.asarray(result.numpy()) for node, result in zip(known, results, strict=True)}
        return {node: array for node, array in made.items() if array.dtype.kind in "fV"}

    def _with_arguments(self, drawn: Drawn) -> tuple[Any, list[np.ndarray]]:
        """The graph without host-only nodes and with arguments for random nodes, and these arguments."""
        import tensorflow as tf

        from tf_adapter.graphs import ARGUMENT
        from tf_adapter.randomness import COUNTED

        graph, nodes, values = self._graph, dict(self._graph.nodes), {}
        for arg, kind, array in zip(graph.args, self._kinds, self._arrays, strict=True):
            if array is not None:
                values[arg] = array
            if kind == "variable" and self._is_handle(arg):
                nodes[arg] = replace(nodes[arg], types=(tf.resource.as_datatype_enum,))
        for node in graph.nodes.values():
            numbers = drawn(node.name) if node.op in COUNTED or node.op.startswith(_COUNTED) else None
            if numbers is not None:
                nodes[node.name] = replace(node, op=ARGUMENT, inputs=[], controls=[], attr={})
                values[node.name] = numbers.astype(tf.dtypes.as_dtype(node.types[0]).as_numpy_dtype)
        kept = _computable(replace(graph, nodes=nodes), values)
        return replace(graph, nodes=kept, args=list(values)), list(values.values())

    def _is_handle(self, arg: str) -> bool:
        """True if the readers of a variable take its handle, not its value."""
        import tensorflow as tf

        for node in self._graph.nodes.values():
            for index, (source, _) in enumerate(node.inputs):
                if source == arg:
                    return bool(_input_type(node, index) == tf.resource.as_datatype_enum)
        return False


def _computable(graph: Any, known: Collection[str]) -> dict[str, Any]:
    """Nodes of a function that TensorFlow can compute from the known arguments.

    1. Random nodes with unknown values, host-only arguments and writes to reference variables are excluded, with their
       consumers.
    2. Reads of an argument after such a write are excluded too, since its value may have changed.
    """
    from tf_adapter.graphs import ARGUMENT
    from tf_adapter.randomness import COUNTED

    left_out: set[str] = set()
    kept: dict[str, Any] = {}
    for name in graph.order():
        node = graph.nodes[name]
        sources = [source for source, _ in node.inputs]
        random = node.op in COUNTED or node.op.startswith(_COUNTED)
        stale = any(c in left_out for c in node.controls) and any(s in known for s in sources)
        absent = node.op == ARGUMENT and name not in known
        if random or absent or stale or _by_reference(node.op) or any(s in left_out for s in sources):
            left_out.add(name)
        else:
            kept[name] = replace(node, controls=[c for c in node.controls if c not in left_out])
    return kept


def _by_reference(op: str) -> bool:
    from tensorflow.python.framework import op_def_registry

    found = op_def_registry.get(op)
    return found is not None and any(argument.is_ref for argument in found.input_arg)


def _input_type(node: Any, index: int) -> int:
    """Element type of an input if fixed by the operator or by a type list; else 0."""
    from tensorflow.python.framework import op_def_registry

    found = op_def_registry.get(node.op)
    for argument in () if found is None else found.input_arg:
        if argument.type_list_attr:
            types = node.attr[argument.type_list_attr].list.type
            if index < len(types):
                return int(types[index])
            index -= len(types)
        elif argument.number_attr:
            count = int(node.attr[argument.number_attr].i)
            if index < count:
                return int(argument.type)
            index -= count
        elif index == 0:
            return int(argument.type)
        else:
            index -= 1
    return 0


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
        """The user's line of each node, from stack traces."""
        traces = {n.name: n.meta.get("stack_trace") or "" for n in self._module.graph.nodes}
        return lambda node: location_of(traces.get(node, ""))

    def values(self, nodes: Sequence[str], drawn: Drawn) -> Mapping[str, np.ndarray]:
        """The results of nodes by name."""
        del drawn
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
