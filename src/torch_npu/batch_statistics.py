"""Batch normalisation in steps, which `SyncBatchNorm` asks every accelerator for, on tensors of the host.

Between the steps it sends the statistics of each rank to all others. Statistics of bfloat16 and float16 are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["KERNELS"]

Optional = torch.Tensor | None


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _over_channels(statistic: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A value a channel in the shape that broadcasts over a batch."""
    return statistic.reshape(1, -1, *[1] * (like.dim() - 2))


def _but_channels(x: torch.Tensor) -> list[int]:
    return [axis for axis in range(x.dim()) if axis != 1]


def _stats(input: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of each channel, and one divided by its standard deviation."""
    variance, mean = torch.var_mean(_wide(input), _but_channels(input), correction=0)
    return mean, (variance + eps).rsqrt()


def _gather_stats_with_counts(
    input: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, running_mean: Optional, running_var: Optional,
    momentum: float, eps: float, counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The statistics of all ranks together, from those of each; the running ones follow them."""
    shares = counts.to(mean.dtype).reshape(-1, 1)
    total = shares.sum()
    center = (mean * shares).sum(0) / total
    squares = ((invstd.pow(-2) - eps + (mean - center).square()) * shares).sum(0)
    for running, now in ((running_mean, center), (running_var, squares / (total - 1))):
        if running is not None:
            running.mul_(1 - momentum).add_(now.to(running.dtype), alpha=momentum)
    return center, (squares / total + eps).rsqrt()


def _gather_stats(
    input: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, running_mean: Optional, running_var: Optional,
    momentum: float, eps: float, count: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    counts = torch.full([mean.shape[0]], count, dtype=mean.dtype)
    return _gather_stats_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps, counts)


def _elemt(
    input: torch.Tensor,
    weight: Optional,
    bias: Optional,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """The normalised batch."""
    scale = invstd if weight is None else invstd * weight
    shifted = (_wide(input) - _over_channels(mean, input)) * _over_channels(scale, input)
    return (shifted if bias is None else shifted + _over_channels(bias, input)).to(input.dtype)


def _elemt_out(*args: Any, out: torch.Tensor) -> torch.Tensor:
    return out.copy_(_elemt(*args))


def _backward_reduce(
    grad_out: torch.Tensor, input: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, weight: Optional,
    input_g: bool, weight_g: bool, bias_g: bool,
) -> tuple[Optional, ...]:  # fmt: skip
    """What the gradient needs of all ranks, and the gradients of weight and bias."""
    slope, axes = _wide(grad_out), _but_channels(input)
    total = slope.sum(axes)
    against = (slope * (_wide(input) - _over_channels(mean, input))).sum(axes)
    kind = mean.dtype if weight is None else weight.dtype
    return (
        total if input_g else None,
        against if input_g else None,
        (against * invstd).to(kind) if weight_g else None,
        total.to(kind) if bias_g else None,
    )


def _backward_elemt(
    grad_out: torch.Tensor, input: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, weight: Optional,
    sum_dy: torch.Tensor, sum_dy_xmu: torch.Tensor, count: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """The gradient of the batch."""
    total = count.sum().to(mean.dtype)
    per_distance = _over_channels(sum_dy_xmu / total * invstd.square(), input)
    centered = _wide(input) - _over_channels(mean, input)
    slope = _wide(grad_out) - _over_channels(sum_dy / total, input) - centered * per_distance
    scale = invstd if weight is None else invstd * weight
    return (slope * _over_channels(scale, input)).to(input.dtype)


KERNELS: dict[str, Callable[..., torch.Tensor | Sequence[Optional]]] = {
    "batch_norm_stats": _stats,
    "batch_norm_gather_stats": _gather_stats,
    "batch_norm_gather_stats_with_counts": _gather_stats_with_counts,
    "batch_norm_elemt": _elemt,
    "batch_norm_elemt.out": _elemt_out,
    "batch_norm_backward_reduce": _backward_reduce,
    "batch_norm_backward_elemt": _backward_elemt,
}
