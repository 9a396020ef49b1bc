"""Mixture of experts: gating, token permutation, grouped products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from torch_npu.functions import npu_fast_gelu, npu_swiglu

__all__ = [
    "npu_ffn",
    "npu_grouped_matmul",
    "npu_moe_compute_expert_tokens",
    "npu_moe_finalize_routing",
    "npu_moe_gating_top_k",
    "npu_moe_gating_top_k_softmax",
    "npu_moe_init_routing",
    "npu_moe_token_permute",
    "npu_moe_token_unpermute",
    "npu_top_k_top_p",
]

_ACTIVATIONS: dict[int, Callable[[torch.Tensor], torch.Tensor]] = {
    0: lambda x: x,
    1: functional.relu,
    2: lambda x: functional.gelu(x, approximate="tanh"),
    4: npu_fast_gelu,
    5: functional.silu,
}
_NAMED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "fastgelu": npu_fast_gelu,
    "silu": functional.silu,
    "swiglu": npu_swiglu,
    "geglu": lambda x: functional.gelu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
    "reglu": lambda x: functional.relu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
}


# -- choosing experts --------------------------------------------------------------------------------------------


def npu_moe_gating_top_k_softmax(
    x: torch.Tensor, finished: torch.Tensor | None = None, k: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(weights, experts, rows): the k largest of a softmax; a token's place among the rows of each choice."""
    if finished is not None:
        raise NotImplementedError(
            "npu_moe_gating_top_k_softmax: finished is not supported; leave such rows out"
        )
    weights, experts = torch.softmax(x.float(), -1).topk(k, -1)
    count = x.shape[:-1].numel()
    rows = torch.arange(count * k, dtype=torch.int32, device=x.device).view(k, count).t()
    return weights.to(x.dtype), experts.to(torch.int32), rows.reshape(experts.shape)


