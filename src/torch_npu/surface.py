"""The operators of the device's own interface, in one table: by name, as functions and as `torch.ops.npu`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

import torch

from torch_npu import attention, caches, device, experts, functions, quantisation

__all__ = ["OPERATORS", "absent", "register"]

Function = Callable[..., Any]

_MODULES: tuple[ModuleType, ...] = (functions, attention, quantisation, experts, caches)
_HELPERS = frozenset({"halves"})
_WRITES = {  # arguments that an operator writes
    "_npu_reshape_and_cache": ("key_cache", "value_cache"),
    "npu_scatter_pa_kv_cache": ("key_cache", "value_cache"),
}

_WITHOUT_SCHEMA = ("Any", "Sequence[torch.Tensor]", "torch.Tensor | Sequence")  # types of arguments

# By the reason that a call is told.
_ABSENT: dict[str, tuple[str, ...]] = {
    "it joins a product with a collective: call torch.distributed beside torch.matmul": (
        "npu_all_gather_base_mm", "npu_all_gather_quant_mm", "npu_alltoallv_gmm", "npu_alltoallv_quant_gmm",
        "npu_gmm_alltoallv", "npu_mm_all_reduce_base", "npu_mm_reduce_scatter_base", "npu_moe_distribute_combine",
        "npu_moe_distribute_dispatch", "npu_quant_gmm_alltoallv", "npu_quant_mm_reduce_scatter",
    ),
    "it is a backward pass: call backward() on the result of the forward operator": (
        "npu_fused_linear_cross_entropy_loss_with_max_sum_backward", "npu_fusion_attention_grad",
        "npu_masked_causal_conv1d_backward", "npu_mhc_post_backward", "npu_mhc_pre_backward",
        "npu_mhc_sinkhorn_backward", "npu_moe_gating_top_k_backward",
    ),
    "there is no register of overflows: call torch.isfinite, or torch.amp.GradScaler, which does": (
        "npu_alloc_float_status", "npu_clear_float_status", "npu_get_float_status",
    ),
    "its steps are those of an optimizer: call torch.optim or torch_npu.optim": (
        "npu_apply_adam", "npu_apply_adam_w", "npu_apply_adam_w_out", "npu_bert_apply_adam",
    ),
    "call torch.nn.LSTM or torch.nn.GRU": ("npu_gru", "npu_lstm"),
    "write it with torchvision.ops, or as calls of PyTorch": (
        "npu_anchor_response_flags", "npu_batch_nms", "npu_ciou", "npu_deformable_conv2d", "npu_diou", "npu_giou",
        "npu_grid_assign_positive", "npu_nms_rotated", "npu_nms_v4", "npu_nms_with_mask", "npu_ps_roi_pooling",
        "npu_random_choice_with_mask", "npu_roi_align", "npu_rotated_box_decode", "npu_rotated_box_encode",
        "npu_rotated_iou", "npu_rotated_overlaps", "npu_yolo_boxes_encode",
    ),
    "it serves other processes or memory of a real NPU: call torch.distributed, or keep tensors on the device": (
        "attention_worker_scheduler", "attention_worker_scheduler_", "empty_with_swapped_memory",
        "ffn_worker_scheduler", "ffn_worker_scheduler_", "npu_hans_decode", "npu_hans_encode",
        "npu_moe_update_expert", "npu_sim_exponential_", "obfuscation_calculate", "obfuscation_finalize",
        "obfuscation_initialize",
    ),
    "write it as calls of PyTorch, which torch.compile(backend='npu') makes one graph": (
        "batch_norm_reduce", "npu_add_quant_gmm_", "npu_add_rms_norm_dynamic_quant", "npu_advance_step_flashattn",
        "npu_batch_gather_matmul", "npu_batch_gather_matmul_", "npu_block_sparse_attention",
        "npu_chunk_gated_delta_rule", "npu_dense_lightning_indexer_grad_kl_loss",
        "npu_dense_lightning_indexer_softmax_lse", "npu_dequant_swiglu_quant", "npu_dynamic_block_quant",
        "npu_dynamic_mx_quant", "npu_dynamic_mx_quant_with_dual_axis", "npu_fused_attention_score",
        "npu_fused_causal_conv1d", "npu_fused_cross_entropy_loss_with_max_sum", "npu_fused_floyd_attention",
        "npu_fused_infer_attention_score_v2", "npu_fused_linear_online_max_sum", "npu_fusion_attention_v3",
        "npu_gather_sparse_index", "npu_grouped_dynamic_mx_quant", "npu_grouped_matmul_add",
        "npu_grouped_matmul_finalize_routing", "npu_grouped_matmul_swiglu_quant",
        "npu_grouped_matmul_swiglu_quant_v2", "npu_ifmr", "npu_kronecker_quant",
        "npu_kv_quant_sparse_flash_attention", "npu_kv_rmsnorm_rope_cache", "npu_lightning_indexer",
        "npu_masked_causal_conv1d", "npu_matmul_compress_dequant", "npu_mhc_post", "npu_mhc_pre", "npu_mhc_sinkhorn",
        "npu_mla_prolog", "npu_mla_prolog_v2", "npu_mla_prolog_v3", "npu_mla_prolog_v3_functional",
        "npu_moe_gating_top_k_softmax_v2", "npu_moe_init_routing_v2", "npu_moe_re_routing",
        "npu_moe_token_permute_with_routing_map", "npu_moe_token_unpermute_with_routing_map", "npu_mrope",
        "npu_multi_head_attention", "npu_normalize_batch", "npu_nsa_compress", "npu_nsa_compress_attention",
        "npu_nsa_compress_attention_infer", "npu_nsa_compress_infer", "npu_nsa_select_attention",
        "npu_nsa_select_attention_infer", "npu_quant_grouped_matmul_dequant", "npu_quant_lightning_indexer",
        "npu_quant_matmul_gelu", "npu_quant_matmul_reduce_sum", "npu_quant_max", "npu_quant_scatter",
        "npu_quant_scatter_", "npu_recurrent_gated_delta_rule", "npu_recurrent_gated_delta_rule_functional",
        "npu_rotate_quant", "npu_sparse_flash_attention", "npu_sparse_lightning_indexer_grad_kl_loss",
        "npu_stride_add", "npu_top_k_top_p_sample", "npu_transpose_quant_batchmatmul",
    ),
}  # fmt: skip


def absent(name: str, why: str) -> Function:
    """A function that says, when it is called, that the device does not have it."""

    def function(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"torch_npu.{name} is not available on this device; {why}")

    function.__name__ = function.__qualname__ = name
    return function


def _table() -> dict[str, Function]:
    found = {name: getattr(m, name) for m in _MODULES for name in m.__all__ if name not in _HELPERS}
    found |= {
        name: getattr(device, name) for name in ("get_npu_format", "npu_format_cast", "npu_format_cast_")
    }
    found |= {name: absent(name, why) for why, names in _ABSENT.items() for name in names}
    found["_npu_reshape_and_cache"] = _reshape_and_cache
    return dict(sorted(found.items()))


def _reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_indices: torch.Tensor,
) -> None:
    """`npu_scatter_pa_kv_cache` by the name that servers call."""
    caches.npu_scatter_pa_kv_cache(key, value, key_cache, value_cache, slot_indices)


OPERATORS: dict[str, Function] = _table()


def register() -> list[str]:
    """Define the operators in `torch.ops.npu`, where their arguments have types of PyTorch's schemas."""
    library = torch.library.Library("npu", "FRAGMENT")
    _libraries.append(library)  # its operators live as long as it does
    defined = []
    for name, function in OPERATORS.items():
        schema = _schema(name, function)
        if schema is not None and not hasattr(torch.ops.npu, name):
            library.define(name + schema)
            library.impl(name, function, "CompositeImplicitAutograd")
            defined.append(name)
    return defined


_libraries: list[Any] = []


def _schema(name: str, function: Function) -> str | None:
    """The schema of a function; None where a type has none, or where results are its own arguments."""
    kinds = [str(p.annotation) for p in inspect.signature(function).parameters.values()]
    if name.endswith("_") or any(t in kind for kind in kinds for t in _WITHOUT_SCHEMA):
        return None
    return torch.library.infer_schema(function, mutates_args=_WRITES.get(name, ()))
