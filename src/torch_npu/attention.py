"""Attention as one call, in the layouts and mask modes of the device's own interface."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

__all__ = [
    "npu_attention_update",
    "npu_fused_infer_attention_score",
    "npu_fusion_attention",
    "npu_fusion_attention_v2",
    "npu_incre_flash_attention",
    "npu_prompt_flash_attention",
    "npu_ring_attention_update",
]

_ALL = 2147483647  # tokens: no limit
_COPIES = 8  # each row's maximum and sum are repeated this often
_LAYOUTS = ("BSH", "SBH", "BSND", "BNSD", "TND")
_MODES = {
    0: "default",
    1: "all",
    2: "left-up causal",
    3: "right-down causal",
    4: "band",
    5: "prefix",
    6: "compressed prefix",
}
Result = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, int, int]


@dataclass(frozen=True)
class _Mask:
    """Which keys a query sees."""

    given: torch.Tensor | None  # True where a key is hidden
    mode: int
    before: int
    after: int
    prefix: Sequence[int] | None
    lengths: Any = None  # keys of each sample that count, a list or a tensor

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise NotImplementedError(
                f"npu_fusion_attention: sparse_mode={self.mode} is not supported; choose one of {list(_MODES)}"
            )
        if self.mode and self.given is None:
            raise ValueError(f"npu_fusion_attention: sparse_mode={self.mode} needs atten_mask")
        if self.mode == 6 and self.prefix is None:
            raise ValueError("npu_fusion_attention: sparse_mode=6 needs prefix")

    def visible(self, queries: int, keys: int, device: torch.device) -> torch.Tensor | None:
        """True where a query sees a key; None where it sees all of them."""
        seen = self._by_mode(queries, keys, device)
        if self.lengths is None:
            return seen
        lengths = torch.as_tensor(self.lengths, device=device).view(-1, 1, 1, 1)
        counted = torch.arange(keys, device=device) < lengths
        return counted if seen is None else seen & counted

    def _by_mode(self, queries: int, keys: int, device: torch.device) -> torch.Tensor | None:
        if self.given is None:
            return None
        if self.mode in (0, 1, 5):
            seen = self.given[..., :queries, :keys] == 0
            if self.mode == 0 and min(self.before, self.after) < max(queries, keys):
                seen = seen & _band(queries, keys, 0, self.before, self.after, device)
            return seen
        shift = 0 if self.mode == 2 else keys - queries
        before, after = (self.before, self.after) if self.mode == 4 else (_ALL, 0)
        seen = _band(queries, keys, shift, before, after, device)
        if self.mode == 6:
            lengths = torch.tensor(list(self.prefix or ()), device=device).view(-1, 1, 1, 1)
            seen = seen | (torch.arange(keys, device=device) < lengths)
        return seen


def _band(queries: int, keys: int, shift: int, before: int, after: int, device: torch.device) -> torch.Tensor:
    ahead = torch.arange(keys, device=device) - shift - torch.arange(queries, device=device).unsqueeze(1)
    return (ahead <= after) & (ahead >= -before)


def npu_fusion_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = _ALL,
    next_tockens: int = _ALL,
    inner_precise: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
) -> Result:
    """Dropout(Softmax(Mask(scale * (pse + query @ key.T)))) @ value; `atten_mask` is true where a key is hidden.

    The result is (attention, row maxima, row sums, reserved, seed, offset, number of drawn elements). A query that
    sees no key gives zeros.

    >>> q = torch.ones(1, 2, 3, 16)
    >>> npu_fusion_attention(q, q, q, 2, "BNSD", scale=0.25)[0].shape
    torch.Size([1, 2, 3, 16])
    """
    mask = _Mask(atten_mask, sparse_mode, pre_tockens, next_tockens, prefix)
    if pse is not None:
        pse = pse * scale
    return _attend(
        query, key, value, head_num, input_layout, pse, padding_mask, mask, scale, keep_prob,
        actual_seq_qlen, actual_seq_kvlen,
    )  # fmt: skip


def npu_fusion_attention_v2(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tokens: int = _ALL,
    next_tokens: int = _ALL,
    inner_precise: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    pse_type: int = 1,
    q_start_idx: Sequence[int] | None = None,
    kv_start_idx: Sequence[int] | None = None,
) -> Result:
    """`npu_fusion_attention`; with `pse_type=0` the scores are scaled before `pse` is added."""
    if pse_type not in (0, 1):
        raise NotImplementedError(f"npu_fusion_attention_v2: pse_type={pse_type} is not supported; pass pse")
    mask = _Mask(atten_mask, sparse_mode, pre_tokens, next_tokens, prefix)
    if pse is not None and pse_type == 1:
        pse = pse * scale
    return _attend(
        query, key, value, head_num, input_layout, pse, padding_mask, mask, scale, keep_prob,
        actual_seq_qlen, actual_seq_kvlen,
    )  # fmt: skip


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    heads: int,
    layout: str,
    pse: torch.Tensor | None,
    padding_mask: torch.Tensor | None,
    mask: _Mask,
    scale: float,
    keep: float,
    query_ends: Sequence[int] | None,
    key_ends: Sequence[int] | None,
) -> Result:
    if layout not in _LAYOUTS:
        raise ValueError(f"npu_fusion_attention: input_layout={layout!r}, one of {_LAYOUTS} is expected")
    if padding_mask is not None:
        raise NotImplementedError("npu_fusion_attention: padding_mask is not supported; use atten_mask")
    if not 0.0 < keep <= 1.0:
        raise ValueError(f"npu_fusion_attention: keep_prob={keep}, more than 0 and at most 1 is expected")
    if layout == "TND":
        found = _packed(query, key, value, heads, pse, mask, scale, keep, query_ends, key_ends)
    else:
        q = _by_head(query, layout, heads)
        width = q.shape[-1]
        k = _by_head(key, layout, key.shape[-1] // width if layout in ("BSH", "SBH") else 0)
        v = _by_head(value, layout, k.shape[1])
        _check_heads(q, k, heads)
        made, top, total = _one(q, k, v, pse, mask, scale, keep)
        found = _as_given(made, layout), top, total
    reserved = torch.empty(0, dtype=query.dtype, device=query.device)
    return *found, reserved, 0, 0, 0


def _by_head(tensor: torch.Tensor, layout: str, heads: int) -> torch.Tensor:
    """The tensor as (batch, head, token, feature)."""
    if layout == "BNSD":
        return tensor
    if layout == "BSND":
        return tensor.transpose(1, 2)
    split = tensor.unflatten(-1, (heads, tensor.shape[-1] // heads))
    return split.transpose(1, 2) if layout == "BSH" else split.permute(1, 2, 0, 3)


def _as_given(made: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "BNSD":
        return made
    if layout == "SBH":
        return made.permute(2, 0, 1, 3).flatten(2)
    tokens = made.transpose(1, 2)
    return tokens.flatten(2) if layout == "BSH" else tokens.contiguous()


def _check_heads(query: torch.Tensor, key: torch.Tensor, heads: int) -> None:
    if query.shape[1] != heads:
        raise ValueError(f"npu_fusion_attention: head_num={heads}, but query has {query.shape[1]} heads")
    if heads % max(key.shape[1], 1):
        raise ValueError(f"npu_fusion_attention: {heads} heads of query, {key.shape[1]} of key: no multiple")


def _one(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pse: torch.Tensor | None,
    mask: _Mask,
    scale: float,
    keep: float,
    facts: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention by head, with the maximum and the sum of each row of the softmax where these facts are wanted."""
    seen = mask.visible(query.shape[2], key.shape[2], query.device)
    bias: torch.Tensor | None = seen
    if pse is not None:
        bias = pse.to(query.dtype)
        if seen is not None:
            bias = bias.masked_fill(~seen, float("-inf"))
    several = query.shape[1] != key.shape[1]
    made = functional.scaled_dot_product_attention(
        query, key, value, bias, 1.0 - keep, scale=scale, enable_gqa=several
    )
    if not facts:
        return made, made, made
    with torch.no_grad():
        top, total = _row_facts(query, key, pse, seen, scale)
    return made, top, total


