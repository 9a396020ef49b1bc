"""Tensors of the NPU that are not strided."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["as_cpu", "as_npu", "register", "take_over"]


def as_cpu(tensor: torch.Tensor) -> torch.Tensor:
    raise _refusal(tensor)


def as_npu(tensor: torch.Tensor, index: int) -> torch.Tensor:
    raise _refusal(tensor)


def take_over(tensor: torch.Tensor, twin: torch.Tensor) -> None:
    raise _refusal(tensor)


def _refusal(tensor: torch.Tensor) -> NotImplementedError:
    kind = "quantised" if tensor.is_quantized else str(tensor.layout)
    return NotImplementedError(f"{kind} tensors cannot be on the npu device: keep them on the CPU")


def register(fallback: Callable[..., Any]) -> list[Any]:
    return []
