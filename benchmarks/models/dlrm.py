"""A DLRM-like recommendation model: dense features, embedding tables, pairwise interaction, perceptrons."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from benchmarks.models.port import KerasPort, KerasTensor

__all__ = ["Dlrm", "keras_dlrm"]


def perceptron(widths: Sequence[int]) -> nn.Sequential:
    """Linear layers with ReLU between and after them."""
    layers: list[nn.Module] = []
    for cin, cout in itertools.pairwise(widths):
        layers += [nn.Linear(cin, cout), nn.ReLU()]
    return nn.Sequential(*layers)


class Dlrm(nn.Module):
    """Bottom perceptron and tables → dot products of all pairs → top perceptron."""

    def __init__(
        self,
        dense: int = 13,
        tables: int = 26,
        rows: int = 10_000,
        width: int = 64,
        bottom: Sequence[int] = (512, 256),
        top: Sequence[int] = (1024, 1024, 512, 256),
    ) -> None:
        super().__init__()
        self.bottom = perceptron([dense, *bottom, width])
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        vectors = tables + 1
        lower = torch.tril_indices(vectors, vectors, -1)
        self.register_buffer("pairs", lower[0] * vectors + lower[1])
        self.top = perceptron([width + len(self.pairs), *top])
        self.score = nn.Linear(top[-1], 1)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        x = self.bottom(dense)
        vectors = [x] + [table(ids[:, index]) for index, table in enumerate(self.tables)]
        stacked = torch.stack(vectors, 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1)
        return torch.sigmoid(self.score(self.top(torch.cat([x, products.index_select(1, self.pairs)], 1))))


def keras_dlrm(port: KerasPort, dense: KerasTensor, ids: KerasTensor) -> KerasTensor:
    """The same network in Keras, with the module's weights."""
    ops, module = port.ops, port.module

    def perceptron(x: KerasTensor, path: str) -> KerasTensor:
        for index in range(0, len(port.at(path)), 2):
            x = port.relu(port.dense(x, f"{path}.{index}"))
        return x

    x = perceptron(dense, "bottom")
    vectors = [x] + [port.embedding(ids[:, index], f"tables.{index}") for index in range(len(module.tables))]
    stacked = ops.stack(vectors, axis=1)
    batch, count = stacked.shape[:2]
    products = ops.reshape(ops.matmul(stacked, ops.transpose(stacked, (0, 2, 1))), (batch, count * count))
    chosen = ops.take(products, module.pairs.numpy(), axis=1)
    return port.sigmoid(port.dense(perceptron(ops.concatenate([x, chosen], axis=1), "top"), "score"))