def npu_moe_gating_top_k(
    x: torch.Tensor,
    k: int,
    *,
    bias: torch.Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(weights, experts, scores): the k best experts of the k_group best groups; a bias counts for the choice only.

    Scores are a softmax (`norm_type=0`), or sigmoids, whose chosen ones are divided by their sum (1). A group's score
    is its largest one, or the sum of its two largest (`group_select_mode=1`).
    """
    if renorm:
        raise NotImplementedError(f"npu_moe_gating_top_k: renorm={renorm} is not supported; use 0")
    scores = torch.sigmoid(x.float()) if norm_type == 1 else torch.softmax(x.float(), -1)
    choice = scores if bias is None else scores + bias.float()
    if group_count > 1:
        grouped = choice.unflatten(-1, (group_count, -1))
        of_group = grouped.topk(2, -1)[0].sum(-1) if group_select_mode == 1 else grouped.amax(-1)
        best = torch.zeros_like(of_group).scatter(-1, of_group.topk(k_group, -1)[1], 1.0) > 0
        choice = grouped.masked_fill(~best.unsqueeze(-1), float("-inf")).flatten(-2)
    experts = choice.topk(k, -1)[1]
    weights = scores.gather(-1, experts)
    if norm_type == 1:
        weights = weights / (weights.sum(-1, keepdim=True) + eps)
    made = (weights * routed_scaling_factor).to(x.dtype)
    return made, experts.to(torch.int32), scores if out_flag else scores.new_empty(0)


def npu_top_k_top_p(
    logits: torch.Tensor, p: torch.Tensor | None = None, k: torch.Tensor | None = None
) -> torch.Tensor:
    """Logits with -inf for all but the k largest of a row, and of these for the least that together have 1 - p."""
    if p is None and k is None:
        raise ValueError("npu_top_k_top_p: neither p nor k is given")
    values, places = logits.sort(dim=-1, stable=True)
    if k is not None:
        least = values.gather(-1, (values.shape[-1] - k.long()).unsqueeze(-1))
        values = values.masked_fill(values < least, float("-inf"))
    if p is not None:
        total = torch.softmax(values.float(), -1).cumsum(-1)
        hidden = total <= (1 - p.float()).unsqueeze(-1)
        hidden = hidden & (torch.arange(values.shape[-1], device=values.device) < values.shape[-1] - 1)
        values = values.masked_fill(hidden, float("-inf"))
    return torch.empty_like(values).scatter(-1, places, values)


# -- bringing tokens to experts and back -------------------------------------------------------------------------


def npu_moe_init_routing(
    x: torch.Tensor, row_idx: torch.Tensor, expert_idx: torch.Tensor, active_num: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(tokens in the order of their experts, the place of each choice among them, the sorted experts)."""
    count, k = expert_idx.shape
    experts, order = expert_idx.flatten().sort(stable=True)
    rows = row_idx.flatten()[order].long()
    places = torch.empty_like(rows).scatter(0, rows, torch.arange(count * k, device=x.device))
    return x[rows[: min(count, active_num) * k] % count], places.to(torch.int32), experts


def npu_moe_finalize_routing(
    expanded_permuted_rows: torch.Tensor,
    skip1: torch.Tensor | None,
    skip2: torch.Tensor | None,
    bias: torch.Tensor | None,
    scales: torch.Tensor | None,
    expanded_src_to_dst_row: torch.Tensor,
    export_for_source_row: torch.Tensor | None,
    drop_pad_mode: int | None = 0,
    k: int | None = 1,
) -> torch.Tensor:
    """Sum over a token's choices of scale * (the expert's row + the expert's bias), plus what was skipped."""
    if drop_pad_mode:
        raise NotImplementedError("npu_moe_finalize_routing: drop_pad_mode is not supported; use 0")
    choices = scales.shape[1] if scales is not None else k or 1
    rows = expanded_permuted_rows[expanded_src_to_dst_row.long()].unflatten(0, (choices, -1)).transpose(0, 1)
    if bias is not None:
        if export_for_source_row is None:
            raise ValueError(
                "npu_moe_finalize_routing: bias needs export_for_source_row, the expert of each choice"
            )
        rows = rows + bias[export_for_source_row.long()]
    if scales is not None:
        rows = rows * scales.unsqueeze(-1)
    made = rows.sum(1)
    for skipped in (skip1, skip2):
        made = made if skipped is None else made + skipped
    return made


def npu_moe_token_permute(
    tokens: torch.Tensor, indices: torch.Tensor, num_out_tokens: int | None = None, padded_mode: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens in the order of their experts, the place of each choice among them).

    >>> npu_moe_token_permute(torch.tensor([[1.0], [2.0]]), torch.tensor([[1], [0]]))
    (tensor([[2.],
            [1.]]), tensor([1, 0], dtype=torch.int32))
    """
    if padded_mode:
        raise NotImplementedError("npu_moe_token_permute: padded_mode is not supported; use False")
    choices = indices.shape[1] if indices.dim() == 2 else 1
    order = indices.flatten().argsort(stable=True)
    places = order.argsort(stable=True).to(torch.int32)
    kept = order[:num_out_tokens] if num_out_tokens else order
    return tokens[kept // choices], places


def npu_moe_token_unpermute(
    permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Sequence[int] | None = None,
) -> torch.Tensor:
    """The rows of each token's choices, times their weights and summed; choices that were cut off are zero."""
    if padded_mode or restore_shape is not None:
        raise NotImplementedError("npu_moe_token_unpermute: padded_mode is not supported; use False")
    places, there = sorted_indices.long(), permuted_tokens.shape[0]
    rows = permuted_tokens[places.clamp_max(there - 1)]
    if there < places.shape[0]:
        rows = rows.masked_fill((places >= there).unsqueeze(-1), 0)
    if probs is None:
        return rows
    return (rows.unflatten(0, probs.shape) * probs.unsqueeze(-1)).sum(1).to(permuted_tokens.dtype)


def npu_moe_compute_expert_tokens(
    sorted_expert_for_source_row: torch.Tensor, num_expert: int
) -> torch.Tensor:
    """Where the rows of each expert end.

    >>> npu_moe_compute_expert_tokens(torch.tensor([0, 0, 1, 3], dtype=torch.int32), 4)
    tensor([2, 3, 3, 4], dtype=torch.int32)
    """
    experts = torch.arange(
        num_expert, dtype=sorted_expert_for_source_row.dtype, device=sorted_expert_for_source_row.device
    )
    found = torch.searchsorted(sorted_expert_for_source_row, experts, right=True)
    return found.to(sorted_expert_for_source_row.dtype)


# -- products ----------------------------------------------------------------------------------------------------


@torch.library.custom_op("npu::grouped_product", mutates_args=())
def _grouped(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Rows of x times the matrix of the group they are in: one call, whatever the sizes of the groups."""
    integer = x.dtype is torch.int8
    made = x.new_zeros((x.shape[0], weights.shape[2]), dtype=torch.int32 if integer else x.dtype)
    begin = 0
    for group, end in enumerate(ends.tolist()):
        if end > begin:
            rows = x[begin:end]
            made[begin:end] = torch._int_mm(rows, weights[group]) if integer else rows @ weights[group]
        begin = end
    return made


@_grouped.register_fake
def _grouped_shape(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    dtype = torch.int32 if x.dtype is torch.int8 else x.dtype
    return x.new_empty((x.shape[0], weights.shape[2]), dtype=dtype)


@torch.library.custom_op("npu::grouped_weight_gradient", mutates_args=())
def _weight_gradient(x: torch.Tensor, gradient: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """For each group the product of its rows: x.T @ gradient."""
    made = x.new_zeros((ends.shape[0], x.shape[1], gradient.shape[1]))
    begin = 0
    for group, end in enumerate(ends.tolist()):
        made[group] = x[begin:end].t() @ gradient[begin:end]
        begin = end
    return made


@_weight_gradient.register_fake
def _weight_gradient_shape(x: torch.Tensor, gradient: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return x.new_empty((ends.shape[0], x.shape[1], gradient.shape[1]))


def _grouped_backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
    x, weights, ends = ctx.saved_tensors
    return _grouped(gradient, weights.transpose(1, 2), ends), _weight_gradient(x, gradient, ends), None


_grouped.register_autograd(
    _grouped_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)


def npu_grouped_matmul(
    x: Sequence[torch.Tensor],
    weight: Sequence[torch.Tensor],
    *,
    bias: Sequence[torch.Tensor] | None = None,
    scale: Sequence[torch.Tensor] | None = None,
    offset: Sequence[torch.Tensor] | None = None,
    antiquant_scale: Sequence[torch.Tensor] | None = None,
    antiquant_offset: Sequence[torch.Tensor] | None = None,
    per_token_scale: Sequence[torch.Tensor] | None = None,
    group_list: torch.Tensor | Sequence[int] | None = None,
    activation_input: Sequence[torch.Tensor] | None = None,
    activation_quant_scale: Sequence[torch.Tensor] | None = None,
    activation_quant_offset: Sequence[torch.Tensor] | None = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    act_type: int | None = 0,
    output_dtype: torch.dtype | None = None,
    tuning_config: Sequence[int] | None = None,
) -> list[torch.Tensor]:
    """Products of matching pairs, or of groups of rows of one x with a matrix each.

    `group_list` has the ends of the groups, or with `group_list_type=1` their sizes. int8 products are scaled by
    `scale` and `per_token_scale`; int8 weights of floating-point x by `antiquant_offset` and `antiquant_scale`.
    """
    _refuse_some(offset, activation_input, activation_quant_scale, activation_quant_offset, group_type)
    act = _ACTIVATIONS.get(act_type or 0)
    if act is None:
        raise NotImplementedError(
            f"npu_grouped_matmul: act_type={act_type} is not supported; choose of {[*_ACTIVATIONS]}"
        )
    weights = _widened(weight, x[0].dtype, antiquant_scale, antiquant_offset)
    if group_list is None or len(x) > 1:
        made = [
            _scaled(a @ w, i, bias, scale, per_token_scale)
            for i, (a, w) in enumerate(zip(x, weights, strict=True))
        ]
        made = [act(y).to(output_dtype or a.dtype) for y, a in zip(made, x, strict=True)]
        return made if split_item in (None, 0, 1) else [torch.cat(made)]
    ends = _ends(group_list, group_list_type, x[0].device)
    stacked = weights[0] if len(weights) == 1 and weights[0].dim() == 3 else torch.stack(weights)
    y = _grouped(x[0], stacked, ends)
    y = _scaled_groups(y, ends, bias, scale, per_token_scale)
    y = act(y).to(output_dtype or (x[0].dtype if x[0].is_floating_point() else y.dtype))
    if split_item in (None, 0, 1):
        return list(y.split(torch.diff(ends, prepend=ends.new_zeros(1)).tolist()))
    return [y]


def _refuse_some(
    offset: Any, activation: Any, act_scale: Any, act_offset: Any, group_type: int | None
) -> None:
    if any(v is not None and len(v) for v in (offset, activation, act_scale, act_offset)):
        raise NotImplementedError(
            "npu_grouped_matmul: offset and activation_* are not supported; leave them out"
        )
    if group_type not in (None, -1, 0):
        raise NotImplementedError(
            f"npu_grouped_matmul: group_type={group_type} is not supported; use 0, groups of rows"
        )


def _widened(
    weight: Sequence[torch.Tensor],
    dtype: torch.dtype,
    scale: Sequence[torch.Tensor] | None,
    offset: Sequence[torch.Tensor] | None,
) -> list[torch.Tensor]:
    """Weights as numbers: (level + offset) * scale where these are given, for columns or groups of rows."""
    if not scale:
        return list(weight)
    found = []
    for i, w in enumerate(weight):
        factors = [None if not v else _rows(v[i], w) for v in (scale, offset)]
        levels = w.float() if factors[1] is None else w.float() + factors[1]
        found.append((levels * factors[0]).to(dtype))  # type: ignore[operator]
    return found


def _rows(factor: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if factor.dim() == weight.dim() - 1:
        return factor.float().unsqueeze(-2)
    return factor.float().repeat_interleave(-(-weight.shape[-2] // factor.shape[-2]), -2)[
        ..., : weight.shape[-2], :
    ]


def _scaled(y: torch.Tensor, i: int, bias: Any, scale: Any, per_token: Any) -> torch.Tensor:
    """A product with its bias, and its scales where it is one of integers."""
    y = y if not bias else y + bias[i]
    y = y if not scale else y.float() * scale[i].float()
    return y if not per_token else y * per_token[i].float().unsqueeze(-1)


def _scaled_groups(
    y: torch.Tensor, ends: torch.Tensor, bias: Any, scale: Any, per_token: Any
) -> torch.Tensor:
    """Each row with the bias and scale of its group."""

    def of_rows(given: Sequence[torch.Tensor]) -> torch.Tensor:
        stacked = given[0] if len(given) == 1 and given[0].dim() == 2 else torch.stack(list(given))
        rows = torch.arange(y.shape[0], device=y.device)
        return stacked[torch.searchsorted(ends, rows, right=True).clamp_max(stacked.shape[0] - 1)]

    y = y if not bias else y + of_rows(bias)
    y = y if not scale else y.float() * of_rows(scale).float()
    return y if not per_token else y * per_token[0].float().unsqueeze(-1)


def _ends(groups: torch.Tensor | Sequence[int], kind: int | None, device: torch.device) -> torch.Tensor:
    found = groups if isinstance(groups, torch.Tensor) else torch.tensor(list(groups), device=device)
    return found.long().cumsum(0) if kind == 1 else found.long()


def npu_ffn(
    x: torch.Tensor,
    weight1: torch.Tensor,
    weight2: torch.Tensor,
    activation: str,
    *,
    expert_tokens: Sequence[int] | None = None,
    expert_tokens_index: Sequence[int] | None = None,
    bias1: torch.Tensor | None = None,
    bias2: torch.Tensor | None = None,
    inner_precise: int | None = None,
    output_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """activation(x @ weight1 + bias1) @ weight2 + bias2, with experts for groups of rows of x."""
    act = _NAMED.get(activation)
    if act is None:
        raise ValueError(f"npu_ffn: activation={activation!r}, one of {[*_NAMED]} is expected")
    if expert_tokens is None and expert_tokens_index is None:
        hidden = x @ weight1 if bias1 is None else x @ weight1 + bias1
        made = act(hidden) @ weight2
        return (made if bias2 is None else made + bias2).to(output_dtype or x.dtype)
    groups = {
        "group_list": expert_tokens_index or expert_tokens,
        "group_list_type": int(expert_tokens_index is None),
    }
    biases = [None if b is None else [b] for b in (bias1, bias2)]
    flat = x.flatten(0, -2)
    (hidden,) = npu_grouped_matmul([flat], [weight1], bias=biases[0], split_item=3, **groups)  # type: ignore[arg-type]
    (made,) = npu_grouped_matmul([act(hidden)], [weight2], bias=biases[1], split_item=3, **groups)  # type: ignore[arg-type]
    return made.unflatten(0, x.shape[:-1]).to(output_dtype or x.dtype)
