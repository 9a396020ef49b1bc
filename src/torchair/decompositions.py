"""The ATen operators to decompose before mapping: those of the core set that have no plugin."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, decompositions, get_decompositions
from torch._prims_common import compute_elementwise_output_logical_to_physical_perm
from torch.nn import functional

from ge.parsers.aten.parser import is_mapped

__all__ = ["table"]

aten = torch.ops.aten

# Outside the core table, but with a decomposition that says all of it.
_MORE = [
    aten.rrelu_with_noise,
    aten.l1_loss,
    aten.embedding_renorm,
    aten.hardswish_backward,
    aten.nll_loss_backward,
    aten._trilinear,
    aten.addmv,
    aten.logaddexp,
    aten.soft_margin_loss,
    aten.lerp,
]


def _like(
    make: Callable[..., torch.Tensor], fill: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[..., torch.Tensor]:
    """Random numbers in the shape and the memory layout of a tensor, without reading it.

    In another layout than the contiguous one eager mode draws other numbers, by filling an empty tensor.
    """

    def made(
        self: torch.Tensor,
        *,
        dtype: Any = None,
        layout: Any = None,
        device: Any = None,
        pin_memory: Any = None,
        memory_format: Any = None,
    ) -> torch.Tensor:
        shape, order = list(self.shape), _order(self, memory_format)
        known = {"dtype": dtype or self.dtype, "device": device or self.device}
        if order == sorted(order):
            return make(shape, **known)
        return fill(aten.empty_permuted.default(shape, order, **known))

    return made


def _order(tensor: torch.Tensor, memory_format: torch.memory_format | None) -> list[int]:
    """The order of axes in the memory of an empty tensor made like another one."""
    rank = tensor.dim()
    if memory_format in (torch.channels_last, torch.channels_last_3d):
        return [0, *range(2, rank), 1]
    if memory_format is torch.contiguous_format:
        return list(range(rank))
    return list(compute_elementwise_output_logical_to_physical_perm(tensor)[0])


def _dropout(input: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers that the framework draws without a compiler, so that a seed gives the same result."""
    if not train or p == 0:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(input), torch.zeros_like(input, dtype=torch.bool)
    order = _order(input, None)
    stored = [input.shape[a] for a in order]
    blank = aten.empty.memory_format(stored, dtype=input.dtype, device=input.device)
    noise = aten.bernoulli.p(blank, 1 - p).permute([order.index(a) for a in range(len(order))])
    return input * (noise / (1 - p)), noise != 0


def _max_unpool(self: torch.Tensor, indices: torch.Tensor, output_size: list[int], *_: Any) -> torch.Tensor:
    """Values put at their places of a plane; an index is checked against its own plane."""
    lead = list(self.shape[: -len(output_size)])
    plane = aten.zeros.default([*lead, math.prod(output_size)], dtype=self.dtype, device=self.device)
    placed = plane.scatter(-1, indices.flatten(len(lead)), self.flatten(len(lead)))
    return placed.view([*lead, *output_size])


