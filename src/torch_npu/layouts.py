"""Sparse and nested tensors on the NPU: their components are NPU tensors, computed by the CPU's kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import DispatchKey, DispatchKeySet

from torch_npu.memory import as_cpu as _as_cpu
from torch_npu.memory import as_npu as _as_npu

__all__ = ["as_cpu", "as_npu", "register", "take_over"]

aten = torch.ops.aten
# Kernels of the CPU that only hand out the parts of a tensor, wherever these are.
_PARTS = {
    "Sparse": ("_indices", "_values", "_nnz", "sparse_dim", "dense_dim", "is_coalesced", "_dimI", "_dimV",
               "_coalesced_"),
    "SparseCsr": ("crow_indices", "col_indices", "ccol_indices", "row_indices", "values", "_nnz", "sparse_dim",
                  "dense_dim"),
    "NestedTensor": ("values", "_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets"),
}  # fmt: skip
_BY_ROWS = (torch.sparse_csr, torch.sparse_bsr)


def _keys(kind: str) -> DispatchKeySet:
    return DispatchKeySet(getattr(DispatchKey, f"{kind}CPU"))


def as_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the parts of an NPU tensor."""
    return _over(tensor, _as_cpu, torch.device("cpu"))


def as_npu(tensor: torch.Tensor, index: int) -> torch.Tensor:
    """An NPU tensor over the parts of a CPU tensor."""
    return _over(tensor, lambda part: _as_npu(part, index), torch.device("npu", index))


def take_over(tensor: torch.Tensor, twin: torch.Tensor) -> None:
    """Give a tensor the parts of a tensor of the host that it was written as."""
    tensor.data = as_npu(twin, tensor.get_device())


def _over(tensor: torch.Tensor, moved: Callable[[torch.Tensor], torch.Tensor], device: torch.device) -> Any:
    if tensor.is_nested and tensor.layout is torch.strided:
        sizes = (
            tensor._nested_tensor_size(),
            tensor._nested_tensor_strides(),
            tensor._nested_tensor_storage_offsets(),
        )
        return aten._nested_view_from_buffer.default.redispatch(
            DispatchKeySet(DispatchKey.CPU), moved(tensor.values()), *sizes
        )
    known = {"dtype": tensor.dtype, "layout": tensor.layout, "device": device}
    if tensor.layout is torch.sparse_coo:
        indices, values = moved(tensor._indices()), moved(tensor._values())
        dims = tensor.sparse_dim(), tensor.dense_dim(), list(tensor.shape)
        make = aten._sparse_coo_tensor_with_dims_and_tensors.default
        return make.redispatch(
            _keys("Sparse"), *dims, indices, values, **known, is_coalesced=tensor.is_coalesced()
        )
    if tensor.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        rows = tensor.layout in _BY_ROWS
        compressed = tensor.crow_indices() if rows else tensor.ccol_indices()
        plain = tensor.col_indices() if rows else tensor.row_indices()
        parts = [moved(p) for p in (compressed, plain, tensor.values())]
        make = aten._sparse_compressed_tensor_unsafe.default
        return make.redispatch(_keys("SparseCsr"), *parts, list(tensor.shape), **known)
    raise _refusal("quantized" if tensor.is_quantized else str(tensor.layout))


def _refusal(kind: str, operator: str = "") -> NotImplementedError:
    where = f"{operator}: " if operator else ""
    return NotImplementedError(
        f"{where}{kind} tensors are not supported on the npu device: keep them on the CPU (tensor.cpu()), or use "
        "dense ones"
    )


def _refuse_quantized(op: Any, *args: Any, **kwargs: Any) -> Any:
    raise _refusal("quantized", op._schema.name)


def _mm_reduce(self: torch.Tensor, other: torch.Tensor, reduce: str) -> Any:
    """A product that the CPU keeps the places of extremes of, for the gradient, only where an operand requires one."""
    first = as_cpu(self).requires_grad_(self.requires_grad or other.requires_grad)
    found = aten._sparse_mm_reduce_impl(first, _as_cpu(other), reduce)
    return tuple(_as_npu(f, self.get_device()) for f in found)


def _redispatched(op: Any, kind: str) -> Callable[..., Any]:
    redispatch, keys = op._handle.redispatch_boxed, _keys(kind)
    return lambda *args, **kwargs: redispatch(keys, *args, **kwargs)


def _of_the_cpu(kind: str) -> set[str]:
    """Operators that the CPU has kernels of, which PyTorch would run by its own for any device otherwise."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key(f"{kind}CPU")
    return {n.removeprefix("aten::") for n in names if n.startswith("aten::")}


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def register(fallback: Callable[..., Any]) -> list[Any]:
    """Let operators of such tensors run on the host."""
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(_refuse_quantized, "QuantizedPrivateUse1")
    libraries = [everything]
    for kind, names in _PARTS.items():
        everything.fallback(fallback, f"{kind}PrivateUse1")
        library = torch.library.Library("aten", "IMPL", f"{kind}PrivateUse1")
        for name in names:
            library.impl(name, _redispatched(getattr(aten, name).default, kind))
        own = {"_sparse_mm_reduce_impl": _mm_reduce} if kind == "SparseCsr" else {}
        for name, kernel in own.items():
            library.impl(name, kernel)
        for name in _of_the_cpu(kind) - set(names) - set(own):
            library.impl(name, functools.partial(fallback, _overload(name)))
        libraries.append(library)
    return libraries
