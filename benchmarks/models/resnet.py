"""ResNet50 v1.5 (stride in the 3×3 convolution) and a RegNet-like network of grouped convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from benchmarks.models.port import KerasPort, KerasTensor

__all__ = ["RegNet", "ResNet", "keras_resnet"]


class ConvNorm(nn.Module):
    """A convolution without bias and its batch normalisation."""

    def __init__(self, cin: int, cout: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(cout)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


class Bottleneck(nn.Module):
    """1×1 → 3×3 → 1×1 with a residual."""

    def __init__(self, cin: int, mid: int, cout: int, stride: int, groups: int = 1) -> None:
        super().__init__()
        self.reduce = ConvNorm(cin, mid)
        self.spatial = ConvNorm(mid, mid, 3, stride, groups)
        self.expand = ConvNorm(mid, cout)
        self.shortcut = ConvNorm(cin, cout, 1, stride) if stride != 1 or cin != cout else None
        nn.init.constant_(
            self.expand.norm.weight, 0.2
        )  # small branches: activations keep their scale with depth

    def forward(self, x: Tensor) -> Tensor:
        residual = x if self.shortcut is None else self.shortcut(x)
        y = torch.relu(self.reduce(x))
        y = torch.relu(self.spatial(y))
        return torch.relu(self.expand(y) + residual)


class ResNet(nn.Module):
    """The bottleneck ResNet; `depths=(3, 4, 6, 3), width=64` is ResNet50."""

    def __init__(self, depths: Sequence[int] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.stem = ConvNorm(3, width, 7, 2)
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks: list[Bottleneck] = []
        channels = width
        for stage, depth in enumerate(depths):
            mid = width << stage
            for index in range(depth):
                stride = 2 if index == 0 and stage > 0 else 1
                blocks.append(Bottleneck(channels, mid, 4 * mid, stride))
                channels = 4 * mid
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class RegNet(nn.Module):
    """A RegNetX-like network: bottlenecks without expansion whose 3×3 convolutions are grouped."""

    def __init__(
        self,
        depths: Sequence[int] = (1, 2, 7, 12),
        widths: Sequence[int] = (32, 64, 160, 384),
        group_width: int = 16,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.stem = ConvNorm(3, 32, 3, 2)
        self.pool = nn.Identity()
        blocks: list[Bottleneck] = []
        channels = 32
        for depth, width in zip(depths, widths, strict=True):
            for index in range(depth):
                blocks.append(
                    Bottleneck(channels, width, width, 2 if index == 0 else 1, width // group_width)
                )
                channels = width
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(channels, classes)

    forward = ResNet.forward


def keras_resnet(port: KerasPort, x: KerasTensor) -> KerasTensor:
    """The same network in Keras (ResNet and RegNet alike), with the module's weights."""
    module = port.module

    def conv_norm(x: KerasTensor, path: str) -> KerasTensor:
        return port.norm(port.conv(x, f"{path}.conv"), f"{path}.norm")

    x = port.relu(conv_norm(x, "stem"))
    if isinstance(module.pool, nn.MaxPool2d):
        x = port.max_pool(x, "pool")
    for index, block in enumerate(module.blocks):
        path = f"blocks.{index}"
        residual = x if block.shortcut is None else conv_norm(x, f"{path}.shortcut")
        y = port.relu(conv_norm(x, f"{path}.reduce"))
        y = port.relu(conv_norm(y, f"{path}.spatial"))
        x = port.relu(port.add(conv_norm(y, f"{path}.expand"), residual))
    return port.dense(port.global_average(x), "head")
