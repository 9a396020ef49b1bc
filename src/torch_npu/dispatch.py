"""Eager operators of NPU tensors: views act on the tensor itself, everything else runs in place on its memory."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import DispatchKey, DispatchKeySet
from torch.nn.attention import SDPBackend
from torch.utils import _pytree as pytree

from torch_npu import autocast, batch_statistics, devices, layer_statistics, layouts, recurrent
from torch_npu.memory import as_cpu, as_npu, host, is_npu, lazy_host, made_npu, with_bits
from torch_npu.storage import capacity

__all__ = ["register"]

aten = torch.ops.aten
_CPU_KEYS = DispatchKeySet(DispatchKey.CPU)
# CPU kernels of these only make or change a tensor over the storage they are given, whatever its device.
_VIEWS = ("as_strided", "as_strided_", "view", "_reshape_alias", "unfold", "view_as_real", "view_as_complex")
_SETTERS = ("set_.source_Storage_storage_offset", "set_.source_Tensor", "set_.source_Storage")
# Operators that take tensors of the host beside those of a device, as on every accelerator.
_INDEXED = frozenset(
    {"index.Tensor", "index_put_", "index_put", "_index_put_impl_", "_unsafe_index.Tensor", "_unsafe_index_put"}
)  # fmt: skip
_MIXED = _INDEXED | frozenset(
    {"_pack_padded_sequence", "_ctc_loss", "_ctc_loss.Tensor", "_ctc_loss_backward", "_ctc_loss_backward.Tensor",
     "is_set_to", "bernoulli_.Tensor", "_foreach_copy_"}
)  # fmt: skip
# PyTorch's kernels of these for any device call those of the operand's type of device, which are the CPU's and CUDA's.
_DIRECT = ("ldexp.Tensor", "ldexp.out", "ldexp_", "conj_physical_", "kaiser_window", "kaiser_window.periodic",
           "kaiser_window.beta")  # fmt: skip
_LAZY_BITS = ("Conjugate", "Negative")  # keys of tensors that are not quite their memory
_NUMBERS = frozenset({int, float, bool, type(None), str, torch.dtype})
_is_alias_of: Any = torch._C._is_alias_of  # type: ignore[attr-defined]
_only = True  # whether there is one device; set when kernels are registered
_KERNELS_OF_HOSTS = recurrent.KERNELS | batch_statistics.KERNELS | layer_statistics.KERNELS
_libraries: list[Any] = []  # registrations last as long as these


def _to_host(value: Any) -> Any:
    """A value for the CPU's kernels; of the host's own tensors only those that stand for numbers."""
    kind = type(value)
    if kind in _NUMBERS:
        return value
    if isinstance(value, torch.Tensor):
        if value.is_cpu:
            if value.dim():
                raise _mixed("cpu", f"npu:{devices.current()}")
            return value
        return value if value.is_meta else host(value)
    if kind is list or kind is tuple:
        return kind([_to_host(v) for v in value])
    if kind is torch.device and value.type == "npu":
        _slot(value)
        return torch.device("cpu")
    return value


def _to_host_lazy(value: Any) -> Any:
    """A value for the CPU's kernels of operators that read conjugates and negatives as they are."""
    if isinstance(value, (list, tuple)):
        return type(value)([_to_host_lazy(v) for v in value])
    return lazy_host(value) if is_npu(value) else _to_host(value)


def _to_host_mixed(value: Any) -> Any:
    """A value for the CPU's kernels, tensors of the host included."""
    if isinstance(value, torch.Tensor):
        return as_cpu(value) if is_npu(value) else value
    if isinstance(value, (list, tuple)):
        return type(value)([_to_host_mixed(v) for v in value])
    return _to_host(value)


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def _mixed(one: str, other: str) -> RuntimeError:
    return RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {one} and {other}!"
    )


def _refuse_host(target: Any) -> None:
    """Refuse a tensor of the host that an operator of the device would write."""
    if isinstance(target, torch.Tensor) and target.is_cpu:
        raise _mixed("cpu", f"npu:{devices.current()}")


