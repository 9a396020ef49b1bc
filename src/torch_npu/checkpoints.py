"""Layers of checkpoints with packed weights: the layouts of GPTQ and AWQ, and linear layers that keep them packed."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import torch
from torch import nn
from torch.nn import functional

from torch_npu.quantisation import npu_convert_weight_to_int4pack, npu_weight_quant_batchmatmul

__all__ = ["CheckpointLinear", "Layout", "PackedLinear", "pack", "replace_linear", "unpack_words"]

_WORD = 32  # bits
_AWQ_COLUMNS = (0, 4, 1, 5, 2, 6, 3, 7)  # where in a word column 0, 1, ... of eight stands


class Layout(enum.Enum):
    """How a checkpoint stores levels: weight = (level - zero) * scale."""

    GPTQ = "gptq"  # levels along the depth, zeros along the columns and less by one
    GPTQ_V2 = "gptq_v2"  # the same with zeros as they are
    AWQ = "awq"  # levels and zeros along the columns, in an order of their own


def unpack_words(words: torch.Tensor, bits: int, axis: int) -> torch.Tensor:
    """The unsigned numbers that int32 words hold along an axis, the lowest bits first, also across words.

    >>> unpack_words(torch.tensor([0x321]), 4, 0)[:4]
    tensor([1, 2, 3, 0], dtype=torch.int32)
    """
    words = words.to(torch.int64).movedim(axis, -1) & 0xFFFFFFFF
    per_run = _WORD // bits if _WORD % bits == 0 else _WORD
    words = words.unflatten(-1, (-1, per_run * bits // _WORD))
    levels = []
    for number in range(per_run):
        word, shift = divmod(number * bits, _WORD)
        level = words[..., word] >> shift
        if shift + bits > _WORD:
            level = level | (words[..., word + 1] << (_WORD - shift))
        levels.append((level & ((1 << bits) - 1)).to(torch.int32))
    return torch.stack(levels, -1).flatten(-2).movedim(-1, axis)


class CheckpointLinear(nn.Module):
    """A linear layer with the tensors of a checkpoint by their names there; `packed` gives the layer that computes.

    Called itself, it multiplies by its weights in the type of x, unpacked in every call.
    """

    qweight: torch.Tensor
    qzeros: torch.Tensor
    scales: torch.Tensor
    g_idx: torch.Tensor | None
    bias: torch.Tensor | None

    def __init__(
        self, depth: int, columns: int, *, layout: Layout, bits: int, group: int, bias: bool = False
    ) -> None:
        super().__init__()
        if bits not in ((4,) if layout is Layout.AWQ else (2, 3, 4, 8)):
            raise NotImplementedError(f"weights of {bits} bits in the layout of {layout.value}")
        self.depth, self.columns, self.layout, self.bits = depth, columns, layout, bits
        self.group = group if group > 0 else depth
        groups = -(-depth // self.group)
        words = (depth, columns * bits // _WORD) if layout is Layout.AWQ else (depth * bits // _WORD, columns)
        self.register_buffer("qweight", torch.zeros(words, dtype=torch.int32))
        self.register_buffer("qzeros", torch.zeros((groups, columns * bits // _WORD), dtype=torch.int32))
        self.register_buffer("scales", torch.zeros((groups, columns), dtype=torch.float16))
        g_idx = None if layout is Layout.AWQ else torch.arange(depth, dtype=torch.int32) // self.group
        self.register_buffer("g_idx", g_idx)
        self.register_buffer("bias", torch.zeros(columns, dtype=torch.float16) if bias else None)

    def levels(self) -> torch.Tensor:
        """Unsigned levels (depth, columns)."""
        if self.layout is not Layout.AWQ:
            return unpack_words(self.qweight, self.bits, 0)
        return self._in_order(unpack_words(self.qweight, self.bits, 1))

    def zeros(self) -> torch.Tensor:
        """The level of zero for each group and column."""
        found = unpack_words(self.qzeros, self.bits, 1)
        if self.layout is Layout.AWQ:
            return self._in_order(found)
        return found + 1 if self.layout is Layout.GPTQ else found

    @staticmethod
    def _in_order(levels: torch.Tensor) -> torch.Tensor:
        return levels.unflatten(1, (-1, 8))[..., list(_AWQ_COLUMNS)].flatten(1)

    def dequantised(self) -> torch.Tensor:
        """The weights (depth, columns) in float32."""
        group = torch.arange(self.depth, device=self.qweight.device) // self.group
        group = group if self.g_idx is None else self.g_idx.long()
        return (self.levels() - self.zeros()[group]) * self.scales.float()[group]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return functional.linear(x, self.dequantised().t().to(x.dtype), bias)

    def packed(self) -> PackedLinear:
        """The same layer with weights as the NPU's operator takes them."""
        return PackedLinear(self)


class PackedLinear(nn.Module):
    """A linear layer whose weights have 4 or 8 bits and stay packed; x and the bias have gradients."""

    weight: torch.Tensor
    scale: torch.Tensor
    offset: torch.Tensor
    order: torch.Tensor | None
    bias: torch.Tensor | None

    def __init__(self, source: CheckpointLinear) -> None:
        super().__init__()
        self.in_features, self.out_features, self.group = source.depth, source.columns, source.group
        levels = source.levels()
        order = _order_of_groups(source)
        levels = levels if order is None else levels[order]
        middle = 128 if source.bits == 8 else 8
        rows = (levels - middle).t().contiguous()
        weight = rows.to(torch.int8) if source.bits == 8 else npu_convert_weight_to_int4pack(rows)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", source.scales)
        self.register_buffer("offset", (middle - source.zeros()).to(source.scales.dtype))
        self.register_buffer("order", order)
        self.register_buffer("bias", source.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.order is None else x[..., self.order]
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return npu_weight_quant_batchmatmul(
            x, self.weight.t(), self.scale, self.offset, bias=bias, antiquant_group_size=self.group
        )

    def extra_repr(self) -> str:
        bits = 8 if self.weight.dtype is torch.int8 else 4
        return f"{self.in_features}, {self.out_features}, bits={bits}, group={self.group}"


def _order_of_groups(source: CheckpointLinear) -> torch.Tensor | None:
    """The order of x in which groups follow each other; None where they do."""
    group = torch.arange(source.depth, device=source.qweight.device) // source.group
    if source.g_idx is None or torch.equal(source.g_idx.long(), group):
        return None
    order = torch.argsort(source.g_idx, stable=True)
    if not torch.equal(source.g_idx.long()[order], group):
        raise ValueError(f"g_idx has groups that are not of {source.group} weights each")
    return order


def replace_linear(
    model: nn.Module, names: Iterable[str], *, layout: Layout, bits: int, group: int
) -> list[str]:
    """Put layers of a checkpoint in the place of the named linear layers, to load its tensors; returns the names."""
    replaced = []
    for name in names:
        linear = model.get_submodule(name)
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"{name} is a {type(linear).__name__}, not a torch.nn.Linear")
        with linear.weight.device:
            layer = CheckpointLinear(
                linear.in_features,
                linear.out_features,
                layout=layout,
                bits=bits,
                group=group,
                bias=linear.bias is not None,
            )
        model.set_submodule(name, layer)
        replaced.append(name)
    return replaced


def pack(model: nn.Module) -> nn.Module:
    """Replace layers of a checkpoint, whose tensors are loaded, by packed ones."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, CheckpointLinear):
            model.set_submodule(name, layer.packed())
    return model
