"""Scheduling: updates of donated inputs run as early as possible, so that gradients are freed soon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from ge.build.aliases import Aliases, root_of
from ge.build.units import Unit, sources_of
from ge.ir import facts
from ge.ir.types import TensorDesc
from ge.ir.values import constant_of, desc_of

__all__ = ["updates_early"]

DEPTH = 3  # units from a gradient to the end of its update
SMALL = 4096  # bytes that do not count: learning rates and powers of decays, which many updates need


def updates_early(
    graph: ir.Graph, units: Sequence[Unit], aliases: Aliases, after: Mapping[Unit, set[Unit]]
) -> list[Unit]:
    """Order units so that the last few of a chain run early.

    1. A unit with few or no successors runs as soon as its operands are ready, if it and the unit it enables free as
       much memory as they take.
    2. Peak memory does not grow by that (except for a few scalars).
    3. All other units keep their order. `after` names further units that a unit waits for.
    """
    return _Ordering(graph, units, aliases, after).run()


class _Ordering:
    def __init__(
        self, graph: ir.Graph, units: Sequence[Unit], aliases: Aliases, after: Mapping[Unit, set[Unit]]
    ) -> None:
        self.units = units
        self.aliases = aliases
        self.outside = {root_of(v, aliases) for v in (*graph.inputs, *graph.outputs)}
        self.sources = sources_of(units, after)
        self.readers: dict[Unit, list[Unit]] = {u: [] for u in units}
        for unit, sources in self.sources.items():
            for source in sources:
                self.readers[source].append(unit)
        self.reads = {u: self._roots(u.inputs) for u in units}
        self.writes = {u: self._roots(u.outputs) - self.reads[u] for u in units}
        self.most = self._most()

    def _roots(self, values: Iterable[ir.Value]) -> set[ir.Value]:
        """The arena values that some values alias."""
        roots = {root_of(v, self.aliases) for v in values if constant_of(v) is None}
        return roots - self.outside

    def _start(self) -> None:
        self.live = 0
        self.left: dict[ir.Value, int] = {}  # readers that have not run
        for unit in self.units:
            for value in self.reads[unit]:
                self.left[value] = self.left.get(value, 0) + 1

    def _most(self) -> int:
        """Peak memory in the given order."""
        self._start()
        most = 0
        for unit in self.units:
            most = max(most, self.live + self._taken(unit))
            self._account(unit)
        return most

    def _taken(self, unit: Unit) -> int:
        return sum(_nbytes(v) for v in self.writes[unit])

    def _freed(self, unit: Unit) -> int:
        return sum(_nbytes(v) for v in self.reads[unit] if self.left[v] == 1)

    def _account(self, unit: Unit) -> None:
        self.live += self._taken(unit) - self._freed(unit)
        for value in self.reads[unit]:
            self.left[value] -= 1

    def run(self) -> list[Unit]:
        near = self._near_the_end()
        self._start()
        waits = {u: len(self.sources[u]) for u in self.units}
        ready = {u: None for u in self.units if u in near and not waits[u]}
        ordered: list[Unit] = []
        done: set[Unit] = set()

        def execute(unit: Unit) -> None:
            self._account(unit)
            ordered.append(unit)
            done.add(unit)
            ready.pop(unit, None)
            for reader in self.readers[unit]:
                waits[reader] -= 1
                if not waits[reader] and reader in near:
                    ready[reader] = None

        for unit in self.units:
            while (early := next((u for u in ready if self._pays(u, waits)), None)) is not None:
                execute(early)
            if unit not in done:
                execute(unit)
        return ordered

    def _near_the_end(self) -> set[Unit]:
        """Units with at most a few successors."""
        depth: dict[Unit, int] = {}
        for unit in reversed(self.units):
            depth[unit] = 1 + max((depth[r] for r in self.readers[unit]), default=0)
        return {u for u, d in depth.items() if d <= DEPTH}

    def _pays(self, unit: Unit, waits: Mapping[Unit, int]) -> bool:
        """Rules 1 and 2."""
        taken = self._taken(unit)
        if self.live + taken > self.most:
            return False
        change = taken - self._freed(unit)
        if change > 0:
            enabled = [r for r in self.readers[unit] if waits[r] == 1]
            change += min((self._live_memory_change(unit, r) for r in enabled), default=0)
        return change <= SMALL

    def _live_memory_change(self, unit: Unit, reader: Unit) -> int:
        """The change of live memory if a unit runs right after another."""
        last = {v for v in self.writes[unit] & self.reads[reader] if self.left[v] == 1}
        freed = sum(_nbytes(v) for v in last)
        return self._taken(reader) - freed


def _nbytes(value: ir.Value) -> int:
    return TensorDesc(desc_of(value).shape, facts.storage_dtype(value)).nbytes
