"""Transformers: BERT (post-norm encoder), GPT-2 (causal, pre-norm) and ViT (pre-norm over patches)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from benchmarks.models.port import KerasPort, KerasTensor

__all__ = ["Bert", "Gpt2", "VisionTransformer", "keras_bert", "keras_gpt2", "keras_vit"]


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

        mixed = nn.functional.scaled_dot_product_attention(
            split(self.query(x)), split(self.key(x)), split(self.value(x)), is_causal=self.causal
        )
        return self.output(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention and a two-layer perceptron with residuals, normalised before or after."""

    def __init__(
        self, width: int, heads: int, *, pre_norm: bool, causal: bool = False, tanh_gelu: bool = False
    ) -> None:
        super().__init__()
        self.pre_norm = pre_norm
        self.attention = Attention(width, heads, causal)
        self.attention_norm = nn.LayerNorm(width, eps=1e-6 if pre_norm else 1e-12)
        self.up = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU(approximate="tanh" if tanh_gelu else "none")
        self.down = nn.Linear(4 * width, width)
        self.mlp_norm = nn.LayerNorm(width, eps=1e-6 if pre_norm else 1e-12)

    def mlp(self, x: Tensor) -> Tensor:
        return self.down(self.gelu(self.up(x)))

    def forward(self, x: Tensor) -> Tensor:
        if self.pre_norm:
            x = x + self.attention(self.attention_norm(x))
            return x + self.mlp(self.mlp_norm(x))
        x = self.attention_norm(x + self.attention(x))
        return self.mlp_norm(x + self.mlp(x))


class Bert(nn.Module):
    """The BERT encoder from token ids to its last hidden state; the defaults are BERT-base."""

    def __init__(
        self, width: int = 768, depth: int = 12, heads: int = 12, vocabulary: int = 30522, length: int = 128
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(1, length, width))
        self.segment = nn.Parameter(0.02 * torch.randn(width))
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.blocks = nn.ModuleList(Block(width, heads, pre_norm=False) for _ in range(depth))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.tokens(ids) + self.positions + self.segment)
        for block in self.blocks:
            x = block(x)
        return x


class Gpt2(nn.Module):
    """The GPT-2 decoder from token ids to next-token scores; the defaults are GPT-2 small."""

    def __init__(
        self, width: int = 768, depth: int = 12, heads: int = 12, vocabulary: int = 50257, length: int = 128
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(1, length, width))
        self.blocks = nn.ModuleList(
            Block(width, heads, pre_norm=True, causal=True, tanh_gelu=True) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class VisionTransformer(nn.Module):
    """ViT with a class token; the defaults are ViT-B/16 at 224×224."""

    def __init__(
        self,
        image: int = 224,
        patch: int = 16,
        width: int = 768,
        depth: int = 12,
        heads: int = 12,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (image // patch) ** 2 + 1, width))
        self.blocks = nn.ModuleList(Block(width, heads, pre_norm=True) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def _keras_attention(port: KerasPort, x: KerasTensor, path: str) -> KerasTensor:
    ops = port.ops
    attention = port.at(path)
    batch, length, width = x.shape
    depth = width // attention.heads

    def split(y: KerasTensor) -> KerasTensor:
        return ops.transpose(ops.reshape(y, (batch, length, attention.heads, depth)), (0, 2, 1, 3))

    query, key, value = (split(port.dense(x, f"{path}.{name}")) for name in ("query", "key", "value"))
    scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))) * depth**-0.5
    if attention.causal:
        scores = scores + port.parameter(torch.full((length, length), -1e9).triu(1))
    mixed = ops.matmul(ops.softmax(scores, axis=-1), value)
    return port.dense(
        ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (batch, length, width)), f"{path}.output"
    )


def _keras_blocks(port: KerasPort, x: KerasTensor) -> KerasTensor:
    for index, block in enumerate(port.module.blocks):
        path = f"blocks.{index}"

        def attend(y: KerasTensor, path: str = path) -> KerasTensor:
            return _keras_attention(port, y, f"{path}.attention")

        def mlp(y: KerasTensor, path: str = path) -> KerasTensor:
            return port.dense(port.activation(port.dense(y, f"{path}.up"), f"{path}.gelu"), f"{path}.down")

        if block.pre_norm:
            x = port.add(x, attend(port.layer_norm(x, f"{path}.attention_norm")))
            x = port.add(x, mlp(port.layer_norm(x, f"{path}.mlp_norm")))
        else:
            x = port.layer_norm(port.add(x, attend(x)), f"{path}.attention_norm")
            x = port.layer_norm(port.add(x, mlp(x)), f"{path}.mlp_norm")
    return x


def keras_bert(port: KerasPort, ids: KerasTensor) -> KerasTensor:
    """BERT in Keras, with the module's weights."""
    module = port.module
    x = port.embedding(ids, "tokens") + port.parameter(module.positions) + port.parameter(module.segment)
    return _keras_blocks(port, port.layer_norm(x, "norm"))


def keras_gpt2(port: KerasPort, ids: KerasTensor) -> KerasTensor:
    """GPT-2 in Keras, with the module's weights."""
    x = port.embedding(ids, "tokens") + port.parameter(port.module.positions)
    return port.dense(port.layer_norm(_keras_blocks(port, x), "norm"), "head")


def keras_vit(port: KerasPort, image: KerasTensor) -> KerasTensor:
    """ViT in Keras, with the module's weights."""
    ops, module = port.ops, port.module
    x = port.conv(image, "patches")
    batch, height, width, channels = x.shape
    x = ops.reshape(x, (batch, height * width, channels))
    token = ops.broadcast_to(port.parameter(module.token), (batch, 1, channels))
    x = _keras_blocks(port, ops.concatenate([token, x], axis=1) + port.parameter(module.positions))
    return port.dense(port.layer_norm(x, "norm")[:, 0], "head")
