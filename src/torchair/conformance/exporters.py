"""The ONNX files that PyTorch's exporters write, with an open batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

__all__ = ["by_torch_export", "by_torchscript", "seeded"]


def seeded(make: Callable[[], Any]) -> Any:
    """A network whose weights are the same in every run."""
    torch.manual_seed(0)
    return make().eval()


def by_torchscript(network: Any, inputs: tuple[Any, ...], path: Path, version: int) -> None:
    names = _names(inputs)
    axes = {name: {0: "batch"} for name in names}
    torch.onnx.export(
        network,
        inputs,
        str(path),
        input_names=names,
        dynamic_axes=axes,
        opset_version=version,
        dynamo=False,
    )


def by_torch_export(network: Any, inputs: tuple[Any, ...], path: Path, version: int) -> None:
    torch.onnx.export(
        network,
        inputs,
        path,
        input_names=_names(inputs),
        dynamic_shapes=tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs),
        opset_version=version,
        dynamo=True,
        verbose=False,
    )


def _names(inputs: tuple[Any, ...]) -> list[str]:
    return [f"x{i}" for i in range(len(inputs))]
