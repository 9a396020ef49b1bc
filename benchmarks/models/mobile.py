"""MobileNetV2 and EfficientNet-B0: inverted residuals with depthwise convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from benchmarks.models.port import KerasPort, KerasTensor

__all__ = ["EFFICIENTNET_B0", "MOBILENET_V2", "InvertedResidualNet", "Stage", "keras_inverted_residual_net"]


@dataclass(frozen=True)
class Stage:
    """A run of blocks: expansion, output channels, how many, first stride, kernel."""

    expand: int
    channels: int
    depth: int
    stride: int
    kernel: int = 3


MOBILENET_V2 = (
    Stage(1, 16, 1, 1),
    Stage(6, 24, 2, 2),
    Stage(6, 32, 3, 2),
    Stage(6, 64, 4, 2),
    Stage(6, 96, 3, 1),
    Stage(6, 160, 3, 2),
    Stage(6, 320, 1, 1),
)
EFFICIENTNET_B0 = (
    Stage(1, 16, 1, 1, 3),
    Stage(6, 24, 2, 2, 3),
    Stage(6, 40, 2, 2, 5),
    Stage(6, 80, 3, 2, 3),
    Stage(6, 112, 3, 1, 5),
    Stage(6, 192, 4, 2, 5),
    Stage(6, 320, 1, 1, 3),
)


class ConvNorm(nn.Module):
    """A convolution, its batch normalisation and, unless linear, the network's activation."""

    def __init__(
        self,
        cin: int,
        cout: int,
        activation: type[nn.Module] | None,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(cout)
        self.activation = activation() if activation else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.norm(self.conv(x)))


class SqueezeExcite(nn.Module):
    """Channel attention from the global average."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, squeezed, 1)
        self.expand = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = nn.functional.silu(self.reduce(x.mean((2, 3), keepdim=True)))
        return x * torch.sigmoid(self.expand(gate))


class InvertedResidual(nn.Module):
    """Expand → depthwise → (squeeze-excite) → project, with a residual where the shape allows."""

    def __init__(
        self, cin: int, stage: Stage, stride: int, activation: type[nn.Module], squeeze: bool
    ) -> None:
        super().__init__()
        hidden = cin * stage.expand
        self.expand = ConvNorm(cin, hidden, activation) if stage.expand != 1 else None
        self.depthwise = ConvNorm(hidden, hidden, activation, stage.kernel, stride, hidden)
        self.squeeze = SqueezeExcite(hidden, max(1, cin // 4)) if squeeze else None
        self.project = ConvNorm(hidden, stage.channels, None)
        self.residual = stride == 1 and cin == stage.channels

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.expand is None else self.expand(x)
        y = self.depthwise(y)
        if self.squeeze is not None:
            y = self.squeeze(y)
        y = self.project(y)
        return x + y if self.residual else y


class InvertedResidualNet(nn.Module):
    """MobileNetV2 (ReLU6) or EfficientNet (SiLU and squeeze-excite), by the stages given."""

    def __init__(
        self,
        stages: Sequence[Stage],
        activation: type[nn.Module] = nn.ReLU6,
        squeeze: bool = False,
        features: int = 1280,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        channels = 32
        self.stem = ConvNorm(3, channels, activation, 3, 2)
        blocks: list[InvertedResidual] = []
        for stage in stages:
            for index in range(stage.depth):
                stride = stage.stride if index == 0 else 1
                blocks.append(InvertedResidual(channels, stage, stride, activation, squeeze))
                channels = stage.channels
        self.blocks = nn.ModuleList(blocks)
        self.features = ConvNorm(channels, features, activation)
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.features(x).mean((2, 3)))


def keras_inverted_residual_net(port: KerasPort, x: KerasTensor) -> KerasTensor:
    """The same network in Keras, with the module's weights."""
    module = port.module

    def conv_norm(x: KerasTensor, path: str) -> KerasTensor:
        x = port.norm(port.conv(x, f"{path}.conv"), f"{path}.norm")
        return port.activation(x, f"{path}.activation")

    def squeeze_excite(x: KerasTensor, path: str) -> KerasTensor:
        gate = port.swish(port.conv(port.global_average(x, keepdims=True), f"{path}.reduce"))
        return port.multiply(x, port.sigmoid(port.conv(gate, f"{path}.expand")))

    x = conv_norm(x, "stem")
    for index, block in enumerate(module.blocks):
        path = f"blocks.{index}"
        y = x if block.expand is None else conv_norm(x, f"{path}.expand")
        y = conv_norm(y, f"{path}.depthwise")
        if block.squeeze is not None:
            y = squeeze_excite(y, f"{path}.squeeze")
        y = conv_norm(y, f"{path}.project")
        x = port.add(x, y) if block.residual else y
    return port.dense(port.global_average(conv_norm(x, "features")), "head")
