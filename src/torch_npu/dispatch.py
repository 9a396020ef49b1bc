"""Eager operators of NPU tensors: views act on the tensor itself, everything else runs in place on its memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import DispatchKey, DispatchKeySet
from torch.nn.attention import SDPBackend
from torch.utils import _pytree as pytree

from torch_npu.memory import as_cpu, as_npu, is_npu, made_npu

__all__ = ["register"]

aten = torch.ops.aten
_CPU_KEYS = DispatchKeySet(DispatchKey.CPU)
_AUTOCAST_KEYS = DispatchKeySet(DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]
# CPU kernels of these only make a new tensor over the storage they are given, whatever its device.
_VIEWS = (
    "as_strided",
    "view",
    "_reshape_alias",
    "unfold",
    "alias",
    "view_as_real",
    "view_as_complex",
    "view.dtype",
)
_SETTERS = ("set_.source_Storage_storage_offset", "set_.source_Tensor", "set_.source_Storage")
# What autocast runs in the lower type.
_LOWERED = ("mm", "bmm", "addmm", "linear", "matmul", "baddbmm", "conv1d", "conv2d", "conv3d", "convolution",
            "scaled_dot_product_attention")  # fmt: skip
_NUMBERS = frozenset({int, float, bool, type(None), str, torch.dtype})
_PURE: dict[Any, bool] = {}  # operators seen -> whether they write none of their operands
_libraries: list[Any] = []  # registrations last as long as these


def _to_host(value: Any) -> Any:
    """A value for the CPU's kernels."""
    kind = type(value)
    if kind in _NUMBERS:
        return value
    if isinstance(value, torch.Tensor):
        return value if value.is_cpu or value.is_meta else as_cpu(value)
    if kind is list or kind is tuple:
        return kind([_to_host(v) for v in value])
    if kind is torch.device and value.type == "npu":
        return torch.device("cpu")
    return value


def _from_host(value: Any) -> Any:
    return as_npu(value) if isinstance(value, torch.Tensor) and value.device.type == "cpu" else value


def _results(result: Any) -> Any:
    """What an operator that writes nothing gives."""
    return _from_host(result) if isinstance(result, torch.Tensor) else pytree.tree_map(_from_host, result)