def _row_facts(
    query: torch.Tensor, key: torch.Tensor, pse: torch.Tensor | None, seen: torch.Tensor | None, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    if query.shape[1] != key.shape[1]:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    if key.shape[2] == 0:
        nothing = query.new_zeros((*query.shape[:3], _COPIES), dtype=torch.float32)
        return nothing - float("inf"), nothing
    scores = (query @ key.transpose(-1, -2)).float() * scale
    if pse is not None:
        scores = scores + pse.float()
    if seen is not None:
        scores = scores.masked_fill(~seen, float("-inf"))
    top = scores.amax(-1, keepdim=True)
    total = (scores - top.clamp_min(torch.finfo(torch.float32).min)).exp().sum(-1, keepdim=True)
    shape = (*scores.shape[:3], _COPIES)
    return top.expand(shape).contiguous(), total.expand(shape).contiguous()


def _packed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    heads: int,
    pse: torch.Tensor | None,
    mask: _Mask,
    scale: float,
    keep: float,
    query_ends: Sequence[int] | None,
    key_ends: Sequence[int] | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sequences one after another in (token, head, feature)."""
    if query_ends is None or key_ends is None or len(query_ends) != len(key_ends):
        raise ValueError("npu_fusion_attention: TND needs actual_seq_qlen and actual_seq_kvlen of one length")
    if pse is not None:
        raise NotImplementedError("npu_fusion_attention: pse is not supported with input_layout='TND'")
    if query_ends[-1] != query.shape[0] or key_ends[-1] != key.shape[0]:
        raise ValueError(
            f"npu_fusion_attention: sequences end at {query_ends[-1]} and {key_ends[-1]}, "
            f"but there are {query.shape[0]} queries and {key.shape[0]} keys"
        )
    rows: list[tuple[torch.Tensor, ...]] = []
    sides = zip(itertools.pairwise([0, *query_ends]), itertools.pairwise([0, *key_ends]), strict=True)
    for index, ((begin, end), (first, last)) in enumerate(sides):
        q, k, v = (
            t[a:b].transpose(0, 1).unsqueeze(0)
            for t, a, b in ((query, begin, end), (key, first, last), (value, first, last))
        )
        _check_heads(q, k, heads)
        prefix = None if mask.prefix is None else mask.prefix[index : index + 1]
        own = _Mask(mask.given, mask.mode, mask.before, mask.after, prefix)
        made = _one(q, k, v, None, own, scale, keep)
        rows.append(tuple(t.squeeze(0).transpose(0, 1) for t in made))
    attention, top, total = (torch.cat(parts) for parts in zip(*rows, strict=True))
    return attention, top, total


# -- inference ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Inference:
    """A call for inference by the arguments that its functions share."""

    name: str
    heads: int
    key_heads: int
    layout: str
    scale: float
    block_table: torch.Tensor | None = None
    block_size: int = 0

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        pse: torch.Tensor | None,
        mask: _Mask,
        query_ends: Sequence[int] | None,
        facts: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        layout, _, wanted = self.layout.partition("_")
        if layout == "TND":
            ends = query_ends, mask.lengths
            plain = _Mask(mask.given, mask.mode, mask.before, mask.after, mask.prefix)
            return _packed(query, key, value, self.heads, pse, plain, self.scale, 1.0, *ends)
        if layout not in _LAYOUTS:
            raise ValueError(f"{self.name}: input_layout={self.layout!r}, one of {_LAYOUTS} is expected")
        q = _by_head(query, layout, self.heads)
        k, v = (self._keys(t, layout) for t in (key, value))
        _check_heads(q, k, self.heads)
        made, top, total = _one(q, k, v, pse, mask, self.scale, 1.0, facts)
        return _as_given(made, wanted or layout), top, total

    def _keys(self, tensor: torch.Tensor, layout: str) -> torch.Tensor:
        """Keys or values by head; those of a paged cache are gathered by the table of each sample's blocks."""
        heads = self.key_heads or self.heads
        if self.block_table is None:
            return _by_head(tensor, layout, heads)
        blocks = tensor[
            self.block_table.long()
        ]  # (sample, block, slot, heads * features) or heads before slots
        if blocks.dim() == 5:
            return blocks.transpose(1, 2).flatten(2, 3)
        return _by_head(blocks.flatten(1, 2), "BSH", heads)


def _refuse(name: str, **given: Any) -> None:
    for argument, value in given.items():
        if value is not None:
            raise NotImplementedError(f"{name}: {argument} is not supported; leave it out")


def npu_prompt_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    pse_shift: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    deq_scale1: torch.Tensor | None = None,
    quant_scale1: torch.Tensor | None = None,
    deq_scale2: torch.Tensor | None = None,
    quant_scale2: torch.Tensor | None = None,
    quant_offset2: torch.Tensor | None = None,
    num_heads: int = 1,
    scale_value: float = 1.0,
    pre_tokens: int = _ALL,
    next_tokens: int = 0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    actual_seq_lengths_kv: Sequence[int] | None = None,
    sparse_mode: int = 0,
) -> torch.Tensor:
    """softmax(scale * query @ key.T + pse) @ value for whole sequences; `atten_mask` is true where a key is hidden."""
    name = "npu_prompt_flash_attention"
    _refuse(
        name, padding_mask=padding_mask, deq_scale1=deq_scale1, quant_scale1=quant_scale1, deq_scale2=deq_scale2,
        quant_scale2=quant_scale2, quant_offset2=quant_offset2,
    )  # fmt: skip
    mask = _Mask(atten_mask, sparse_mode, pre_tokens, next_tokens, None, actual_seq_lengths_kv)
    call = _Inference(name, num_heads, num_key_value_heads, input_layout, scale_value)
    return call(query, key, value, pse_shift, mask, actual_seq_lengths)[0]