def _refuse_indexed_host(tensor: torch.Tensor) -> None:
    """Refuse a tensor of the host that tensors of the device index."""
    if tensor.is_cpu:
        raise RuntimeError(
            f"indices should be either on cpu or on the same device as the indexed tensor ({tensor.device})"
        )


def _slot(device: torch.device | None) -> int:
    """The index of the device that a factory is called with."""
    if _only and (device is None or device.index in (None, 0)):
        return 0
    return devices.index_of(device)


def _common_index(values: Iterable[Any], found: int = -1) -> int:
    """The index of the one device that operands are on."""
    for value in values:
        index = -1
        if is_npu(value):
            index = value.get_device()
        elif isinstance(value, (list, tuple)):
            index = _common_index(value, found)
        elif isinstance(value, torch.device) and value.type == "npu" and found < 0:
            return devices.index_of(value)
        if -1 not in (index, found) and index != found:
            raise _mixed(f"npu:{found}", f"npu:{index}")
        found = max(found, index)
    return found


def _index(args: Any, kwargs: Any) -> int:
    if _only:
        return 0
    found = _common_index((*args, *kwargs.values()))
    return found if found >= 0 else devices.current()


def _results(result: Any, index: int) -> Any:
    """Results of the host's kernels as tensors of the device."""

    def moved(value: Any) -> Any:
        return as_npu(value, index) if isinstance(value, torch.Tensor) and value.is_cpu else value

    return moved(result) if isinstance(result, torch.Tensor) else pytree.tree_map(moved, result)


# -- operators that PyTorch has no other kernel for ----------------------------------------------------------------


@dataclass(frozen=True)
class _Operator:
    """What the fallback must know of an operator."""

    written: tuple[int | str, ...]  # positions and names of the operands it writes
    to_host: Callable[[Any], Any]
    call: Callable[..., Any]
    indexed: bool  # whether the first operand is read or written by indices, which may be the host's


_OPERATORS: dict[Any, _Operator] = {}


def _operator(op: Any) -> _Operator:
    found = _OPERATORS.get(op)
    if found is None:
        written = tuple(
            a.name if a.kwarg_only else i
            for i, a in enumerate(op._schema.arguments)
            if a.alias_info is not None and a.alias_info.is_write
        )
        indexed = _short_name(op) in _INDEXED
        found = _OPERATORS[op] = _Operator(written, _converter(op), _callable(op), indexed)
    return found


def _short_name(op: Any) -> str:
    schema = op._schema
    overload = f".{schema.overload_name}" if schema.overload_name else ""
    return f"{schema.name.removeprefix('aten::')}{overload}"


def _converter(op: Any) -> Callable[[Any], Any]:
    name = f"aten::{_short_name(op)}"
    if _short_name(op) in _MIXED or name.startswith("aten::_nested"):  # nested sizes are the host's
        return _to_host_mixed
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return _to_host_lazy if any(has_kernel(name, key) for key in _LAZY_BITS) else _to_host


def _callable(op: Any) -> Callable[..., Any]:
    """An operator as it is called with what PyTorch hands to kernels in Python: numbers in the place of tensors too."""
    call: Callable[..., Any] = op._op
    arguments = op._schema.arguments
    places = [i for i, a in enumerate(arguments) if str(a.type) in ("Tensor", "Optional[Tensor]")]
    name = op._schema.name.removeprefix("aten::")
    if len(places) < 2 or torch._C._should_allow_numbers_as_tensors(name):
        return call
    of_numbers = {place: _of_numbers(op, place) for place in places}

    def with_numbers(*args: Any, **kwargs: Any) -> Any:
        for place in places:
            if place < len(args) and type(args[place]) in (int, float, bool, complex):
                if (found := of_numbers[place]) is not None:
                    return found(*args, **kwargs)
                like = next(a for a in args if isinstance(a, torch.Tensor))
                kind = torch.result_type(like, args[place])
                number = torch.tensor(args[place], device="cpu").to(kind)  # out of range it wraps around
                args = (*args[:place], number, *args[place + 1 :])
        return call(*args, **kwargs)

    return with_numbers