def _fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator on the memory of its operands; operands that it writes or returns come back themselves."""
    given = [_to_host(v) for v in args]
    named = {k: _to_host(v) for k, v in kwargs.items()} if kwargs else {}
    pure = _PURE.get(op)
    if pure is None:
        pure = _PURE[op] = not op._schema.is_mutable
    result = op._op(*given, **named)
    if pure:
        return _results(result)
    same: dict[int, torch.Tensor] = {}
    _pair([args, list(kwargs.values())], [given, list(named.values())], same)
    if isinstance(result, torch.Tensor):
        return same[id(result)] if id(result) in same else _from_host(result)
    return pytree.tree_map(lambda r: same[id(r)] if id(r) in same else _from_host(r), result)


def _pair(values: Any, plain: Any, same: dict[int, torch.Tensor]) -> None:
    """Which NPU tensor each CPU tensor stands for; one that was resized in place takes over the new memory."""
    for value, host in zip(values, plain, strict=True):
        if isinstance(value, (list, tuple)):
            _pair(value, host, same)
        elif is_npu(value):
            same[id(host)] = value
            if (
                value.shape != host.shape
                or value.stride() != host.stride()
                or value.data_ptr() != host.data_ptr()
            ):
                _take_over(value, as_npu(host))


def _take_over(tensor: torch.Tensor, source: torch.Tensor) -> None:
    aten.set_.source_Storage_storage_offset.redispatch(
        _CPU_KEYS,
        tensor,
        source.untyped_storage(),
        source.storage_offset(),
        list(source.shape),
        list(source.stride()),
    )


def _resize(self: torch.Tensor, size: list[int], *, memory_format: Any = None) -> torch.Tensor:
    fresh = torch.empty(size, dtype=self.dtype)
    old = as_cpu(self).reshape(-1)
    kept = min(old.numel(), fresh.numel())
    fresh.view(-1)[:kept].copy_(old[:kept])
    _take_over(self, as_npu(fresh))
    return self


def _empty(
    size: list[int], *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
    memory_format: Any = None,
) -> torch.Tensor:  # fmt: skip
    return made_npu(torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format))


def _empty_strided(
    size: list[int], stride: list[int], *, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None,
) -> torch.Tensor:  # fmt: skip
    return made_npu(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(self: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    _to_host(dst).copy_(_to_host(self))
    return dst


def _copy_from_and_resize(self: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    if dst.shape != self.shape:
        dst.resize_(self.shape)
    return _copy_from(self, dst)


def _convolution(input: Any, weight: Any, bias: Any, *rest: Any) -> torch.Tensor:
    return as_npu(aten.convolution(_to_host(input), _to_host(weight), _to_host(bias), *rest))


def _convolution_backward(
    grad_output: Any, input: Any, weight: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, output_mask: Any,
) -> Any:  # fmt: skip
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    found = aten.convolution_backward(
        _to_host(grad_output), _to_host(input), _to_host(weight), [channels], stride, padding, dilation, transposed,
        output_padding, groups, output_mask,
    )  # fmt: skip
    return tuple(None if f is None else as_npu(f) for f in found)


def _scaled_dot_product_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: Any = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Attention by the host's fused kernel where the host takes it, which PyTorch would not ask a Python device for."""
    rest = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
    if attn_mask is not None and attn_mask.dtype is torch.bool:  # both kinds add masks
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, -math.inf)
    if not _is_fused(query, key, value, attn_mask, enable_gqa, rest):
        by_products = aten._scaled_dot_product_attention_math
        return by_products(query, key, value, attn_mask, **rest, enable_gqa=enable_gqa)[0]
    return aten._scaled_dot_product_fused_attention_overrideable(query, key, value, attn_mask, **rest)[0]


def _is_fused(query: Any, key: Any, value: Any, mask: Any, enable_gqa: bool, rest: dict[str, Any]) -> bool:
    """Whether the host would take its fused kernel; what traces has no memory to ask it with."""
    given = [v for v in (query, key, value, mask) if v is not None]
    if enable_gqa or not all(type(v) in (torch.Tensor, torch.nn.Parameter) and is_npu(v) for v in given):
        return False
    if mask is not None and mask.requires_grad:  # the fused kernel has no gradient of it
        return False
    choice = aten._fused_sdp_choice(*map(_to_host, (query, key, value, mask)), **rest)
    return bool(choice == SDPBackend.FLASH_ATTENTION.value)


def _attention(
    query: Any, key: Any, value: Any, attn_bias: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, scale: Any = None,
) -> Any:  # fmt: skip
    mask = _to_host(attn_bias)
    output, sums = aten._scaled_dot_product_flash_attention_for_cpu(
        _to_host(query), _to_host(key), _to_host(value), dropout_p, is_causal, attn_mask=mask, scale=scale
    )
    none = [
        as_npu(torch.empty(0, dtype=torch.int64)) for _ in range(5)
    ]  # what other devices keep for their gradients
    return (as_npu(output), as_npu(sums), none[0], none[1], query.shape[2], key.shape[2], *none[2:])


def _attention_backward(
    grad_out: Any, query: Any, key: Any, value: Any, attn_bias: Any, grad_input_mask: Any, out: Any, logsumexp: Any,
    cum_seq_q: Any, cum_seq_k: Any, max_q: int, max_k: int, dropout_p: float, is_causal: bool, philox_seed: Any,
    philox_offset: Any, *, scale: Any = None,
) -> Any:  # fmt: skip
    given = [_to_host(v) for v in (grad_out, query, key, value, out, logsumexp)]
    found = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        *given, dropout_p, is_causal, attn_mask=_to_host(attn_bias), scale=scale
    )
    return (*(as_npu(f) for f in found), None)


