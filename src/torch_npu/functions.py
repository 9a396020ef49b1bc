"""Functions of the device's own interface beside those of PyTorch: activations, norms, rotary embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch.nn import functional

__all__ = [
    "NOT_AVAILABLE",
    "fast_gelu",
    "not_available",
    "npu_add_layer_norm",
    "npu_add_rms_norm",
    "npu_apply_rotary_pos_emb",
    "npu_confusion_transpose",
    "npu_deep_norm",
    "npu_dtype_cast",
    "npu_fast_gelu",
    "npu_geglu",
    "npu_gelu",
    "npu_group_norm_silu",
    "npu_linear",
    "npu_mish",
    "npu_one_hot",
    "npu_rms_norm",
    "npu_rotary_mul",
    "npu_scaled_masked_softmax",
    "npu_silu",
    "npu_silu_",
    "npu_swiglu",
    "npu_transpose",
]

_APPROXIMATIONS = ("none", "tanh")


# -- activations -------------------------------------------------------------------------------------------------


def npu_swiglu(self: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """silu(left half) * right half, the halves of one axis.

    >>> npu_swiglu(torch.tensor([0.0, 2.0, 3.0, 4.0]))[0]
    tensor(0.)
    """
    left, right = _halves("npu_swiglu", self, dim)
    return functional.silu(left) * right


def npu_geglu(
    self: torch.Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """(product, gelu): one half times the gelu of the other, and that gelu; `approximate=1` is gelu by tanh."""
    left, right = _halves("npu_geglu", self, dim)
    if approximate not in (0, 1):
        raise ValueError(f"npu_geglu: approximate={approximate}, 0 or 1 is expected")
    gate, other = (left, right) if activate_left else (right, left)
    active = functional.gelu(gate, approximate=_APPROXIMATIONS[approximate])
    return other * active, active


def _halves(name: str, tensor: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    if tensor.shape[dim] % 2:
        raise ValueError(f"{name}: axis {dim} has {tensor.shape[dim]} elements, an even number is expected")
    left, right = tensor.chunk(2, dim)
    return left, right


def npu_fast_gelu(self: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(1.702 * x)."""
    return self * torch.sigmoid(1.702 * self)


fast_gelu = npu_fast_gelu


