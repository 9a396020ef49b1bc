"""Explain: where each node of a model runs, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

import onnx_ir as ir

from ge.errors import GeError
from ge.ir import facts
from ge.ir.graphs import subgraphs_of
from ge.model.model import Model
from ge.ops.base import is_custom, lookup, plain_type

__all__ = ["Explanation", "Placement", "explain", "placements"]

_WIDTH = 60


@dataclass(frozen=True)
class Placement:
    """The engine of one node, its implementation, the reason, and the framework nodes it stands for."""

    node: str
    operator: str
    engine: str
    reason: str
    origin: tuple[str, ...] = ()
    choice: bool = False  # a custom operator could have taken it
    implementation: str = ""  # of a cube node


@dataclass(frozen=True)
class Explanation:
    """The placements of a model, and notes on it; prints as a table."""

    model: str
    rows: tuple[Placement, ...]
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Placement]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def counts(self) -> dict[str, int]:
        """The number of nodes on each engine."""
        found: dict[str, int] = {}
        for row in self.rows:
            found[row.engine] = found.get(row.engine, 0) + 1
        return found

    def __str__(self) -> str:
        head = ("node", "operator", "engine", "reason")
        table = [head, *((_short(r.node), r.operator, r.engine, r.reason) for r in self.rows)]
        widths = [max(len(line[i]) for line in table) for i in range(3)]
        lines = [
            "  ".join([*(c.ljust(w) for c, w in zip(line[:3], widths, strict=True)), line[3]])
            for line in table
        ]
        total = ", ".join(f"{count} on {engine}" for engine, count in self.counts().items())
        return "\n".join([f"{self.model}: {total}", *lines, *(f"note: {note}" for note in self.notes)])


def explain(model: Model) -> Explanation:
    """The engine of each node of a compiled model, and why.

    >>> print(ge.explain(model))     # doctest: +SKIP
    """
    if not hasattr(model, "plan"):
        raise GeError("E10021", f"cannot explain a {type(model).__name__}", remedy="give a compiled model")
    report = model.plan.report
    rows = tuple(_placement(row) for row in report.get("placement", ()))
    return Explanation(model.name, rows, tuple(map(str, report.get("notes", ()))))


def placements(graph: ir.Graph) -> list[dict[str, object]]:
    """The placements of a placed graph as plain data, for the plan's report."""
    return [asdict(p) for p in _placements(graph)]


def _placements(graph: ir.Graph) -> Iterable[Placement]:
    for node in graph:
        yield Placement(
            node.name or "",
            plain_type(node.op_type),
            facts.engine(node),
            facts.reason(node),
            facts.origin(node),
            is_custom(lookup(node.op_type)) or bool(facts.passed_over(node)),
            facts.implementation(node),
        )
    for inner in subgraphs_of(graph):
        yield from _placements(inner)


def _placement(row: dict[str, object]) -> Placement:
    origin = row.get("origin") or ()
    return Placement(
        str(row["node"]),
        str(row["operator"]),
        str(row["engine"]),
        str(row["reason"]),
        tuple(map(str, origin)),  # type: ignore[call-overload]
        bool(row.get("choice")),
        str(row.get("implementation", "")),
    )


def _short(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
