"""Small networks of the families that people run, built by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def conv(
    i: int, o: int, k: int = 3, s: int = 1, g: int = 1, act: Callable[[], nn.Module] = nn.ReLU
) -> nn.Sequential:
    """Convolution, normalisation, activation."""
    return nn.Sequential(nn.Conv2d(i, o, k, s, k // 2, groups=g, bias=False), nn.BatchNorm2d(o), act())


def head(channels: int) -> nn.Sequential:
    """Pooled features to ten classes."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


class Residual(nn.Module):
    """x + body(x), with a shortcut of its own where sizes change."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None, act: bool = True) -> None:
        super().__init__()
        self.body, self.shortcut, self.act = body, shortcut, act

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x) + (x if self.shortcut is None else self.shortcut(x))
        return F.relu(y) if self.act else y


class Parallel(nn.Module):
    """Branches side by side, concatenated."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([b(x) for b in self.branches], 1)


class SqueezeExcite(nn.Module):
    """Channels weighed by what they hold."""

    def __init__(self, channels: int, gate: Callable[[], nn.Module] = nn.Sigmoid) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, 4, 1), nn.ReLU(), nn.Conv2d(4, channels, 1), gate()
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.body(x)


class Shuffle(nn.Module):
    """One half through, one half convolved, channels mixed."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.body = nn.Sequential(conv(half, half, 1), conv(half, half, 3, g=half), conv(half, half, 1))

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        return F.channel_shuffle(torch.cat([a, self.body(b)], 1), 2)


class DenseLayer(nn.Module):
    """New channels beside the old ones."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, growth, 3, padding=1, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