def _redispatched(op: Any) -> Callable[..., Any]:
    redispatch = op._handle.redispatch_boxed
    return lambda *args, **kwargs: redispatch(_CPU_KEYS, *args, **kwargs)


def _lowered(op: Any) -> Callable[..., Any]:
    """An operator whose floating-point operands take autocast's type first."""

    def run(*args: Any, **kwargs: Any) -> Any:
        kind = torch.get_autocast_dtype("npu")

        def lower(value: Any) -> Any:
            wide = is_npu(value) and value.is_floating_point() and value.dtype is not torch.float64
            return value.to(kind) if wide else value

        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEYS):
            args, kwargs = pytree.tree_map(lower, (args, kwargs))
            return op(*args, **kwargs)

    return run


def _plain(op: Any) -> Callable[..., Any]:
    """An operator that writes nothing."""
    call = op._op

    def run(*args: Any, **kwargs: Any) -> Any:
        given = [_to_host(v) for v in args]
        if kwargs:
            result = call(*given, **{k: _to_host(v) for k, v in kwargs.items()})
        else:
            result = call(*given)
        return made_npu(result) if type(result) is torch.Tensor else _results(result)

    return run


def _in_place(op: Any) -> Callable[..., Any]:
    """An operator that writes its first operand and gives it back."""
    call = op._op

    def run(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        named = {k: _to_host(v) for k, v in kwargs.items()} if kwargs else kwargs
        call(_to_host(self), *[_to_host(v) for v in args], **named)
        return self

    return run


_STRUCTURED = "CompositeExplicitAutogradNonFunctional"


def _structured() -> dict[str, Callable[..., Any]]:
    """Operators that PyTorch would run in two steps, an empty tensor and its filling: one step here."""
    found: dict[str, Callable[..., Any]] = {}
    for name in torch._C._dispatch_get_registrations_for_dispatch_key(_STRUCTURED):
        if not name.startswith("aten::"):
            continue
        packet, _, overload = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(aten, packet), overload or "default")
        writes = [
            i
            for i, a in enumerate(op._schema.arguments)
            if a.alias_info is not None and a.alias_info.is_write
        ]
        if writes in ([], [0]):
            found[name.removeprefix("aten::")] = _in_place(op) if writes else _plain(op)
    return found


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def register() -> None:
    """Give PyTorch the kernels of the device."""
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(_fallback, "PrivateUse1")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    own = torch.library.Library("aten", "IMPL", "PrivateUse1")
    for name in (*_VIEWS, *_SETTERS):
        own.impl(name, _redispatched(_overload(name)))
    kernels: dict[str, Callable[..., Any]] = {
        "empty.memory_format": _empty,
        "empty_strided": _empty_strided,
        "resize_": _resize,
        "_copy_from": _copy_from,
        "_copy_from_and_resize": _copy_from_and_resize,
        "_local_scalar_dense": lambda self: as_cpu(self).item(),
        "convolution_overrideable": _convolution,
        "convolution_backward_overrideable": _convolution_backward,
        "scaled_dot_product_attention": _scaled_dot_product_attention,
        "_fused_sdp_choice": lambda *args, **kwargs: SDPBackend.MATH.value,
        "_scaled_dot_product_fused_attention_overrideable": _attention,
        "_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    }
    for name, kernel in (_structured() | kernels).items():
        own.impl(name, kernel)
    derived = torch.library.Library("aten", "IMPL", "AutogradPrivateUse1")
    derived.impl("scaled_dot_product_attention", _scaled_dot_product_attention)
    lowered = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
    for name in _LOWERED:
        if "default" in getattr(aten, name).overloads():
            lowered.impl(name, _lowered(getattr(aten, name).default))
    _libraries.extend([everything, own, derived, lowered])
