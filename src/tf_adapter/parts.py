"""Parts of host graphs that run on the NPU: what the `graph` attribute of an NpuGraph operation refers to."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, execute

from ge import faults
from ge.collection import compile_scope
from ge.errors import GeError, OutOfMemoryError, UserCodeError
from ge.options import CompileOptions
from npu_runtime import tensorflow as native
from tf_adapter.graphs import FlatGraph, Functions
from tf_adapter.lowering import Described, Lowered, lower
from tf_adapter.resident import Given, given_inputs, layout_of, packed

__all__ = ["Known", "drop_part", "part_compile", "part_run", "refusals_of", "register_part", "shapes_of"]


Known = tuple[
    tuple[tuple[int, ...], ...], int
]  # shapes of the inputs, layout of those that another part left


@dataclass
class _Part:
    """A graph whose arguments and results are an NpuGraph operation's."""

    graph: FlatGraph
    functions: Functions
    options: CompileOptions
    host_fallback: bool = True
    variables: frozenset[int] = frozenset()
    assigned: Mapping[int, int] = field(default_factory=dict)
    ready: Mapping[Known, Lowered] = field(default_factory=dict)
    given: Mapping[int, int] = field(default_factory=dict)
    left: tuple[int, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)
    shapes: tuple[tuple[int, ...], ...] = ()  # of the inputs it was compiled for last
    host_function: str = ""

    def refuse(self, reason: str, node: str = "") -> None:
        """Keep what an error names on the host from now on; all, where the host cannot run the part for one input."""
        if node in self.graph.nodes or not self.host_fallback:
            self.refused.update(self.graph.refused(reason, node))


_parts: dict[int, _Part] = {}
_lock = threading.Lock()


def register_part(
    graph: FlatGraph,
    functions: Functions,
    options: CompileOptions,
    *,
    host_fallback: bool = True,
    variables: Collection[int] = (),
    assigned: Mapping[int, int] | None = None,
    ready: Mapping[Known, Lowered] | None = None,
    given: Mapping[int, int] | None = None,
    left: Sequence[int] = (),
    npu: int = 0,
) -> int:
    """The number of a part, for the `graph` attribute; it is compiled for the shapes it meets.

    Where it cannot be, the host runs it; without `host_fallback` that is an UnimplementedError. `variables` are
    arguments that are variables: the part reads them, and writes new values to the same memory, or to the result that
    `assigned` gives. `ready` are models that exist already, by the shapes of the inputs and the layout of what another
    part left. `given` are the arguments that are among that, and which of its results they are; `left` are results
    that this part leaves to another one.
    """
    number = native.new_part(npu, given=sorted(given or {}), left=list(left))
    with _lock:
        _parts[number] = _Part(
            graph,
            functions,
            options,
            host_fallback,
            frozenset(variables),
            assigned or {},
            ready or {},
            given or {},
            tuple(left),
        )
    return number


@dataclass(frozen=True)
class _InPlace:
    """A version-1 variable as the compiler sees it: never part of a model, for its memory changes unseen."""

    given: Described
    kind: str = "variable"
    version: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.given, name)


def drop_part(number: int) -> None:
    """Forget a part and its programs."""
    with _lock:
        _parts.pop(number, None)
    native.drop_part(number)


def refusals_of(number: int) -> Mapping[str, str]:
    """The nodes of a part that could not be compiled, and why."""
    with _lock:
        return dict(_parts[number].refused) if number in _parts else {}


def shapes_of(number: int) -> tuple[tuple[int, ...], ...]:
    """The shapes of the inputs that a part was last compiled for; none when it was not."""
    with _lock:
        return _parts[number].shapes if number in _parts else ()


@compile_scope()
def part_compile(number: int, inputs: Sequence[Described]) -> Any:
    """The device's plan for a part; None where the host has to run it (`part_run`)."""
    from tf_adapter.callbacks import npu_plan
    from tf_adapter.functions import NpuRun

    part = _parts[number]
    name = f"{part.graph.name}_{number}"
    layout, inputs = _unpacked(part, inputs)
    part.shapes = tuple(tuple(given.shape) for given in inputs)
    inputs = [_InPlace(given) if i in part.variables else given for i, given in enumerate(inputs)]
    ready = part.ready.get((part.shapes, layout))
    if ready is not None:
        return npu_plan(NpuRun(_placed(part, ready)), inputs)
    try:
        found = lower(
            part.graph,
            part.functions,
            inputs,
            part.options,
            name=name,
            kept=part.assigned,
            given={i: given.offset for i, given in enumerate(inputs) if isinstance(given, Given)},
            left=part.left,
        )
    except OutOfMemoryError as error:
        raise tf.errors.ResourceExhaustedError(None, None, str(error)) from error
    except UserCodeError as error:
        raise tf.errors.InvalidArgumentError(None, None, str(error)) from error
    except GeError as error:
        part.refuse(error.cause, error.node)
        return _refused(part)
    except tf.errors.OpError:
        raise
    except Exception as error:
        part.refuse(str(faults.absorb(f"graph part {name}", error)))
        return _refused(part)
    if isinstance(found, Lowered):
        return npu_plan(NpuRun(_placed(part, found)), inputs)
    part.refused.update({node: why.reason for node, why in found.nodes.items()})
    return _refused(part)


def _unpacked(part: _Part, inputs: Sequence[Described]) -> tuple[int, list[Described]]:
    """The layout of what another part left, and all inputs, with that in its place."""
    if not part.given:
        return 0, list(inputs)
    arena = int(inputs[min(part.given)].numpy())
    layout = native.arena_layout(arena)
    lying = given_inputs(layout_of(layout), arena)
    return layout, [lying[part.given[i]] if i in part.given else given for i, given in enumerate(inputs)]


def _placed(part: _Part, found: Lowered) -> Lowered:
    """A model whose new values of variables are results, where they are assigned by others."""
    places = {("variable", place): ("output", result) for place, result in part.assigned.items()}
    outputs = tuple(places.get(port, port) for port in found.ports.outputs)
    return replace(found, ports=replace(found.ports, outputs=outputs))


def _refused(part: _Part) -> None:
    if not part.host_fallback:
        lines = [f"node {node} is not supported on NPU: {why}" for node, why in part.refused.items()]
        remedy = "Keep them on the host (npu_scope.without_npu_compile_scope), or register a custom operator."
        raise tf.errors.UnimplementedError(None, None, "\n".join([*lines, remedy]))


def part_run(number: int, inputs: Sequence[Described]) -> list[np.ndarray]:
    """The results of a part that cannot be compiled for these inputs, by TensorFlow's own kernels."""
    part = _parts[number]
    _, inputs = _unpacked(part, inputs)
    if not part.host_function:
        part.host_function = f"{part.graph.name}_{number}_host"
        definition = part.graph.function_def(part.functions, part.host_function)
        context.context().add_function_def(definition)
    with context.eager_mode(), tf.device("/CPU:0"):
        given = [tf.constant(i.numpy()) for i in inputs]
        results = execute.execute(part.host_function, len(part.graph.results), given, None, context.context())
    found = [r.numpy() for r in results]
    return [*found, packed(found, part.left)] if part.left else found
