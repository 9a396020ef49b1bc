"""Scatters into KV caches and other tensors at positions given by tensors."""

from __future__ import annotations

from typing import Any

import torch

__all__ = [
    "npu_prefetch",
    "npu_scatter",
    "npu_scatter_nd_update",
    "npu_scatter_nd_update_",
    "npu_scatter_pa_kv_cache",
    "scatter_update",
    "scatter_update_",
]


def npu_scatter_nd_update(input: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """A copy of the input with updates at the places whose leading axes are the last axis of the indices.

    >>> npu_scatter_nd_update(torch.zeros(3), torch.tensor([[2]]), torch.tensor([5.0]))
    tensor([0., 0., 5.])
    """
    return input.index_put(indices.long().unbind(-1), updates)


def npu_scatter_nd_update_(input: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """`npu_scatter_nd_update` in the input's own memory."""
    return input.index_put_(indices.long().unbind(-1), updates)


def scatter_update_(
    data: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, axis: int
) -> torch.Tensor:
    """Each sample's updates at its own place along an axis: a cache with one place a sample, or (sample, place)."""
    axis %= data.dim()
    if axis == 0:
        raise ValueError("scatter_update: axis=0 is the axis of samples; choose another one")
    places = indices.long()
    samples = torch.arange(updates.shape[0], device=data.device)
    if places.dim() == 2:
        samples, places = places.unbind(-1)
    along = places.unsqueeze(1) + torch.arange(updates.shape[axis], device=data.device)
    data.movedim(axis, 1).index_put_((samples.unsqueeze(1), along), updates.movedim(axis, 1))
    return data


def scatter_update(
    data: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, axis: int
) -> torch.Tensor:
    """`scatter_update_` of a copy."""
    return scatter_update_(data.clone(), indices, updates, axis)


def npu_scatter(self: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, dim: int) -> torch.Tensor:
    """A copy with one update for each place of the other axes, at its index along an axis."""
    return self.scatter(dim, indices.long().unsqueeze(dim), updates.unsqueeze(dim))


def npu_scatter_pa_kv_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    compress_lens: torch.Tensor | None = None,
    compress_seq_offsets: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
    cache_mode: str | None = "PA_NZ",
) -> None:
    """Keys and values of tokens, each into its slot of a paged cache; tokens of negative slots are left out.

    A cache is (block, slot, head, feature), or (block, part of the features, slot, features).
    """
    if any(v is not None for v in (compress_lens, compress_seq_offsets, seq_lens)):
        raise NotImplementedError(
            "npu_scatter_pa_kv_cache: compressed caches are not supported; leave compress_* out"
        )
    for tokens, cache in ((key, key_cache), (value, value_cache)):
        _put(tokens, cache, slot_mapping.long())


def _put(tokens: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    if cache.shape[2:] == tokens.shape[1:]:
        by_slot = cache
        rows = tokens
    else:
        by_slot = cache.transpose(1, 2)  # (block, slot, part, features)
        rows = tokens.flatten(1).unflatten(1, tuple(by_slot.shape[2:]))
    there = slots.clamp_min(0)
    place = (there // by_slot.shape[1], there % by_slot.shape[1])
    kept = (slots < 0).view(-1, *[1] * (rows.dim() - 1))
    by_slot.index_put_(place, torch.where(kept, by_slot[place], rows))


def npu_prefetch(input: torch.Tensor, dependency: Any, max_size: int, offset: int = 0) -> None:
    """Has no effect: the processor prefetches on its own."""
