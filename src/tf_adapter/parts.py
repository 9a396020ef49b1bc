"""Parts of host graphs that run on the NPU: what stands behind the `graph` attribute of an NpuGraph operation."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from ge.errors import GeError, OutOfMemoryError
from ge.options import CompileOptions
from npu_runtime import tensorflow as native
from tf_adapter.graphs import FlatGraph, Functions
from tf_adapter.lowering import Described, Lowered, lower

__all__ = ["drop_part", "part_compile", "refusals_of", "register_part"]


@dataclass
class _Part:
    """A graph whose arguments and results are an NpuGraph operation's."""

    graph: FlatGraph
    functions: Functions
    options: CompileOptions
    refused: dict[str, str] = field(default_factory=dict)


_parts: dict[int, _Part] = {}
_lock = threading.Lock()


def register_part(graph: FlatGraph, functions: Functions, options: CompileOptions) -> int:
    """The number of a part, for the `graph` attribute; it is compiled for the shapes it meets."""
    number = native.new_part()
    with _lock:
        _parts[number] = _Part(graph, functions, options)
    return number


def drop_part(number: int) -> None:
    """Forget a part and its programs."""
    with _lock:
        _parts.pop(number, None)
    native.drop_part(number)


def refusals_of(number: int) -> Mapping[str, str]:
    """The nodes of a part that could not be compiled, and why."""
    with _lock:
        return dict(_parts[number].refused) if number in _parts else {}


def part_compile(number: int, inputs: Sequence[Described]) -> Any:
    """The device's plan for a part; UnimplementedError names the nodes that the host has to run."""
    from tf_adapter.callbacks import _npu_plan
    from tf_adapter.functions import NpuRun

    part = _parts[number]
    name = f"{part.graph.name}_{number}"
    try:
        found = lower(part.graph, part.functions, inputs, part.options, name=name)
    except OutOfMemoryError as error:
        raise tf.errors.ResourceExhaustedError(None, None, str(error)) from error
    except GeError as error:
        node = error.location or next(iter(part.graph.nodes))
        part.refused[node] = error.cause
        raise tf.errors.UnimplementedError(None, None, str(error)) from error
    if isinstance(found, Lowered):
        return _npu_plan(NpuRun(found), inputs)
    part.refused.update({node: why.reason for node, why in found.nodes.items()})
    lines = [
        f"Op type '{why.operator}' is not supported on NPU: node {node}: {why.reason}"
        for node, why in found.nodes.items()
    ]
    raise tf.errors.UnimplementedError(None, None, "\n".join(lines))
