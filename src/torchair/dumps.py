"""Graphs written to files: as Python, as text, as a table of calls, and the NPU's parts as files Netron opens."""

from __future__ import annotations

import collections
import csv
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.utils import _pytree as pytree

from ge.parsers import air

__all__ = ["Recording", "dump_graph", "summarise", "write_parts"]

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


class Recording(fx.Interpreter):
    """Runs a graph call by call on ATen, and writes every tensor it makes to a file of its own."""

    def __init__(self, module: fx.GraphModule, kind: str, folder: str) -> None:
        super().__init__(module)
        self._stem = f"data_{kind}_{next(_serial)}"
        self._folder = folder

    def run_node(self, n: fx.Node) -> Any:
        """As the interpreter does; what comes out is written under the node's name."""
        found = super().run_node(n)
        if n.op in ("placeholder", "call_function"):
            for place, value in enumerate(pytree.tree_leaves(found)):
                if isinstance(value, torch.Tensor):
                    self._write(f"{n.name}_{place}" if place else n.name, value)
        return found

    def _write(self, name: str, value: torch.Tensor) -> None:
        plain = value.detach().cpu()
        plain = plain.float() if plain.dtype is torch.bfloat16 else plain
        np.save(_path(self._folder, f"{self._stem}_{name}", ".npy"), plain.numpy())


def write_parts(plan: Any, kind: str, folder: str) -> list[Path]:
    """Write the NPU's parts of a compiled graph as .air files."""
    graphs = [step.graph for step in plan.lowered.steps if hasattr(step, "graph")]
    return [air.write(graph, _path(folder, f"npu_{kind}", ".air")) for graph in graphs]