def _encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> Any:
    """The layer that eager mode runs as one call, in the calls it stands for; with a mask it stays one."""
    if mask is not None or src.dim() != 3:
        return NotImplemented

    def attention(x: torch.Tensor) -> torch.Tensor:
        parts = functional.linear(x, qkv_weight, qkv_bias).chunk(3, -1)
        q, k, v = (p.unflatten(-1, (num_heads, embed_dim // num_heads)).transpose(1, 2) for p in parts)
        y = functional.scaled_dot_product_attention(q, k, v)
        return functional.linear(y.transpose(1, 2).flatten(2), proj_weight, proj_bias)

    def layer(x: torch.Tensor) -> torch.Tensor:
        y = functional.linear(x, ffn_weight_1, ffn_bias_1)
        y = functional.gelu(y) if use_gelu else functional.relu(y)
        return functional.linear(y, ffn_weight_2, ffn_bias_2)

    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, [embed_dim], weight, bias, eps)

    if norm_first:
        x = src + attention(norm(src, norm_weight_1, norm_bias_1))
        return x + layer(norm(x, norm_weight_2, norm_bias_2))
    x = norm(src + attention(src), norm_weight_1, norm_bias_1)
    return norm(x + layer(x), norm_weight_2, norm_bias_2)


def _isin(
    elements: torch.Tensor, test_elements: torch.Tensor, *, assume_unique: bool = False, invert: bool = False
) -> torch.Tensor:
    """PyTorch's own decomposition, except that NaN among many sorted elements would hide the others."""
    known = {"assume_unique": assume_unique, "invert": invert}
    dtype = torch.promote_types(elements.dtype, test_elements.dtype)
    few = test_elements.numel() < 10 * elements.numel() ** 0.145
    if few or assume_unique or not dtype.is_floating_point:
        return decompositions.isin(elements.to(dtype), test_elements.to(dtype), **known)
    ordered = test_elements.to(dtype).flatten().sort().values  # NaN comes last
    keys = torch.where(ordered.isnan(), torch.inf, ordered)
    flat = elements.to(dtype).flatten()
    places = torch.searchsorted(keys, flat).clamp(max=keys.numel() - 1)
    found = ordered[places] == flat
    return (~found if invert else found).view(elements.shape)


def _affine_grid(theta: torch.Tensor, size: list[int], align_corners: bool) -> torch.Tensor:
    """PyTorch's own decomposition fails for pictures one pixel wide: it makes a tensor that no graph can hold."""
    n, _, *space = size
    wide = theta.float() if theta.dtype in (torch.float16, torch.bfloat16) else theta
    known: dict[str, Any] = {"dtype": wide.dtype, "device": wide.device}
    ends = [0 if k == 1 else 1 if align_corners else (k - 1) / k for k in space]
    axes = [torch.linspace(-end, end, k, **known) for end, k in zip(ends, space, strict=True)]
    places = [*reversed(torch.meshgrid(*axes, indexing="ij")), torch.ones(space, **known)]
    base = torch.stack(places, -1).view(-1, len(places), 1)
    grid = (base * wide.mT.unsqueeze(1)).sum(-2)
    return grid.to(theta.dtype).view(n, *space, len(space))


def _checked(decomposition: Callable[..., Any], accepts: Callable[..., bool]) -> Callable[..., Any]:
    """The decomposition of operands that PyTorch's kernels accept; the others stay, for PyTorch's error."""

    @functools.wraps(decomposition)
    def checked(*args: Any, **named: Any) -> Any:
        tensors = [v for v in (*args, *named.values()) if isinstance(v, torch.Tensor)]
        return decomposition(*args, **named) if accepts(*(v.dtype for v in tensors)) else NotImplemented

    return checked


def _real(*dtypes: torch.dtype) -> bool:
    return all(d.is_floating_point for d in dtypes)


def _inexact(*dtypes: torch.dtype) -> bool:
    return all(d.is_floating_point or d.is_complex for d in dtypes)


def _alike(*dtypes: torch.dtype) -> bool:
    return len(set(dtypes)) == 1


# What the kernels of eager mode ask of the types of their operands, where decompositions ask less; addcmul's refuses
# integers that eager mode takes.
_ACCEPTED: dict[Any, Callable[..., bool]] = {
    aten.addcmul.default: _inexact,
    aten.frac.default: _real,
    aten.heaviside.default: _alike,
    aten.lerp.Scalar: _inexact,
    aten.lerp.Tensor: _inexact,
    aten.linalg_cross.default: _alike,
    aten.logaddexp.default: _inexact,
    aten.logaddexp2.default: _real,
}

_OWN: dict[Any, Callable[..., Any]] = {
    aten._neg_view.default: aten.neg.default,  # programs read memory, which does not know that it is negated
    aten._transformer_encoder_layer_fwd.default: _encoder_layer,
    aten.affine_grid_generator.default: _affine_grid,
    aten.isin.Tensor_Tensor: _isin,
    aten.max_unpool2d.default: _max_unpool,
    aten.max_unpool3d.default: _max_unpool,
    aten.native_dropout.default: _dropout,
    aten.rand_like.default: _like(aten.rand.default, aten.uniform.default),
    aten.randn_like.default: _like(aten.randn.default, aten.normal_functional.default),
}


def _draws(op: Any) -> bool:
    """Whether an operator draws random numbers, which only ATen draws as the framework does."""
    return torch.Tag.nondeterministic_seeded in op.tags


@functools.cache
def table() -> dict[Any, Callable[..., Any]]:
    """The decompositions in force: plugins come first."""
    found = dict(core_aten_decompositions())
    found.update(get_decompositions(_MORE))
    kept = {op: made for op, made in found.items() if not is_mapped(str(op)) and not _draws(op)}
    kept.update({op: _checked(kept[op], accepts) for op, accepts in _ACCEPTED.items() if op in kept})
    kept.update(_OWN)
    return kept