def _of_numbers(op: Any, place: int) -> Callable[..., Any] | None:
    """The overload of an operator that takes a number at a place, None if there is none."""
    wanted = [
        (a.name, "number" if i == place else str(a.type), a.kwarg_only)
        for i, a in enumerate(op._schema.arguments)
    ]
    packet = op.overloadpacket
    for overload in packet.overloads():
        found = getattr(packet, overload)
        if [(a.name, str(a.type), a.kwarg_only) for a in found._schema.arguments] == wanted:
            call: Callable[..., Any] = found._op
            return call
    return None


def _fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator on the memory of its operands; operands that it writes or returns come back themselves."""
    known = _operator(op)
    if known.indexed:
        _refuse_indexed_host(args[0])
    return _run(known, known.to_host, args, kwargs)


def _is_elsewhere(kwargs: Any) -> bool:
    """True if an operator of NPU tensors makes its result on another device."""
    device = kwargs.get("device") if kwargs else None
    return device is not None and device.type != "npu"


def _fallback_of_layouts(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The same where an operand or the result is sparse or nested: such results may be requested on the host."""
    if _is_elsewhere(kwargs):
        named = {k: _to_host_mixed(v) for k, v in kwargs.items()}
        return _operator(op).call(*map(_to_host_mixed, args), **named)
    return _run(_operator(op), _to_host_mixed, args, kwargs)


def _run(known: _Operator, to_host: Callable[[Any], Any], args: Any, kwargs: Any) -> Any:
    index = _index(args, kwargs)
    given = [to_host(v) for v in args]
    named = {k: to_host(v) for k, v in kwargs.items()} if kwargs else {}
    if not known.written:
        result = known.call(*given, **named)
        return result if _is_elsewhere(kwargs) else _results(result, index)
    with (
        torch._C.DisableTorchFunction()
    ):  # a mode that is entered again in its function would see these calls
        return _run_written(known, to_host, args, kwargs, given, named, index)


def _run_written(
    known: _Operator, to_host: Callable[[Any], Any], args: Any, kwargs: Any, given: list[Any], named: dict[str, Any],
    index: int,
) -> Any:  # fmt: skip
    """Run an operator that writes operands; a number of the host may be read, not written."""
    operands: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    written: dict[Any, Any] = {place: operands.get(place) for place in known.written}
    if to_host is not _to_host_mixed:
        for value in written.values():
            _refuse_host(value)
    shared = _share_storage(known, args, kwargs, given, named)
    result = _written(known, given, named, shared)
    same: dict[int, torch.Tensor] = {}
    _pair([args, list(kwargs.values())], [given, list(named.values())], same)
    for place, value in written.items():
        if is_npu(value) and not _is_dense(value):
            layouts.take_over(value, named[place] if isinstance(place, str) else given[place])
    if isinstance(result, torch.Tensor):
        return same[id(result)] if id(result) in same else _results(result, index)
    return pytree.tree_map(lambda r: same[id(r)] if id(r) in same else _results(r, index), result)


def _written(known: _Operator, given: list[Any], named: dict[str, Any], shared: bool) -> Any:
    """Call an operator that may resize what it writes, which borrowed memory cannot be: then on memory of its own."""
    try:
        return known.call(*given, **named)
    except RuntimeError as error:
        if "resize storage that is not resizable" not in str(error):
            raise
        if shared:
            raise RuntimeError(
                "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
                "memory location. Please clone() the tensor before performing the operation."
            ) from error
    for place in known.written:
        if isinstance(place, str):
            if isinstance(named.get(place), torch.Tensor):
                named[place] = named[place].clone()
        elif place < len(given) and isinstance(given[place], torch.Tensor):
            given[place] = given[place].clone()
    return known.call(*given, **named)


