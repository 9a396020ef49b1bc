"""Cuts a model into stages: nodes that can run with the values known so far, and nodes that need their results.

1. A stage contains every node whose sizes follow from the shapes of the known values; operators with data-dependent
   result sizes may end it.
2. Nodes that read such a result, or need a computed value to know their own sizes, wait for the next stage, in which
   that result is a known value.
3. A known value that a node needs as a constant is a constant of its stage: a small tensor that the node reads itself,
   or small integer tensors from which its operand is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

__all__ = ["Cut", "Halves", "Remainder", "constants_for", "halves", "required_inputs"]

MOST_DECIDING = 64  # elements of a value that may be a constant of a stage


class Remainder(Protocol):
    """The nodes of a model that have not run, and the names of the values that they need."""

    @property
    def key(self) -> Hashable:
        """Equal for the same nodes with the same known values."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The known values that the nodes read."""

    def prepare(self, values: dict[str, Any]) -> None:
        """Run what the host runs first (text, tables), and add its results to `values`."""

    def cut(self, values: Mapping[str, Any]) -> Cut:
        """Cut off the stage for values of these shapes."""


@dataclass(frozen=True)
class Cut:
    """One stage of a model."""

    graph: ir.Graph
    inputs: tuple[str, ...]  # known values in the order of the graph's inputs
    outputs: tuple[str, ...]  # the names of its results
    deciding: frozenset[str]  # known values that are constants of the stage
    rest: Remainder | None  # None if every output of the model is known afterwards


def required_inputs(values: Iterable[ir.Value], names: Container[str]) -> set[str]:
    """The named graph inputs that values are computed from."""
    found: set[str] = set()
    todo, seen = list(values), set()
    while todo:
        value = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        node = value.producer()
        if node is None and value.is_graph_input() and value.name and value.name in names:
            found.add(value.name)
        todo.extend(v for v in (node.inputs if node is not None else ()) if v is not None)
    return found


def constants_for(
    needed: Iterable[ir.Value], values: Mapping[str, Any], names: Iterable[str]
) -> dict[str, np.ndarray]:
    """The named known values that become constants, so that the needed values are known (rule 3)."""
    small = {n: values[n] for n in names if _is_small(values[n])}
    integers = {n for n, array in small.items() if array.dtype.kind in "biu"}
    needed = list(needed)
    read = {v.name for v in needed if v.is_graph_input() and v.name in small}
    return {n: small[n] for n in required_inputs(needed, integers) | read if n}


def _is_small(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind in "biuf" and array.size <= MOST_DECIDING


@dataclass(frozen=True)
class Halves:
    """A graph cut in two: the second half reads inputs of the graph and results of the first."""

    first: ir.Graph
    second: ir.Graph
    passed: tuple[int, ...]  # results of the first half that the second reads, after the graph's inputs
    outputs: tuple[
        tuple[bool, int], ...
    ]  # of the graph: whether the second half computes it, and its index there


def halves(graph: ir.Graph, is_first: Callable[[ir.Node], bool]) -> Halves:
    """Cut a graph after some of its nodes; their dependencies are in the first half, too."""
    early: set[ir.Node] = set()
    for node in reversed(graph):
        if is_first(node) or any(user in early for v in node.outputs for user, _ in v.uses()):
            early.add(node)
    made = [v for node in graph if node in early for v in node.outputs]
    read = {v for node in graph if node not in early for v in node.inputs}
    results = [v for v in made if v in read or v.is_graph_output()]
    passed = tuple(i for i, v in enumerate(results) if v in read)
    late = [v for v in graph.outputs if v not in set(results)]
    places = tuple((True, late.index(v)) if v in late else (False, results.index(v)) for v in graph.outputs)
    inner = [_restricted(graph, [], results), _restricted(graph, [results[i] for i in passed], late)]
    return Halves(inner[0], inner[1], passed, places)


def _restricted(graph: ir.Graph, known: list[ir.Value], results: list[ir.Value]) -> ir.Graph:
    """A copy of a graph with some values as results; `known` values are additional inputs after the graph's own."""
    copy = graph.clone()
    same = {v: w for a, b in zip(graph, copy, strict=True) for v, w in zip(a.outputs, b.outputs, strict=True)}
    copy.outputs.clear()
    copy.outputs.extend(same[v] for v in results)
    for value in known:
        old = same[value]
        new = ir.Value(name=f"{old.name}.given", shape=old.shape, type=old.type)
        copy.inputs.append(new)
        old.replace_all_uses_with(new)
    for node in reversed(copy):
        if not any(v.uses() or v.is_graph_output() for v in node.outputs):
            copy.remove(node, safe=True)
    return copy
