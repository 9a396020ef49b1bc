"""Graphs written to files: as Python, as text, as a table of calls, and the NPU's parts as files Netron opens."""

from __future__ import annotations

import collections
import csv
import itertools
from pathlib import Path
from typing import Any

from torch import fx

from ge.parsers import air

__all__ = ["dump_graph", "summarise", "write_parts"]

_serial = itertools.count()


def _path(folder: str, stem: str, suffix: str) -> Path:
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    return target / f"{stem}_{next(_serial)}{suffix}"


def dump_graph(module: fx.GraphModule, kind: str, form: str, folder: str) -> Path:
    """Write an ATen graph: "py" as code that runs, "txt" and "pbtxt" as a readable listing."""
    text = module.code if form == "py" else module.print_readable(print_output=False)
    path = _path(folder, f"aten_{kind}", ".py" if form == "py" else ".txt")
    path.write_text(text)
    return path


def summarise(module: fx.GraphModule, kind: str, folder: str) -> Path:
    """Write how often each operator is called."""
    counts = collections.Counter(str(n.target) for n in module.graph.nodes if n.op == "call_function")
    path = _path(folder, f"summary_{kind}", ".csv")
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["operator", "calls"])
        rows.writerows(counts.most_common())
    return path


def write_parts(plan: Any, kind: str, folder: str) -> list[Path]:
    """Write the NPU's parts of a compiled graph as .air files."""
    graphs = [step.graph for step in plan.lowered.steps if hasattr(step, "graph")]
    return [air.write(graph, _path(folder, f"npu_{kind}", ".air")) for graph in graphs]
