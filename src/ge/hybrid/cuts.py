"""Models in stages: what can run with the values known so far, and what has to wait for its results.

1. A stage takes every node whose sizes follow from the known values' shapes; operators whose result sizes depend on
   data may end it.
2. What reads such a result, or needs a computed value to know its own sizes, waits for the next stage, in which that
   result is a known value.
3. A known value that decides sizes by its elements is a constant of its stage; only small integers are taken for that.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

__all__ = ["Cut", "Remainder", "decides", "inputs_behind"]

MOST_DECIDING = 64  # elements of a value that may be a constant of a stage


class Remainder(Protocol):
    """The nodes of a model that have not run, and the names of the values that they need."""

    @property
    def key(self) -> Hashable:
        """Equal for the same nodes with the same values known."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The known values that the nodes read."""

    def prepare(self, values: dict[str, Any]) -> None:
        """Run what the host runs first (text, tables); its results are added to `values`."""

    def cut(self, values: Mapping[str, Any]) -> Cut:
        """The stage for values of these shapes."""


@dataclass(frozen=True)
class Cut:
    """One stage of a model."""

    graph: ir.Graph
    inputs: tuple[str, ...]  # known values in the order of the graph's inputs
    outputs: tuple[str, ...]  # the names of what it gives
    deciding: frozenset[str]  # known values that are constants of it
    rest: Remainder | None  # None where every output of the model is known afterwards


def inputs_behind(values: Iterable[ir.Value], names: Container[str]) -> set[str]:
    """The graph inputs of these names that values are computed from."""
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


def decides(array: Any) -> bool:
    """Whether a known value may be a constant of a stage.

    >>> decides(np.array([3, 4])), decides(np.zeros(3, np.float32)), decides(np.arange(1000))
    (True, False, False)
    """
    return isinstance(array, np.ndarray) and array.dtype.kind in "biu" and array.size <= MOST_DECIDING
