"""Networks for ONNX Runtime's tools beside those of tests/torch/torch_zoo.py: other kinds of layers, small."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.torch.torch_zoo import MODELS

__all__ = ["ALL", "NETWORKS", "exported"]


class Mixer(nn.Module):
    """Patches mixed across places, then across channels."""

    def __init__(self, width: int = 16, places: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.places = nn.Sequential(nn.Linear(places, 32), nn.GELU(), nn.Linear(32, places))
        self.channels = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.places(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return (x + self.channels(self.norms[1](x))).mean(1)


class Wavenet(nn.Module):
    """Dilated convolutions over time with gates."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, width, 1)
        self.layers = nn.ModuleList(
            [nn.Conv1d(width, 2 * width, 2, dilation=d, padding=d) for d in (1, 2, 4)]
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            value, gate = layer(x)[..., : x.shape[-1]].chunk(2, 1)
            x = x + torch.tanh(value) * torch.sigmoid(gate)
        return x


class Recommender(nn.Module):
    """Embeddings, products of all pairs, dense layers."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(20, width) for _ in range(3)])
        self.bottom = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, width))
        self.top = nn.Sequential(nn.Linear(width + 16, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        rows = torch.stack([bottom, *(t(ids[:, i]) for i, t in enumerate(self.tables))], 1)
        pairs = torch.bmm(rows, rows.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([bottom, pairs], 1))


class Windows(nn.Module):
    """Attention inside of shifted windows."""

    def __init__(self, width: int = 16, side: int = 4) -> None:
        super().__init__()
        self.side, self.norm = side, nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        s = self.side
        rolled = torch.roll(self.norm(x), (-s // 2, -s // 2), (1, 2))
        tiles = rolled.reshape(b, h // s, s, w // s, s, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, s * s, c)
        q, k, v = self.mixed(tiles).chunk(3, -1)
        made = self.out(torch.softmax(q @ k.transpose(1, 2) / c**0.5, -1) @ v)
        tiles = made.reshape(b, h // s, w // s, s, s, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return x + torch.roll(tiles, (s // 2, s // 2), (1, 2))


class Gru(nn.Module):
    """A recurrent layer in both directions and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(12, 8, batch_first=True, bidirectional=True)
        self.out = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x)[0][:, -1])


class Points(nn.Module):
    """Every point by itself, then the largest of all."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 1))
        self.out = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.each(x).amax(2))


class Segmenter(nn.Module):
    """A half-size map, scaled up bilinearly and joined with the picture's."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, 2, 1)
        self.out = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = torch.relu(self.fine(x))
        coarse = nn.functional.interpolate(torch.relu(self.coarse(fine)), scale_factor=2.0, mode="bilinear")
        return self.out(torch.cat([fine, coarse], 1))


def _autoencoder() -> nn.Module:
    down = (nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 4, 3, 2, 1), nn.ReLU())
    up = (nn.ConvTranspose2d(4, 8, 2, 2), nn.ReLU(), nn.ConvTranspose2d(8, 3, 2, 2), nn.Sigmoid())
    return nn.Sequential(*down, *up)


def _picture() -> tuple[Any, ...]:
    return (torch.randn(2, 3, 16, 16),)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "mixer": (Mixer, _picture),
    "wavenet": (Wavenet, lambda: (torch.randn(2, 1, 24),)),
    "recommender": (Recommender, lambda: (torch.randn(4, 5), torch.randint(0, 2, (4, 3)))),
    "windows": (Windows, lambda: (torch.randn(1, 8, 8, 16),)),
    "gru": (Gru, lambda: (torch.randn(2, 6, 12),)),
    "points": (Points, lambda: (torch.randn(2, 3, 20),)),
    "segmenter": (Segmenter, _picture),
    "autoencoder": (_autoencoder, _picture),
}

NOT_EXPORTED = {"shufflenet": "PyTorch's exporter has no channel_shuffle"}
ALL = {name: made for name, made in {**MODELS, **NETWORKS}.items() if name not in NOT_EXPORTED}


def exported(name: str, folder: Path) -> Path:
    """The file of a network, written to a folder."""
    make, inputs = ALL[name]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            make().eval(), inputs(), str(folder / f"{name}.onnx"), dynamo=False, opset_version=17
        )
    return folder / f"{name}.onnx"
