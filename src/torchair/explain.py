"""Which calls of a model the NPU runs, which stay with ATen, and why."""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchair.backend import get_npu_backend
from torchair.config import CompilerConfig
from torchair.executable import GraphReport, observe

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True)
class Explanation:
    """The graphs of a model and who runs their calls."""

    graphs: tuple[GraphReport, ...]

    @property
    def npu_calls(self) -> int:
        """How many calls the NPU runs."""
        return sum(g.npu_calls for g in self.graphs)

    @property
    def host_calls(self) -> int:
        """How many calls ATen runs."""
        return sum(len(g.refusals) for g in self.graphs)

    def __str__(self) -> str:
        lines = [f"{len(self.graphs)} graph(s), {self.npu_calls} calls on the NPU, {self.host_calls} on ATen"]
        for graph in self.graphs:
            lines.append(f"  {graph.kind}: {graph.npu_calls} calls in {graph.parts} NPU part(s)")
            if graph.copied_bytes:
                where = f"tensors in the memory of {graph.memory}"
                lines.append(f"    {where}: {graph.copied_bytes} bytes copied to and from the GPU in a call")
            if graph.failure:
                lines.append(f"    all on ATen: {graph.failure}")
            reasons = collections.Counter((r.operator, r.reason) for r in graph.refusals)
            lines += [f"    {name} x{count} on ATen: {why}" for (name, why), count in reasons.most_common()]
            chosen = collections.Counter((c.operator, c.engine, c.reason) for c in graph.choices)
            lines += [
                f"    {name} x{count} on {engine}: {why}"
                for (name, engine, why), count in chosen.most_common()
            ]
        return "\n".join(lines)


def explain(
    model: Callable[..., Any], *args: Any, config: CompilerConfig | None = None, **kwargs: Any
) -> Explanation:
    """Compile and call a model once; tells what ran where.

    >>> print(explain(torch.nn.Linear(3, 2).eval(), torch.ones(1, 3)))
    1 graph(s), 2 calls on the NPU, 0 on ATen
      inference: 2 calls in 1 NPU part(s)
    """
    backend = get_npu_backend(compiler_config=config)
    with observe() as reports, torch.no_grad():
        torch.compile(model, backend=backend)(*args, **kwargs)
    return Explanation(tuple(reports))