def npu_incre_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    padding_mask: torch.Tensor | None = None,
    pse_shift: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    dequant_scale1: torch.Tensor | None = None,
    quant_scale1: torch.Tensor | None = None,
    dequant_scale2: torch.Tensor | None = None,
    quant_scale2: torch.Tensor | None = None,
    quant_offset2: torch.Tensor | None = None,
    antiquant_scale: torch.Tensor | None = None,
    antiquant_offset: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    kv_padding_size: torch.Tensor | None = None,
    num_heads: int = 1,
    scale_value: float = 1.0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    block_size: int = 0,
    inner_precise: int = 1,
) -> torch.Tensor:
    """Attention of one new query a sample over a cache; `actual_seq_lengths` are the keys that count."""
    name = "npu_incre_flash_attention"
    _refuse(
        name, padding_mask=padding_mask, dequant_scale1=dequant_scale1, quant_scale1=quant_scale1,
        dequant_scale2=dequant_scale2, quant_scale2=quant_scale2, quant_offset2=quant_offset2,
        antiquant_scale=antiquant_scale, antiquant_offset=antiquant_offset, kv_padding_size=kv_padding_size,
    )  # fmt: skip
    if atten_mask is not None and atten_mask.dim() == 2:
        atten_mask = atten_mask[:, None, None]
    mask = _Mask(atten_mask, 0, _ALL, _ALL, None, actual_seq_lengths)
    call = _Inference(
        name, num_heads, num_key_value_heads, input_layout, scale_value, block_table, block_size
    )
    return call(query, key, value, pse_shift, mask, None)[0]