def npu_gelu(self: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """GELU."""
    return functional.gelu(self, approximate=approximate)


def npu_silu(self: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(x)."""
    return functional.silu(self)


def npu_silu_(self: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(x), written to x."""
    return functional.silu(self, inplace=True)


def npu_mish(self: torch.Tensor) -> torch.Tensor:
    """x * tanh(softplus(x))."""
    return functional.mish(self)


def npu_scaled_masked_softmax(
    x: torch.Tensor, mask: torch.Tensor, scale: Any = 1.0, fixed_triu_mask: bool = False
) -> torch.Tensor:
    """Softmax of scale * x over the last axis without the elements where `mask` is true.

    With `fixed_triu_mask` the elements right of the diagonal are left out instead.
    """
    if fixed_triu_mask:
        mask = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    scores = (x.float() * scale).masked_fill(mask.bool(), -10000.0)
    return torch.softmax(scores, -1).to(x.dtype)


# -- norms -------------------------------------------------------------------------------------------------------


def npu_rms_norm(
    self: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """(x / rms(x) * gamma, 1 / rms(x)) over the axes of gamma; the second is float32."""
    axes = tuple(range(-gamma.dim(), 0))
    wide = self.float()
    scale = torch.rsqrt(wide.square().mean(axes, keepdim=True) + epsilon)
    return (wide * scale * gamma.float()).to(self.dtype), scale


def npu_add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(RMS norm of x1 + x2, 1 / rms, x1 + x2)."""
    total = x1 + x2
    made, scale = npu_rms_norm(total, gamma, epsilon)
    return made, scale, total


def npu_add_layer_norm(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    epsilon: float = 1e-5,
    additional_output: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(layer norm of x1 + x2, mean, 1 / deviation, x1 + x2); the sum is empty unless it is asked for."""
    total = x1 + x2
    made, mean, scale = _layer_norm(total, gamma, beta, epsilon)
    return made, mean, scale, total if additional_output else total.new_empty(0)


def npu_deep_norm(
    x: torch.Tensor,
    gx: torch.Tensor,
    beta: torch.Tensor,
    gamma: torch.Tensor,
    alpha: float = 0.3,
    epsilon: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(mean, 1 / deviation, layer norm) of alpha * x + gx."""
    made, mean, scale = _layer_norm(alpha * x + gx, gamma, beta, epsilon)
    return mean, scale, made


def _layer_norm(
    x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    axes = tuple(range(-gamma.dim(), 0))
    wide = x.float()
    mean = wide.mean(axes, keepdim=True)
    scale = torch.rsqrt((wide - mean).square().mean(axes, keepdim=True) + epsilon)
    return functional.layer_norm(x, gamma.shape, gamma, beta, epsilon), mean, scale


def npu_group_norm_silu(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    group: int,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(silu of the group norm, mean, 1 / deviation); the last two by sample and group."""
    made = functional.silu(functional.group_norm(input, group, weight, bias, eps))
    parts = input.float().reshape(input.shape[0], group, -1)
    mean = parts.mean(-1)
    scale = torch.rsqrt(parts.var(-1, unbiased=False) + eps)
    return made, mean.to(input.dtype), scale.to(input.dtype)


# -- rotary embeddings -------------------------------------------------------------------------------------------


def npu_rotary_mul(
    input: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str = "half"
) -> torch.Tensor:
    """input * r1 + rotated(input) * r2; pairs are halves of the last axis, or neighbours ("interleave").

    >>> npu_rotary_mul(torch.tensor([1.0, 2.0]), torch.tensor([0.0]), torch.tensor([1.0]))
    tensor([-2.,  1.])
    """
    if rotary_mode == "half":
        left, right = _halves("npu_rotary_mul", input, -1)
        turned = torch.cat((-right, left), -1)
    elif rotary_mode == "interleave":
        turned = torch.stack((-input[..., 1::2], input[..., ::2]), -1).flatten(-2)
    else:
        raise ValueError(f"npu_rotary_mul: rotary_mode={rotary_mode!r}, 'half' or 'interleave' is expected")
    return input * r1 + turned * r2


def npu_apply_rotary_pos_emb(
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    layout: str = "BSND",
    rotary_mode: str = "half",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys, each by `npu_rotary_mul`."""
    if layout not in ("BSND", "SBND", "BNSD", "TND", "BSH", "1"):
        raise ValueError(f"npu_apply_rotary_pos_emb: layout={layout!r} is not known; use 'BSND'")
    return npu_rotary_mul(query, cos, sin, rotary_mode), npu_rotary_mul(key, cos, sin, rotary_mode)


# -- movement ----------------------------------------------------------------------------------------------------


def npu_linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """input @ weight.T + bias."""
    return functional.linear(input, weight, bias)


def npu_transpose(self: torch.Tensor, perm: Sequence[int], require_contiguous: bool = True) -> torch.Tensor:
    """The axes in another order, contiguous unless not asked for."""
    made = self.permute(*perm)
    return made.contiguous() if require_contiguous else made


def npu_confusion_transpose(
    self: torch.Tensor, perm: Sequence[int], shape: Sequence[int], transpose_first: bool
) -> torch.Tensor:
    """A transpose and a reshape, in either order."""
    if transpose_first:
        return self.permute(*perm).reshape(tuple(shape))
    return self.reshape(tuple(shape)).permute(*perm).contiguous()


def npu_dtype_cast(input: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor as another type."""
    return input.to(dtype)


def npu_one_hot(
    input: torch.Tensor, num_classes: int = -1, depth: int = 1, on_value: Any = 1, off_value: Any = 0
) -> torch.Tensor:
    """Float32 rows that are `on_value` at the index and `off_value` elsewhere."""
    width = depth if num_classes == -1 else num_classes
    hit = input.unsqueeze(-1) == torch.arange(width, device=input.device)
    return torch.where(hit, float(on_value), float(off_value)).float()


# -- what is not there -------------------------------------------------------------------------------------------

NOT_AVAILABLE = frozenset(
    {"npu_all_gather_base_mm", "npu_alltoallv_gmm", "npu_anti_quant", "npu_dynamic_quant",
     "npu_dynamic_quant_asymmetric", "npu_ffn", "npu_fused_infer_attention_score",
     "npu_fusion_attention_grad", "npu_fusion_attention_v3", "npu_gather_sparse_index", "npu_grouped_matmul",
     "npu_grouped_matmul_finalize_routing", "npu_incre_flash_attention", "npu_kv_rmsnorm_rope_cache",
     "npu_mla_prolog", "npu_mm_all_reduce_base", "npu_mm_reduce_scatter_base",
     "npu_moe_compute_expert_tokens", "npu_moe_distribute_combine", "npu_moe_distribute_dispatch",
     "npu_moe_finalize_routing", "npu_moe_gating_top_k", "npu_moe_gating_top_k_softmax",
     "npu_moe_init_routing", "npu_moe_init_routing_v2", "npu_moe_re_routing", "npu_moe_token_permute",
     "npu_moe_token_unpermute", "npu_multi_head_attention", "npu_nsa_compress", "npu_nsa_compress_attention",
     "npu_nsa_select_attention", "npu_prompt_flash_attention", "npu_quant_grouped_matmul_dequant",
     "npu_quant_matmul", "npu_quantize", "npu_scatter_nd_update", "npu_scatter_nd_update_",
     "npu_swiglu_quant", "npu_top_k_top_p", "npu_trans_quant_param", "npu_weight_quant_batchmatmul"}
)  # fmt: skip


def not_available(name: str) -> Callable[..., NoReturn]:
    """A function that says, when it is called, that the device does not have it."""

    def function(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f"torch_npu.{name} is not available on this device; write it as calls of PyTorch, which "
            "torch.compile(backend='npu') makes one graph"
        )

    function.__name__ = function.__qualname__ = name
    return function