def _share_storage(known: _Operator, args: Any, kwargs: Any, given: list[Any], named: dict[str, Any]) -> bool:
    """Let operands that share memory with one that is written share a storage on the host too; True if any does.

    The CPU's kernels look at storages to refuse, or to copy first, what they would overwrite before they read it; an
    operand that is itself written is not resized.
    """
    values = {**dict(enumerate(args)), **kwargs}
    bases: dict[int, Any] = {}
    found = False
    for place in known.written:
        target: Any = values.get(place)
        if not is_npu(target) or not _is_dense(target):
            continue
        shared = [k for k, v in values.items() if k != place and _shares(v, target)]
        twin = with_bits(_over_storage(target, bases), target) if shared else None
        for key in (place, *shared) if shared else ():
            where: Any = named if isinstance(key, str) else given
            where[key] = _shared(values[key], where[key], target, twin, bases)
        found = found or bool(shared)
    return found


def _shares(value: Any, target: torch.Tensor) -> bool:
    """True if a tensor, or one of a list, has the memory of another one."""
    if isinstance(value, (list, tuple)):
        return any(_shares(v, target) for v in value)
    return is_npu(value) and _is_dense(value) and _is_alias_of(value, target)


def _shared(value: Any, plain: Any, target: torch.Tensor, twin: Any, bases: dict[int, Any]) -> Any:
    """What stands for a value on the host, over the storage of a tensor that is written."""
    if value is target:
        return twin
    if isinstance(value, (list, tuple)):
        pairs = zip(value, plain, strict=True)
        return type(plain)([_shared(v, p, target, twin, bases) for v, p in pairs])
    return with_bits(_over_storage(value, bases), value) if _shares(value, target) else plain


def _over_storage(tensor: torch.Tensor, bases: dict[int, Any]) -> torch.Tensor:
    storage = tensor.untyped_storage()
    if storage._cdata not in bases:
        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        whole.set_(storage, 0, (storage.nbytes(),), (1,))
        bases[storage._cdata] = host(whole).untyped_storage()
    plain = torch.empty(0, dtype=tensor.dtype, device="cpu")
    with torch.no_grad():
        plain.set_(bases[storage._cdata], tensor.storage_offset(), tensor.shape, tensor.stride())
    return plain


def _pair(values: Any, plain: Any, same: dict[int, torch.Tensor]) -> None:
    """Which NPU tensor each CPU tensor stands for; one that was resized in place takes the new size and contents."""
    for value, twin in zip(values, plain, strict=True):
        if isinstance(value, (list, tuple)):
            _pair(value, twin, same)
        elif is_npu(value):
            same[id(twin)] = value
            if not _is_dense(value):
                continue
            if value.shape != twin.shape or value.stride() != twin.stride():
                _become(value, twin)
            elif value.data_ptr() != twin.data_ptr():
                host(value).copy_(twin)


def _become(tensor: torch.Tensor, twin: torch.Tensor) -> None:
    """Give a tensor the size and the contents of a tensor of the host."""
    if not tensor.untyped_storage().nbytes():
        source = made_npu(twin, tensor.get_device())
        _set(tensor, source.untyped_storage(), source.storage_offset(), source.shape, source.stride())
        return
    _resize(tensor, list(twin.shape))
    if tensor.stride() != twin.stride():
        _set(tensor, tensor.untyped_storage(), tensor.storage_offset(), twin.shape, twin.stride())
    host(tensor).copy_(twin)


def _set(tensor: torch.Tensor, storage: Any, offset: Any, size: Any, stride: Any) -> None:
    aten.set_.source_Storage_storage_offset.redispatch(
        _CPU_KEYS, tensor, storage, offset, list(size), list(stride)
    )