class LayerNorm2d(nn.LayerNorm):
    """Over the channels of an image."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def _inverted(i: int, o: int, act: Callable[[], nn.Module], squeeze: bool = False) -> nn.Module:
    wide = 2 * i
    parts: list[nn.Module] = [conv(i, wide, 1, act=act), conv(wide, wide, 3, g=wide, act=act)]
    parts += [SqueezeExcite(wide, nn.Hardsigmoid)] if squeeze else []
    parts += [nn.Conv2d(wide, o, 1, bias=False), nn.BatchNorm2d(o)]
    body = nn.Sequential(*parts)
    return Residual(body, act=False) if i == o else body


def _bottleneck(i: int, o: int, g: int = 1, s: int = 1) -> nn.Module:
    body = nn.Sequential(
        conv(i, o, 1), conv(o, o, 3, s, g), nn.Conv2d(o, 2 * o, 1, bias=False), nn.BatchNorm2d(2 * o)
    )
    short = nn.Sequential(nn.Conv2d(i, 2 * o, 1, s, bias=False), nn.BatchNorm2d(2 * o))
    return Residual(body, short)


def _basic(i: int, o: int, s: int = 1) -> nn.Module:
    body = nn.Sequential(conv(i, o, 3, s), nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o))
    short = None if i == o and s == 1 else nn.Sequential(nn.Conv2d(i, o, 1, s, bias=False), nn.BatchNorm2d(o))
    return Residual(body, short)


def _asymmetric(i: int, o: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(i, o, (1, 5), padding=(0, 2)), nn.Conv2d(o, o, (5, 1), padding=(2, 0)), nn.ReLU()
    )


CNNS: dict[str, Callable[[], nn.Module]] = {
    "alexnet": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(8, 16, 5, padding=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Dropout(0.0), nn.Linear(16, 10),
    ),
    "vgg": lambda: nn.Sequential(conv(3, 8), conv(8, 8), nn.MaxPool2d(2), conv(8, 16), nn.MaxPool2d(2), head(16)),
    "resnet": lambda: nn.Sequential(conv(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1), _basic(8, 8), _basic(8, 16, 2), head(16)),
    "resnet50": lambda: nn.Sequential(conv(3, 8), _bottleneck(8, 8), _bottleneck(16, 8, s=2), head(16)),
    "resnext": lambda: nn.Sequential(conv(3, 8), _bottleneck(8, 8, g=4), head(16)),
    "densenet": lambda: nn.Sequential(conv(3, 8), DenseLayer(8, 4), DenseLayer(12, 4), nn.AvgPool2d(2), head(16)),
    "squeezenet": lambda: nn.Sequential(
        conv(3, 8, 3, 2), nn.MaxPool2d(3, 2, ceil_mode=True), conv(8, 4, 1), Parallel(conv(4, 8, 1), conv(4, 8, 3)),
        head(16),
    ),
    "googlenet": lambda: nn.Sequential(
        conv(3, 8),
        Parallel(conv(8, 4, 1), conv(8, 4, 3), conv(8, 4, 5), nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(8, 4, 1))),
        head(16),
    ),
    "inception": lambda: nn.Sequential(
        conv(3, 8), Parallel(_asymmetric(8, 8), nn.Sequential(nn.AvgPool2d(3, 1, 1), conv(8, 8, 1))), head(16)
    ),
    "mobilenet_v2": lambda: nn.Sequential(
        conv(3, 8, 3, 2, act=nn.ReLU6), _inverted(8, 8, nn.ReLU6), _inverted(8, 16, nn.ReLU6), head(16)
    ),
    "mobilenet_v3": lambda: nn.Sequential(
        conv(3, 8, 3, 2, act=nn.Hardswish), _inverted(8, 8, nn.Hardswish, True), head(8)
    ),
    "shufflenet": lambda: nn.Sequential(conv(3, 8), Shuffle(8), Shuffle(8), head(8)),
    "efficientnet": lambda: nn.Sequential(conv(3, 8, act=nn.SiLU), _inverted(8, 8, nn.SiLU, True), head(8)),
    "convnext": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 4, 4), LayerNorm2d(8),
        Residual(nn.Sequential(nn.Conv2d(8, 8, 7, padding=3, groups=8), LayerNorm2d(8), nn.Conv2d(8, 32, 1), nn.GELU(),
                               nn.Conv2d(32, 8, 1)), act=False),
        head(8),
    ),
}  # fmt: skip


# -- transformers ----------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Attention of several heads; rotary positions and fewer key heads where asked for."""

    def __init__(
        self, width: int, heads: int, kv_heads: int | None = None, causal: bool = False, rotary: bool = False
    ):
        super().__init__()
        self.heads, self.kv, self.size = heads, kv_heads or heads, width // heads
        self.causal, self.rotary = causal, rotary
        self.q = nn.Linear(width, width)
        self.k, self.v = (nn.Linear(width, self.kv * self.size) for _ in range(2))
        self.o = nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        source = x if memory is None else memory
        q = self.q(x).unflatten(-1, (self.heads, self.size)).transpose(1, 2)
        k, v = (p(source).unflatten(-1, (self.kv, self.size)).transpose(1, 2) for p in (self.k, self.v))
        if self.rotary:
            q, k = rotated(q), rotated(k)
        if self.kv != self.heads:
            k, v = (t.repeat_interleave(self.heads // self.kv, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.o(y.transpose(1, 2).flatten(2))


def rotated(x: Tensor, start: int = 0) -> Tensor:
    """Positions turned into angles."""
    length, size = x.shape[-2:]
    rates = 1.0 / (10000.0 ** (torch.arange(0, size, 2) / size))
    angles = torch.outer(torch.arange(start, start + length, dtype=torch.float32), rates)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., : size // 2], x[..., size // 2 :]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class RMSNorm(nn.Module):
    """Divided by the root of the mean square."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


class SwiGlu(nn.Module):
    """A gated layer."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(width, inner),
            nn.Linear(width, inner),
            nn.Linear(inner, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Each token goes to its two best experts."""

    def __init__(self, width: int, count: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(SwiGlu(width, 2 * width) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2)
        weights = weights / weights.sum(-1, keepdim=True)
        total = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            share = (weights * (chosen == index)).sum(-1, keepdim=True)
            total = total + share * expert(x)
        return total


class Block(nn.Module):
    """Attention and a layer, each with a normalisation before or after it."""

    def __init__(
        self, attention: nn.Module, layer: nn.Module, norm: Callable[[], nn.Module], before: bool = True
    ):
        super().__init__()
        self.attention, self.layer, self.before = attention, layer, before
        self.first, self.second = norm(), norm()

    def forward(self, x: Tensor) -> Tensor:
        if self.before:
            x = x + self.attention(self.first(x))
            return x + self.layer(self.second(x))
        x = self.first(x + self.attention(x))
        return self.second(x + self.layer(x))


def mlp(width: int, act: str = "none") -> nn.Sequential:
    """Wider, activated, back."""
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate=act), nn.Linear(4 * width, width))


class Bert(nn.Module):
    """Tokens, positions and segments; normalisation after each layer."""

    def __init__(self, width: int = 32, vocabulary: int = 50) -> None:
        super().__init__()
        self.tokens, self.places, self.kinds = (nn.Embedding(n, width) for n in (vocabulary, 16, 2))
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(
            Block(Attention(width, 4), mlp(width), lambda: nn.LayerNorm(width), before=False)
            for _ in range(2)
        )
        self.pool = nn.Linear(width, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1])
        x = self.norm(self.tokens(tokens) + self.places(places) + self.kinds(torch.zeros_like(tokens)))
        for block in self.blocks:
            x = block(x)
        return torch.tanh(self.pool(x[:, 0]))


class Decoder(nn.Module):
    """A language model from blocks."""

    def __init__(
        self, block: Callable[[], nn.Module], norm: Callable[[], nn.Module], width: int = 32
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, width)
        self.blocks = nn.ModuleList(block() for _ in range(2))
        self.norm = norm()
        self.out = nn.Linear(width, 50, bias=False)
        self.out.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))


class T5(nn.Module):
    """An encoder and a decoder that reads it."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, width)
        self.encoder = Block(Attention(width, 4), SwiGlu(width, 64), lambda: RMSNorm(width))
        self.decoder = Block(Attention(width, 4, causal=True), SwiGlu(width, 64), lambda: RMSNorm(width))
        self.across = Attention(width, 4)
        self.bias = nn.Parameter(torch.zeros(1, 1, width))

    def forward(self, tokens: Tensor) -> Tensor:
        memory = self.encoder(self.tokens(tokens))
        y = self.decoder(self.tokens(tokens.flip(1)) + self.bias)
        return y + self.across(y, memory)


class Vit(nn.Module):
    """An image as a sequence of patches."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        self.blocks = nn.ModuleList(
            Block(Attention(width, 4), mlp(width), lambda: nn.LayerNorm(width)) for _ in range(2)
        )
        self.out = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.out(x[:, 0])


class UNet(nn.Module):
    """Down, up, and what was on the way down beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(3, 8), conv(8, 16), conv(16, 8)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.out = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        b = self.b(F.max_pool2d(a, 2))
        return self.out(self.c(torch.cat([a, self.up(b)], 1)))


class DiffusionBlock(nn.Module):
    """Group normalisation, a time embedding, attention over pixels, nearest upsampling."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, channels), nn.GroupNorm(4, channels)
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.time = nn.Linear(32, channels)
        self.attention = Attention(channels, 2)
        self.stem = nn.Conv2d(3, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.arange(16) / 16
        rates = torch.exp(-math.log(10000) * steps) * x.shape[-1]
        embedding = torch.cat([rates.sin(), rates.cos()]).unsqueeze(0)
        x = F.avg_pool2d(self.stem(x), 4)
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(embedding))[..., None, None]
        y = x + self.conv2(F.silu(self.norm2(y)))
        flat = y.flatten(2).transpose(1, 2)
        y = y + self.attention(flat).transpose(1, 2).reshape(y.shape)
        return F.interpolate(y, scale_factor=2, mode="nearest")


class Lstm(nn.Module):
    """A recurrent classifier, gates by hand (a graph that is not cut at the layer)."""

    def __init__(self, width: int = 12, hidden: int = 16) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(width, hidden)
        self.out = nn.Linear(hidden, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], self.cell.hidden_size)
        for step in x.unbind(1):
            h, c = self.cell(step, (h, c))
        return self.out(h)


def _llama(width: int = 32, experts: bool = False) -> nn.Module:
    def block() -> nn.Module:
        layer = Experts(width) if experts else SwiGlu(width, 2 * width)
        return Block(Attention(width, 4, 2, causal=True, rotary=True), layer, lambda: RMSNorm(width))

    return Decoder(block, lambda: RMSNorm(width), width)


def _gpt2(width: int = 32) -> nn.Module:
    norm = lambda: nn.LayerNorm(width)  # noqa: E731
    return Decoder(lambda: Block(Attention(width, 4, causal=True), mlp(width, "tanh"), norm), norm, width)


def _tokens() -> tuple[Any, ...]:
    return (torch.randint(0, 50, (2, 9)),)


def _image() -> tuple[Any, ...]:
    return (torch.randn(2, 3, 32, 32),)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    **{name: (make, _image) for name, make in CNNS.items()},
    "bert": (Bert, _tokens),
    "gpt2": (_gpt2, _tokens),
    "vit": (Vit, _image),
    "llama": (_llama, _tokens),
    "mixtral": (lambda: _llama(experts=True), _tokens),
    "t5": (T5, _tokens),
    "lstm": (Lstm, lambda: (torch.randn(2, 5, 12),)),
    "unet": (UNet, _image),
    "diffusion": (DiffusionBlock, _image),
}
