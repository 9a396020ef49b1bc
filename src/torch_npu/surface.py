"""The operators of the device's own interface, in one table: by name, as functions and as `torch.ops.npu`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

import torch

from torch_npu import attention, caches, device, experts, functions, quantisation

__all__ = ["OPERATORS", "register"]

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
        "npu_all_gather_base_mm", "npu_alltoallv_gmm", "npu_gmm_alltoallv", "npu_mm_all_reduce_base",
        "npu_mm_reduce_scatter_base", "npu_moe_distribute_combine", "npu_moe_distribute_dispatch",
    ),
    "it is a backward pass: call backward() on the result of the forward operator": (
        "npu_fusion_attention_grad", "npu_moe_gating_top_k_backward",
    ),
    "write it as calls of PyTorch, which torch.compile(backend='npu') makes one graph": (
        "npu_add_rms_norm_dynamic_quant", "npu_block_sparse_attention", "npu_chunk_gated_delta_rule",
        "npu_dequant_swiglu_quant", "npu_dynamic_block_quant", "npu_dynamic_mx_quant", "npu_fusion_attention_v3",
        "npu_gather_sparse_index", "npu_grouped_matmul_finalize_routing", "npu_grouped_matmul_swiglu_quant",
        "npu_kv_rmsnorm_rope_cache", "npu_lightning_indexer", "npu_mla_prolog", "npu_mla_prolog_v2",
        "npu_mla_prolog_v3", "npu_moe_init_routing_v2", "npu_moe_re_routing", "npu_mrope",
        "npu_multi_head_attention", "npu_nsa_compress", "npu_nsa_compress_attention", "npu_nsa_select_attention",
        "npu_quant_grouped_matmul_dequant", "npu_quant_scatter", "npu_recurrent_gated_delta_rule",
        "npu_sparse_flash_attention", "npu_top_k_top_p_sample",
    ),
}  # fmt: skip


def _absent(name: str, why: str) -> Function:
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
    found |= {name: _absent(name, why) for why, names in _ABSENT.items() for name in names}
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
