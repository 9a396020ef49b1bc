"""Functions that a coordinator sends to the workers of a TensorFlow cluster (`ParameterServerStrategy`).

TensorFlow sends a function's definition to a server, which runs it on TensorFlow's own devices. So what is sent here is
another function: each row of nodes that is worth it becomes one NpuGraph operation, which carries its graph with it.
Everything else stays as it is: variables and their updates on parameter servers, datasets on the worker's host. The
worker, which has imported `tf_adapter` too, compiles those graphs for its NPU.
"""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2
from tensorflow.python.eager import context, execute, executor
from tensorflow.python.framework import device_spec

import npu_runtime
from ge.parsers.tensorflow.convert import Refusal
from npu_runtime.bounded import BoundedCache
from tf_adapter import structure
from tf_adapter.graphs import FlatGraph, FlatNode, Functions, read_function
from tf_adapter.options import options
from tf_adapter.parts import register_part

__all__ = ["function_for", "part_of"]

_MOST_SENT = 1024

_sending = threading.Lock()
_receiving = threading.Lock()  # another one: to send may wait for a server of this process that receives
_sent: BoundedCache[tuple[str, str, str], str] = BoundedCache(_MOST_SENT)  # by function, worker and options
_received: dict[tuple[bytes, int], int] = {}  # parts by definition and NPU
_ready: set[str] = set()  # workers that know the NPU


class Worker(structure.Place):
    """The NPU of a worker, whose parts carry their graphs with them."""

    def __init__(self, name: str) -> None:
        super().__init__(0)
        self.device = f"{name}/device:CPU:0"
        self.task = int(device_spec.DeviceSpecV2.from_string(name).task)

    def of(self, _: FlatNode) -> Worker:
        """The worker runs the functions that its nodes call."""
        return self

    def part(self, graph: FlatGraph, functions: Functions) -> dict[str, attr_value_pb2.AttrValue]:
        """The graph itself, and the functions it calls."""
        library = function_pb2.FunctionDefLibrary()
        library.function.append(graph.function_def(functions))
        library.function.extend(functions.reached(graph))
        return {
            "definition": attr_value_pb2.AttrValue(s=library.SerializeToString(deterministic=True)),
            "task": attr_value_pb2.AttrValue(i=self.task),
        }

    def read(self, name: str, functions: Functions) -> FlatGraph:
        """A function with the devices that its nodes ask for."""
        return read_function(name, functions, places=True)

    def host_nodes(self, graph: FlatGraph, functions: Functions) -> dict[str, Refusal]:
        """What another server of the cluster runs stays there."""
        refused = super().host_nodes(graph, functions)
        for node in graph.nodes.values():
            if "job:" in node.device and node.name not in refused:
                refused[node.name] = Refusal(node.op, f"it is placed on {node.device}")
        return refused


def function_for(name: str, worker: str) -> str:
    """The function that a worker runs in place of another."""
    key = (name, worker, options.fingerprint())
    found = _sent.get(key)
    if found is None:
        with _sending:
            found = _sent.get(key) or _sent.put(key, structure.body(name, Functions(), Worker(worker)))
    if found != name:
        _check(worker)
    return found


def _check(worker: str) -> None:
    """Say what is missing where a worker does not know NpuGraph."""
    if worker in _ready:
        return
    attrs: tuple[Any, ...] = ("Tin", [], "Tout", [], "graph", 0, "definition", b"", "task", 0)
    try:
        with context.executor_scope(executor.new_executor(enable_async=False)):
            execute.execute("NpuGraph", 0, [], attrs, context.context())
    except tf.errors.NotFoundError as error:
        raise tf.errors.FailedPreconditionError(
            None,
            None,
            f"the worker {worker} does not know the NPU: import tf_adapter in its program before its "
            f"tf.distribute.Server starts, or call tf_adapter.as_default(False) here to train on TensorFlow's own "
            f"devices ({error.message})",
        ) from error
    _ready.add(worker)


def part_of(definition: bytes, task: int) -> int:
    """The number of a part that a coordinator has sent; the servers of one process share its NPUs."""
    npu = task % npu_runtime.device_count()
    with _receiving:
        number = _received.get((definition, npu))
        if number is None:
            library = function_pb2.FunctionDefLibrary.FromString(definition)
            functions = Functions(library.function)
            graph = read_function(library.function[0].signature.name, functions)
            number = register_part(graph, functions, options.compile_options(), npu=npu)
            _received[definition, npu] = number
    return number