def _resize(self: torch.Tensor, size: list[int], *, memory_format: Any = None) -> torch.Tensor:
    if list(self.shape) == list(size) and memory_format is None:
        return self
    form = torch.contiguous_format if memory_format is None else memory_format
    stride = torch.empty(size, dtype=self.dtype, device="meta", memory_format=form).stride()
    storage, offset = self.untyped_storage(), int(self.storage_offset())
    needed = (offset + math.prod(size)) * self.element_size() if math.prod(size) else 0
    old = storage.nbytes()
    if needed > old:
        storage = _grown(storage, needed)
    _set(self, storage, offset, size, stride)
    if needed > old and torch.are_deterministic_algorithms_enabled():
        _fill_uninitialised(self, old // self.element_size())
    return self


def _fill_uninitialised(tensor: torch.Tensor, start: int) -> None:
    """Write NaN or the largest integer to the new memory of a resized tensor, where PyTorch's settings ask for it."""
    if not torch.utils.deterministic.fill_uninitialized_memory:  # type: ignore[attr-defined]
        return
    kind, storage = tensor.dtype, tensor.untyped_storage()
    added = torch.empty(0, dtype=kind, device=tensor.device)
    _set(added, storage, start, (storage.nbytes() // tensor.element_size() - start,), (1,))
    floating = kind.is_floating_point or kind.is_complex
    added.fill_(math.nan if floating else True if kind is torch.bool else torch.iinfo(kind).max)


def _set_empty(self: torch.Tensor) -> torch.Tensor:
    fresh = torch.empty(0, dtype=self.dtype, device=self.device)
    _set(self, fresh.untyped_storage(), 0, (0,), (1,))
    return self


def _grown(storage: Any, nbytes: int) -> Any:
    """A larger storage with the bytes of another one, which no other tensor may share: it would be left behind."""
    if (size := capacity(storage)) >= nbytes:
        return storage.resize_(size)  # it was released
    if size and torch._C._storage_Use_Count(storage._cdata) > 2:
        raise RuntimeError(
            "Trying to resize storage that is not resizable: another tensor shares the memory of this NPU tensor. "
            "Resize a clone of it."
        )
    fresh = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
    old = torch.empty(0, dtype=torch.uint8, device=storage.device)
    old.set_(storage, 0, (storage.nbytes(),), (1,))
    fresh[: storage.nbytes()] = host(old)
    return made_npu(fresh, storage.device.index).untyped_storage()


# -- operators with kernels of their own ---------------------------------------------------------------------------


def _refuse_pinning(pin_memory: bool | None) -> None:
    if pin_memory:
        raise RuntimeError(
            "Only dense CPU tensors can be pinned: pin_memory=True is not for tensors on device npu. Leave it out."
        )


def _empty(
    size: list[int], *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
    memory_format: Any = None,
) -> torch.Tensor:  # fmt: skip
    _refuse_pinning(pin_memory)
    form = memory_format or torch.contiguous_format
    return made_npu(torch.empty(size, dtype=dtype, memory_format=form, device="cpu"), _slot(device))


def _empty_strided(
    size: list[int], stride: list[int], *, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None,
) -> torch.Tensor:  # fmt: skip
    _refuse_pinning(pin_memory)
    return made_npu(torch.empty_strided(size, stride, dtype=dtype, device="cpu"), _slot(device))


def _zeros(
    size: list[int], *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> torch.Tensor:
    """Zeros that are written out: a tensor without memory cannot be read by the host's kernels."""
    _refuse_pinning(pin_memory)
    return made_npu(torch.zeros(size, dtype=dtype, device="cpu"), _slot(device))


def _to_copy(self: torch.Tensor, *, non_blocking: bool = False, **options: Any) -> Any:
    """Copies are done when they return; to the host, PyTorch would ask for pinned memory for those that are not."""
    return aten._to_copy.default.redispatch(_CPU_KEYS, self, **options)


def _copy_from(self: Any, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if not isinstance(self, torch.Tensor):  # x.copy_(2.0)
        return dst.fill_(self)
    with torch._C.DisableTorchFunction():  # x.real = y comes here without the modes of the user being left
        if self.device == dst.device and _is_dense(self) and _is_dense(dst) and _is_alias_of(self, dst):
            bases: dict[int, Any] = {}  # the CPU's kernel refuses operands that overlap in part
            with_bits(_over_storage(dst, bases), dst).copy_(with_bits(_over_storage(self, bases), self))
        else:
            _to_host_mixed(dst).copy_(_to_host_mixed(self))
    return dst


def _copy_from_and_resize(self: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    if dst.shape != self.shape:
        dst.resize_(self.shape)
    return _copy_from(self, dst)


def _convolution(input: Any, weight: Any, bias: Any, *rest: Any) -> torch.Tensor:
    index = _index((input, weight, bias), {})
    return as_npu(aten.convolution(_to_host(input), _to_host(weight), _to_host(bias), *rest), index)


def _convolution_backward(
    grad_output: Any, input: Any, weight: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, output_mask: Any,
) -> Any:  # fmt: skip
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    found = aten.convolution_backward(
        _to_host(grad_output), _to_host(input), _to_host(weight), [channels], stride, padding, dilation, transposed,
        output_padding, groups, output_mask,
    )  # fmt: skip
    return _results(tuple(found), _index((grad_output, input, weight), {}))


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
    if any(v.is_nested for v in given):
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
    index = _index((query, key, value, attn_bias), {})
    none = [
        torch.empty(0, dtype=torch.int64, device="cpu") for _ in range(5)
    ]  # what other devices keep for their gradients
    found = (output, sums, none[0], none[1], query.shape[2], key.shape[2], *none[2:])
    return _results(found, index)


def _attention_backward(
    grad_out: Any, query: Any, key: Any, value: Any, attn_bias: Any, grad_input_mask: Any, out: Any, logsumexp: Any,
    cum_seq_q: Any, cum_seq_k: Any, max_q: int, max_k: int, dropout_p: float, is_causal: bool, philox_seed: Any,
    philox_offset: Any, *, scale: Any = None,
) -> Any:  # fmt: skip
    given = [_to_host(v) for v in (grad_out, query, key, value, out, logsumexp)]
    found = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        *given, dropout_p, is_causal, attn_mask=_to_host(attn_bias), scale=scale
    )
    return (*_results(tuple(found), _index((grad_out, query, key, value), {})), None)


def _redispatched(op: Any) -> Callable[..., Any]:
    redispatch = op._handle.redispatch_boxed
    return lambda *args, **kwargs: redispatch(_CPU_KEYS, *args, **kwargs)


def _plain(op: Any) -> Callable[..., Any]:
    """An operator that writes nothing."""
    call, to_host = _callable(op), _converter(op)
    indexed = _short_name(op) in _INDEXED

    def run(*args: Any, **kwargs: Any) -> Any:
        if indexed:
            _refuse_indexed_host(args[0])
        given = [to_host(v) for v in args]
        index = 0 if _only else _index(args, kwargs)
        if kwargs:
            result = call(*given, **{k: to_host(v) for k, v in kwargs.items()})
            if _is_elsewhere(kwargs):
                return result
        else:
            result = call(*given)
        if type(result) is torch.Tensor and not result.is_conj():  # some solvers give conjugates
            return made_npu(result, index)
        return _results(result, index)

    return run


def _in_place(op: Any) -> Callable[..., Any]:
    """An operator that writes its first operand and gives it back."""
    call, to_host = _callable(op), _converter(op)
    indexed = _short_name(op) in _INDEXED

    def run(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if indexed:
            _refuse_indexed_host(self)
        _refuse_host(self)
        for value in args:
            if isinstance(value, torch.Tensor) and _is_alias_of(self, value):
                return _fallback(op, self, *args, **kwargs)
        if not _only:
            _index((self, *args), kwargs)
        named = {k: to_host(v) for k, v in kwargs.items()} if kwargs else kwargs
        call(to_host(self), *[to_host(v) for v in args], **named)
        return self

    return run


_STRUCTURED = "CompositeExplicitAutogradNonFunctional"


# They read or write beyond what their operand covers, or move between devices: PyTorch's own kernels do.
_LEFT_OUT = frozenset({"as_strided_copy", "as_strided_scatter", "copy"})


def _structured() -> dict[str, Callable[..., Any]]:
    """Operators that PyTorch would run in two steps, an empty tensor and its filling: one step here."""
    found: dict[str, Callable[..., Any]] = {}
    for name in torch._C._dispatch_get_registrations_for_dispatch_key(_STRUCTURED):
        short = name.removeprefix("aten::")
        if short == name or short in _LEFT_OUT:
            continue
        op = _overload(short)
        if torch.Tag.inplace_view in op.tags:
            continue
        writes = [
            i
            for i, a in enumerate(op._schema.arguments)
            if a.alias_info is not None and a.alias_info.is_write
        ]
        if writes in ([], [0]):
            found[short] = _in_place(op) if writes else _plain(op)
    return found


def _replaced() -> dict[str, Callable[..., Any]]:
    """Operators that the CPU has kernels of beside PyTorch's own for any device, which round elsewhere."""
    keys = ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd")
    on_host, explicit, implicit = (
        set(torch._C._dispatch_get_registrations_for_dispatch_key(k)) for k in keys
    )
    both = on_host & (explicit | implicit)
    direct = {f"aten::{name}" for name in _DIRECT} & explicit
    names = sorted(n.removeprefix("aten::") for n in both | direct if n.startswith("aten::"))
    return {name: functools.partial(_fallback, _overload(name)) for name in names}


def _is_set_to(self: torch.Tensor, tensor: torch.Tensor) -> bool:
    """True if both are the same view of one storage; their copies on the host have storages of their own."""
    storages = (self.untyped_storage()._cdata, tensor.untyped_storage()._cdata)
    views = [(t.storage_offset(), t.size(), t.stride()) for t in (self, tensor)]
    return storages[0] == storages[1] and views[0] == views[1]


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def register() -> None:
    """Give PyTorch the kernels of the device."""
    global _only
    _only = devices.count() == 1
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(_fallback, "PrivateUse1")
    own = torch.library.Library("aten", "IMPL", "PrivateUse1")
    for name in (*_VIEWS, *_SETTERS):
        own.impl(name, _redispatched(_overload(name)))
    kernels: dict[str, Callable[..., Any]] = {
        "empty.memory_format": _empty,
        "empty_strided": _empty_strided,
        "_efficientzerotensor": _zeros,
        "resize_": _resize,
        "set_": _set_empty,
        "_to_copy": _to_copy,
        "_copy_from": _copy_from,
        "_copy_from_and_resize": _copy_from_and_resize,
        "_local_scalar_dense": lambda self: aten._local_scalar_dense.default(host(self)),
        "is_set_to": _is_set_to,
        "mode.values": functools.partial(
            _fallback, _overload("mode.values")
        ),  # PyTorch's own asks for the CPU
        "convolution_overrideable": _convolution,
        "convolution_backward_overrideable": _convolution_backward,
        "scaled_dot_product_attention": _scaled_dot_product_attention,
        "_fused_sdp_choice": lambda *args, **kwargs: SDPBackend.MATH.value,
        "_scaled_dot_product_fused_attention_overrideable": _attention,
        "_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    }
    hosts = {name: _of_hosts(k) for name, k in _KERNELS_OF_HOSTS.items()}
    for name, kernel in (_structured() | _replaced() | kernels | hosts).items():
        own.impl(name, kernel)
    derived = torch.library.Library("aten", "IMPL", "AutogradPrivateUse1")
    derived.impl("scaled_dot_product_attention", _scaled_dot_product_attention)
    _libraries.extend(
        [
            everything,
            own,
            derived,
            *_lazy_bits(),
            *autocast.register(),
            *layouts.register(_fallback_of_layouts),
        ]
    )


def _of_hosts(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that is written for tensors of the host."""

    def run(*args: Any, **kwargs: Any) -> Any:
        named = {k: _to_host(v) for k, v in kwargs.items()}
        return _results(kernel(*map(_to_host, args), **named), _index(args, kwargs))

    return run


def _lazy_bits() -> list[Any]:
    """Copies see conjugates and negatives as they are: PyTorch resolves those of other operators by copying them."""
    libraries = []
    for key in _LAZY_BITS:
        library = torch.library.Library("aten", "IMPL", key)
        for name in ("_copy_from", "_copy_from_and_resize"):
            library.impl(name, torch.library.fallthrough_kernel)
        libraries.append(library)
    return libraries
