"""Optimizers by the names of the device's own interface: PyTorch's, which torch.compile makes one graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_

__all__ = ["NpuFusedAdadelta", "NpuFusedAdam", "NpuFusedAdamW", "NpuFusedRMSprop", "NpuFusedSGD"]


class _Clips:
    """Clips the gradients of an optimizer's parameters."""

    param_groups: list[dict[str, Any]]

    def clip_grad_norm_fused_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """The norm of all gradients, which are scaled to at most `max_norm`."""
        return clip_grad_norm_(self._parameters(), max_norm, norm_type)

    def _parameters(self) -> Iterable[torch.Tensor]:
        return [p for group in self.param_groups for p in group["params"]]


class NpuFusedAdam(_Clips, torch.optim.Adam):
    """Adam."""


class NpuFusedAdamW(_Clips, torch.optim.AdamW):
    """AdamW."""


class NpuFusedSGD(_Clips, torch.optim.SGD):
    """Stochastic gradient descent with momentum."""


class NpuFusedAdadelta(_Clips, torch.optim.Adadelta):
    """Adadelta."""


class NpuFusedRMSprop(_Clips, torch.optim.RMSprop):
    """RMSprop."""