def npu_fused_infer_attention_score(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    pse_shift: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    actual_seq_lengths_kv: Sequence[int] | None = None,
    block_table: torch.Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    pre_tokens: int = _ALL,
    next_tokens: int = _ALL,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    inner_precise: int = 0,
    block_size: int = 0,
    antiquant_mode: int = 0,
    softmax_lse_flag: bool = False,
    key_antiquant_mode: int = 0,
    value_antiquant_mode: int = 0,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(attention, log of the sum of exponentials): of prompts, or of single queries over a cache.

    The second result is one zero unless it is asked for. Quantised keys, values and results, shared prefixes and
    separate rotary parts are not supported.
    """
    name = "npu_fused_infer_attention_score"
    _refuse(name, **others)
    if (
        atten_mask is not None
        and atten_mask.dim() == 2
        and query.shape[1 if input_layout[1] == "S" else 2] == 1
    ):
        atten_mask = atten_mask[:, None, None]
    mask = _Mask(atten_mask, sparse_mode, pre_tokens, next_tokens, None, actual_seq_lengths_kv)
    call = _Inference(name, num_heads, num_key_value_heads, input_layout, scale, block_table, block_size)
    made, top, total = call(query, key, value, pse_shift, mask, actual_seq_lengths, softmax_lse_flag)
    if not softmax_lse_flag:
        return made, made.new_zeros(1, dtype=torch.float32)
    return made, (top + total.log())[..., :1]


# -- attention in parts --------------------------------------------------------------------------------------------


def npu_attention_update(
    lse: Sequence[torch.Tensor], local_out: Sequence[torch.Tensor], update_type: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(attention, logarithm of the sum) over all keys, from those over parts of them."""
    parts = torch.stack(list(lse))
    whole = torch.logsumexp(parts, 0)
    weights = torch.exp(parts - whole)[..., None]
    out = (torch.stack([part.float() for part in local_out]) * weights).sum(0)
    return out.to(local_out[0].dtype), whole


def npu_ring_attention_update(
    prev_attn_out: torch.Tensor, prev_softmax_max: torch.Tensor, prev_softmax_sum: torch.Tensor,
    cur_attn_out: torch.Tensor, cur_softmax_max: torch.Tensor, cur_softmax_sum: torch.Tensor, *,
    actual_seq_qlen: torch.Tensor | None = None, input_layout: str = "SBH", input_softmax_layout: str = "",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """(attention, maximum, sum) over two groups of keys: outputs are (S, B, H), maxima and sums (B, heads, S, 8)."""
    if input_layout != "SBH":
        raise NotImplementedError(f"npu_ring_attention_update: layout {input_layout!r}; give SBH")
    largest = torch.maximum(prev_softmax_max, cur_softmax_max)
    before = prev_softmax_sum * torch.exp(prev_softmax_max - largest)
    now = cur_softmax_sum * torch.exp(cur_softmax_max - largest)
    total = before + now
    outputs = [
        out.float() * _by_row(share / total, out)
        for out, share in ((prev_attn_out, before), (cur_attn_out, now))
    ]
    return (outputs[0] + outputs[1]).to(prev_attn_out.dtype), largest, total


def _by_row(factor: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """A factor (B, heads, S, 8), the same eight times, for the elements of an output (S, B, H)."""
    heads = factor[..., 0].permute(2, 0, 1)
    return heads.repeat_interleave(output.shape[-1] // heads.shape[-1], -1)
