"""Units: subgraphs that become one task each, in execution order."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ge.ir import facts
from ge.ir.values import constant_of
from ge.ops.base import Engine, plain_type

__all__ = ["Unit", "in_order", "sources_of", "unit_of"]


@dataclass(eq=False, slots=True)
class Unit:
    """A future task: one node, or a group of vector nodes compiled to one kernel.

    `nodes` are in topological order. `inputs` are loaded from memory, `outputs` stored to it; intermediate values stay
    in registers.
    """

    engine: Engine
    nodes: list[ir.Node]
    inputs: list[ir.Value] = field(default_factory=list)
    outputs: list[ir.Value] = field(default_factory=list)

    @property
    def last(self) -> ir.Node:
        return self.nodes[-1]

    @property
    def name(self) -> str:
        """The unit's name in profiles: its operation, and the last framework node it belongs to."""
        types = list(dict.fromkeys(plain_type(n.op_type) for n in self.nodes))
        post_ops = self.last.attributes.get("post_ops")
        if post_ops is not None and len(self.nodes) == 1:
            types += [text.split(",")[0] for text in post_ops.value]
        label = next(iter(facts.origin(self.last)), self.last.name or "")
        return f"{'+'.join(types)}:{label}" if label != self.last.op_type else "+".join(types)

    @property
    def origin(self) -> tuple[str, ...]:
        """The framework nodes that the unit computes."""
        return tuple(dict.fromkeys(o for n in self.nodes for o in facts.origin(n)))


def unit_of(node: ir.Node, *, view: bool = False) -> Unit:
    """The unit of a single node; a view of its input's memory is free."""
    inputs = list(dict.fromkeys(v for v in node.inputs if v is not None))
    return Unit(Engine.VIEW if view else Engine(facts.engine(node)), [node], inputs, list(node.outputs))


def sources_of(units: Sequence[Unit], after: Mapping[Unit, set[Unit]] | None = None) -> dict[Unit, set[Unit]]:
    """The units each unit waits for: those whose results it reads, and those named in `after`."""
    maker = {v: u for u in units for n in u.nodes for v in n.outputs}
    found: dict[Unit, set[Unit]] = {}
    for unit in units:
        found[unit] = {maker[v] for v in unit.inputs if v in maker and constant_of(v) is None}
        found[unit] |= (after or {}).get(unit, set())
        found[unit].discard(unit)
    return found


def in_order(
    units: Iterable[Unit], positions: dict[ir.Node, int], after: Mapping[Unit, set[Unit]] | None = None
) -> list[Unit]:
    """Units in topological order, as close to the graph's own order as possible.

    A unit takes the position of its last node, or of the first unit that needs it if that comes earlier; `after` names
    further units it waits for. Raises ValueError if units form a dependency cycle.
    """
    units = list(units)
    waits: dict[Unit, int] = {}
    readers: dict[Unit, list[Unit]] = {u: [] for u in units}
    for unit, sources in sources_of(units, after).items():
        waits[unit] = len(sources)
        for source in sources:
            readers[source].append(unit)
    place = {u: max(positions[n] for n in u.nodes) for u in units}
    for unit in reversed(_sorted(units, waits, readers, place)):
        place[unit] = min([place[unit], *(place[r] for r in readers[unit])])
    return _sorted(units, waits, readers, place)


def _sorted(
    units: Sequence[Unit],
    waits: Mapping[Unit, int],
    readers: Mapping[Unit, Sequence[Unit]],
    place: Mapping[Unit, int],
) -> list[Unit]:
    """Units by position, each after the ones it waits for."""
    left = dict(waits)
    serial = {u: i for i, u in enumerate(units)}
    ready = [(place[u], serial[u], u) for u in units if not left[u]]
    heapq.heapify(ready)
    ordered: list[Unit] = []
    while ready:
        unit = heapq.heappop(ready)[2]
        ordered.append(unit)
        for reader in readers[unit]:
            left[reader] -= 1
            if not left[reader]:
                heapq.heappush(ready, (place[reader], serial[reader], reader))
    if len(ordered) != len(units):
        raise ValueError("units depend on one another in a circle")
    return ordered
