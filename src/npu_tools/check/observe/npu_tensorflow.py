"""The NPU's work for a TensorFlow script: operators by placement and reason, calls over time, memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import npu_runtime
from npu_runtime import tensorflow as native
from npu_tools.check.drawing import DrawnNode, draw
from npu_tools.check.observe.patching import around
from tf_adapter import functions
from tf_adapter.explanation import report

__all__ = ["operators", "spans", "start"]

_NAMED = 8  # nodes named for one row
_NO_MODEL = "an eager operator that is not worth a crossing, or was called too seldom to be compiled"


def start() -> None:
    """Start recording call times, regardless of the script's options."""
    native.set_timeline(True)
    around(native, "set_timeline", lambda original: lambda on: original(True))


def reports() -> Iterable[Any]:
    """The explanations of all compiled functions."""
    for found in functions.compiled():
        if found.report is not None and not functions.is_step(found.name):
            made = report(found.name)
            if made is not None:
                yield made


def operators(location_of: Callable[[str, str], str], timeline: list[Any]) -> list[dict[str, Any]]:
    """Rows of operator, place and reason with counts, nodes and lines; functions first, then eager operators.

    `calls` counts calls of the operator's function: functions that run once do not affect a step.
    """
    rows: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    called = Counter(s[0] for s in timeline)
    for explanation in reports():
        calls = _calls(explanation.function, called)
        for row in explanation.rows:
            key = (row.operator, row.place, row.reason if row.place == "host" else "", row.remedy)
            found = rows.setdefault(key, _row(*key))
            found["count"] += 1
            found["calls"] = max(found["calls"], calls)
            found["flops"] += row.flops
            if len(found["nodes"]) < _NAMED:
                found["nodes"].append(row.node)
            line = (
                location_of(row.node, explanation.function)
                if row.place == "host" or len(found["locations"]) < _NAMED
                else ""
            )
            if line and line not in found["locations"]:
                found["locations"].append(line)
    for (name, on_npu), count in Counter((s[0], s[1]) for s in timeline).items():
        if not name.startswith("__") and "_step" not in name:
            place = "NPU" if on_npu else "host"
            rows[name, place, "eager", ""] = _row(name, place, "" if on_npu else _NO_MODEL, "") | {
                "count": count,
                "calls": count,
                "eager": True,
            }
    return sorted(rows.values(), key=lambda r: (r["eager"], r["place"] == "NPU", -r["flops"], -r["count"]))


def _calls(function: str, called: Counter[str]) -> int:
    """Number of calls of a function or of the steps it was divided into."""
    steps = (count for name, count in called.items() if name.startswith(f"{function}_step"))
    return max([called[function], *steps])


def _row(operator: str, place: str, reason: str, remedy: str) -> dict[str, Any]:
    lists: dict[str, Any] = {"nodes": [], "locations": []}
    return {"operator": operator, "place": place, "reason": reason, "remedy": remedy, "count": 0, "flops": 0.0,
            "eager": False, "calls": 0, **lists}  # fmt: skip


def groups(location_of: Callable[[str, str], str]) -> list[dict[str, Any]]:
    """The steps of the largest function, with the layers in each: the graph by placement."""
    largest = max(reports(), key=lambda e: len(e.rows), default=None)
    if largest is None:
        return []
    by_step: defaultdict[int, Counter[str]] = defaultdict(Counter)
    operators_of: defaultdict[int, Counter[str]] = defaultdict(Counter)
    lines: dict[int, list[str]] = defaultdict(list)
    for row in largest.rows:
        by_step[row.step][_scope(row.node)] += 1
        operators_of[row.step][row.operator] += 1
        line = location_of(row.node, largest.function) if row.place == "host" else ""
        if line and line not in lines[row.step]:
            lines[row.step].append(line)
    return [
        {
            "step": index,
            "place": largest.steps[index] if index < len(largest.steps) else "NPU",
            "nodes": sum(scopes.values()),
            "scopes": scopes.most_common(12),
            "operators": operators_of[index].most_common(8),
            "locations": lines[index][:_NAMED],
        }
        for index, scopes in sorted(by_step.items())
    ]


def drawing(location_of: Callable[[str, str], str]) -> dict[str, Any]:
    """The layers of the largest function and how they are connected."""
    largest = max(reports(), key=lambda e: len(e.rows), default=None)
    if largest is None:
        return {}
    name = largest.function
    graph = next(found.report.graph for found in functions.compiled() if found.name == name and found.report)
    rows = {row.node: row for row in largest.rows}
    return draw(
        DrawnNode(
            node, row.operator, row.place, tuple(source for source, _ in graph.nodes[node].inputs), row.step,
            location=location_of(node, name) if row.place == "host" else "",
        )
        for node in graph.order()
        if (row := rows.get(node)) is not None
    )  # fmt: skip


def _scope(node: str) -> str:
    """The layer of a node.

    >>> _scope("sequential_1/dense_1/MatMul"), _scope("gradient_tape/sequential_1/dense_1/MatMul_1"), _scope("x")
    ('sequential_1/dense_1', 'gradient_tape/sequential_1/dense_1', 'x')
    """
    return node.rpartition("/")[0] or node


def spans(timeline: list[Any], began: float) -> list[dict[str, Any]]:
    """Calls over time: name, kind, start and end in seconds since the run began."""
    kinds = {name: _kind(name, on_npu) for name, on_npu in {(s[0], s[1]) for s in timeline}}
    return [
        {"name": name, "kind": kinds[name], "begin": begin / 1e9 - began, "end": end / 1e9 - began}
        for name, _, _, begin, end in timeline
    ]


def _kind(name: str, on_npu: bool) -> str:
    if on_npu:
        return "NPU"
    if functions.is_step(name):
        nodes = functions.step_of(name).graph.nodes.values()
        if any("Iterator" in node.op for node in nodes):
            return "input"
    return "input" if "Iterator" in name else "host"


def memory() -> dict[str, int]:
    """The device's own account of its memory."""
    return dict(npu_runtime.memory_info())
