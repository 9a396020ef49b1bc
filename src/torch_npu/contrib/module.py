"""Modules of `torch_npu.contrib`: those of PyTorch under the names that scripts for the device use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from torch_npu.surface import absent

__all__ = [
    "BiLSTM",
    "ChannelShuffle",
    "DropoutWithByteMask",
    "FastBatchNorm1d",
    "FastBatchNorm2d",
    "FastBatchNorm3d",
    "FastSyncBatchNorm",
    "Focus",
    "LabelSmoothingCrossEntropy",
    "Mish",
    "NpuCachedDropout",
    "NpuDropPath",
    "NpuFairseqDropout",
    "NpuPreGenDropout",
    "Prefetcher",
    "SiLU",
    "Swish",
]

_DETECTION = "take it from torchvision.ops, or write it as calls of PyTorch"
_QUANTISED = (
    "call torch_npu.npu_quant_matmul or torch_npu.npu_weight_quant_batchmatmul in a module of your own"
)
_ABSENT = {
    "DCNv2": _DETECTION,
    "FusedColorJitter": "take ColorJitter from torchvision.transforms: call it on the host",
    "LinearA8W8Quant": _QUANTISED,
    "LinearQuant": _QUANTISED,
    "LinearWeightQuant": _QUANTISED,
    "ModulatedDeformConv": _DETECTION,
    "MultiheadAttention": "call torch.nn.MultiheadAttention",
    "PSROIPool": _DETECTION,
    "QuantConv2d": _QUANTISED,
    "ROIAlign": _DETECTION,
}

Mish = nn.Mish
SiLU = Swish = nn.SiLU
FastBatchNorm1d, FastBatchNorm2d, FastBatchNorm3d = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d
FastSyncBatchNorm = nn.SyncBatchNorm


def __getattr__(name: str) -> Callable[..., Any]:
    if name in _ABSENT:
        return absent(f"contrib.module.{name}", _ABSENT[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class NpuCachedDropout(nn.Dropout):
    """Dropout; masks are not made ahead."""

    def __init__(self, p: float, module_name: str | None = None) -> None:
        super().__init__(p)


NpuFairseqDropout = NpuPreGenDropout = NpuCachedDropout


class DropoutWithByteMask(nn.Dropout):
    """Dropout."""

    def __init__(self, p: float = 0.5, inplace: bool = False, max_seed: int = 2**10 - 1) -> None:
        super().__init__(p, inplace)


class NpuDropPath(nn.Module):
    """Stochastic depth: leaves out whole samples, and scales the others up."""

    def __init__(self, drop_prob: float | None = None) -> None:
        super().__init__()
        self.drop_prob = drop_prob or 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or not self.drop_prob:
            return x
        kept = torch.rand(x.shape[0], *[1] * (x.dim() - 1), dtype=x.dtype, device=x.device) >= self.drop_prob
        return x * kept / (1 - self.drop_prob)


class BiLSTM(nn.Module):
    """The outputs of a bidirectional LSTM of one layer, by time."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.rnn = nn.LSTM(input_size, hidden_size, bidirectional=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.rnn(inputs)[0]
        return output


class ChannelShuffle(nn.Module):
    """Interleaves the channels of two tensors, as ShuffleNet does; as two halves where `split_shuffle` says so."""

    def __init__(self, in_channels: int, groups: int = 2, split_shuffle: bool = True) -> None:
        super().__init__()
        if groups != 2:
            raise ValueError(f"ChannelShuffle: groups={groups}, 2 is expected")
        self.split_shuffle = split_shuffle

    def forward(self, x1: torch.Tensor, x2: torch.Tensor) -> Any:
        shuffled = torch.stack((x1, x2), 2).flatten(1, 2)
        return shuffled.chunk(2, 1) if self.split_shuffle else shuffled


class LabelSmoothingCrossEntropy(nn.Module):
    """The mean cross-entropy of smoothed labels."""

    def __init__(self, num_classes: int = 1000, smooth_factor: float = 0.0) -> None:
        super().__init__()
        self.smooth_factor = smooth_factor

    def forward(self, pred: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(pred, target, label_smoothing=self.smooth_factor)


class Focus(nn.Module):
    """Every second pixel of a picture as a channel of its own, then a convolution, its normalisation and SiLU."""

    def __init__(
        self, c1: int, c2: int, k: int = 1, s: int = 1, p: int | None = None, g: int = 1, act: Any = True
    ) -> None:
        super().__init__()
        padding = k // 2 if p is None else p
        self.conv = nn.Conv2d(4 * c1, c2, k, s, padding, groups=g, bias=False)
        self.bn = nn.BatchNorm2d(c2)
        self.act = nn.SiLU() if act is True else act if isinstance(act, nn.Module) else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [x[..., i::2, j::2] for j in (0, 1) for i in (0, 1)]
        result: torch.Tensor = self.act(self.bn(self.conv(torch.cat(parts, 1))))
        return result


class Prefetcher:
    """Batches of a loader on the device; `next()` gives (None, None) after the last one."""

    def __init__(self, loader: Any, stream: Any = None) -> None:
        self.batches = iter(loader)

    def next(self) -> tuple[Any, Any]:
        """The next inputs and targets."""
        try:
            inputs, targets = next(self.batches)
        except StopIteration:
            return None, None
        return inputs.npu(), targets.npu()
