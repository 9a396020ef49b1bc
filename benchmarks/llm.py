"""A small Llama-like model with a static cache of keys and values, and weights of few bits, for measuring decoding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

import torch_npu

__all__ = ["Config", "Int4Linear", "Int8Linear", "Llama", "TorchInt4Linear", "quantise"]


@dataclass(frozen=True)
class Config:
    """Sizes of a model."""

    vocabulary: int = 8192
    width: int = 512
    hidden: int = 1408
    heads: int = 8
    groups: int = 4  # heads of keys and values
    layers: int = 6
    length: int = 256  # of the cache


class RmsNorm(nn.Module):
    """Rows divided by their root mean square."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        return scaled.to(x.dtype) * self.weight


class Attention(nn.Module):
    """Attention of grouped heads over the cache, with rotary positions."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.groups, self.size = config.heads, config.groups, config.width // config.heads
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, self.groups * self.size, bias=False)
        self.value = nn.Linear(config.width, self.groups * self.size, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        shape = (1, self.groups, config.length, self.size)
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))

    def forward(
        self, x: torch.Tensor, places: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        q = rotate(self._split(self.query(x), self.heads), turn)
        self.keys.index_copy_(2, places, rotate(self._split(self.key(x), self.groups), turn))
        self.values.index_copy_(2, places, self._split(self.value(x), self.groups))
        seen = torch.arange(self.keys.shape[2]) <= places[:, None]
        repeats = self.heads // self.groups
        k, v = (t.repeat_interleave(repeats, 1) for t in (self.keys, self.values))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.out(y.transpose(1, 2).flatten(2))

    def _split(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        return x.unflatten(-1, (heads, self.size)).transpose(1, 2)


def rotate(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Pairs of elements turned by the angles of their position."""
    cosine, sine = turn
    left, right = x.chunk(2, -1)
    return x * cosine + torch.cat((-right, left), -1) * sine


class Block(nn.Module):
    """One layer: attention and a gated feed-forward network."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.before, self.after = RmsNorm(config.width), RmsNorm(config.width)
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(
        self, x: torch.Tensor, places: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        x = x + self.attention(self.before(x), places, turn)
        y = self.after(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Logits of the next token; keys and values of the given places are written into the caches."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RmsNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        size = config.width // config.heads
        angles = torch.arange(config.length)[:, None] / 1e4 ** (torch.arange(0, size, 2) / size)
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())

    def forward(self, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        turn = self.cosines[places], self.sines[places]
        for block in self.blocks:
            x = block(x, places, turn)
        return self.head(self.norm(x[:, -1]))

    def clear(self) -> None:
        """Empty the caches."""
        for block in self.blocks:
            block.attention.keys.zero_()
            block.attention.values.zero_()


class Int8Linear(nn.Module):
    """A linear layer whose weights are int8 with one factor a row; inputs and results stay floating point."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-8) / 127
        self.register_buffer("weight", (weight / scale).round().to(torch.int8))
        self.register_buffer("scale", scale.squeeze(1).to(linear.weight.dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._weight_int8pack_mm(x.flatten(0, -2), self.weight, self.scale).unflatten(
            0, x.shape[:-1]
        )


GROUP = 64  # weights that share a factor


def _levels_of_4_bits(linear: nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
    """Levels of -8 to 7, and a factor for each group of a row."""
    grouped = linear.weight.detach().float().unflatten(1, (-1, GROUP))
    scale = (grouped.abs().amax(2) / 7).clamp(min=1e-8)
    return (grouped / scale.unsqueeze(2)).round().clamp(-8, 7).flatten(1).to(torch.int32), scale


class Int4Linear(nn.Module):
    """A linear layer whose weights have 4 bits, as the NPU's operator takes them."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        levels, scale = _levels_of_4_bits(linear)
        self.register_buffer("weight", torch_npu.npu_convert_weight_to_int4pack(levels))
        self.register_buffer("scale", scale.t().contiguous())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch_npu.npu_weight_quant_batchmatmul(
            x, self.weight.t(), self.scale, antiquant_group_size=GROUP
        )


class TorchInt4Linear(nn.Module):
    """The same layer by PyTorch's own kernel for processors."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        levels, scale = _levels_of_4_bits(linear)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels + 8, 1)
        self.register_buffer("weight", packed)
        self.register_buffer("scale", torch.stack((scale.t(), torch.zeros_like(scale.t())), -1).contiguous())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.ops.aten._weight_int4pack_mm_for_cpu(x.flatten(0, -2), self.weight, GROUP, self.scale)
        return made.unflatten(0, x.shape[:-1])


def quantise(module: nn.Module, kind: type[nn.Module] = Int8Linear) -> nn.Module:
    """Replace the linear layers of a module by ones with packed weights."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, kind(child))
        else:
            quantise(child, kind)
    return module
