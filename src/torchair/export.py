"""Export: a model as an `.air` file, which `atc --framework=1` compiles and `acl` runs without PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ge.parsers import air
from torchair.backend import compile_graphs
from torchair.config import CompilerConfig
from torchair.lowering import HostCall, NpuPart

__all__ = ["dynamo_export", "write_model"]


class _Exporting(CompilerConfig):
    """A configuration that passes on what is compiled."""

    def __init__(self, config: CompilerConfig | None, sink: list[Any]) -> None:
        super().__init__()
        self.__dict__.update(_values={} if config is None else config._values, _sink=sink)

    def on_compile(self, kind: str) -> Any:
        return self._sink.append


def dynamo_export(
    *args: Any,
    model: torch.nn.Module,
    export_path: str = "export_file",
    export_name: str = "export",
    config: CompilerConfig | None = None,
    **kwargs: Any,
) -> Path:
    """Write a model as `<export_path>/<export_name>.air`, for inputs like the given ones; returns the path.

    Parameters are constants of the file. A model with calls that only ATen can run raises, naming them.

    >>> dynamo_export(torch.ones(1, 3), model=torch.nn.Linear(3, 2))      # doctest: +SKIP
    """
    plans: list[Any] = []
    settings = _Exporting(config, plans)
    torch._dynamo.reset()

    def backend(module: Any, example_inputs: list[Any], **options: Any) -> Any:
        return compile_graphs(module, example_inputs, settings)

    with torch.no_grad():
        torch.compile(model, backend=backend, fullgraph=True)(*args, **kwargs)
    torch._dynamo.reset()
    if len(plans) != 1:
        raise RuntimeError(f"the model was compiled as {len(plans)} graphs where one is needed")
    return write_model(plans[0], Path(export_path), export_name)


def write_model(plan: Any, folder: Path, name: str) -> Path:
    """Write a compiled graph that is all of a model as an `.air` file."""
    folder.mkdir(parents=True, exist_ok=True)
    return air.write(_whole(plan).graph, folder / f"{name}.air")


def _whole(plan: Any) -> NpuPart:
    """The one part that is all of the model."""
    lowered = plan.lowered
    calls = sorted({str(s.node.target) for s in lowered.steps if isinstance(s, HostCall)})
    if calls:
        raise RuntimeError(f"only ATen can run {', '.join(calls)}: such a model cannot leave PyTorch")
    if lowered.writes or any(s.donated for s in lowered.steps):
        raise RuntimeError("the model writes into its inputs: a file has nowhere to keep them")
    if len(lowered.steps) != 1:
        raise RuntimeError("the model computes nothing")
    found: NpuPart = lowered.steps[0]
    return found
