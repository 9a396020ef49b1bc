"""Quantisation: numbers to levels and back, products of quantised operands, products with packed weights."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from torch_npu.functions import halves, npu_rms_norm

__all__ = [
    "npu_add_rms_norm_quant",
    "npu_anti_quant",
    "npu_convert_weight_to_int4pack",
    "npu_dynamic_quant",
    "npu_dynamic_quant_asymmetric",
    "npu_quant_matmul",
    "npu_quantize",
    "npu_rms_norm_quant",
    "npu_swiglu_quant",
    "npu_trans_quant_param",
    "npu_weight_quant_batchmatmul",
]

_IN_INT32 = 8  # 4-bit numbers, the first in the lowest bits
_RANGES = {torch.int8: (-128, 127), torch.uint8: (0, 255), torch.int32: (-(2**31), 2**31 - 1)}
_STORED = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}
_CODES = {1: torch.quint8, 2: torch.int8, 3: torch.int32, 29: torch.quint4x2}  # of other devices' interfaces


def _target(name: str, dtype: Any) -> torch.dtype:
    """The requested type of quantised numbers; quint4x2 stands for eight of them in an int32."""
    found: Any = _CODES.get(dtype, dtype) if isinstance(dtype, int) else dtype
    found = torch.int8 if found is None else _STORED.get(found, found)
    if found not in _RANGES and found is not torch.quint4x2:
        raise NotImplementedError(f"{name}: {dtype} is not supported; choose torch.int8 or torch.quint4x2")
    return found


def _pack(levels: torch.Tensor) -> torch.Tensor:
    """Eight numbers of 4 bits in each int32, along the last axis."""
    if levels.shape[-1] % _IN_INT32:
        raise ValueError(f"the last axis has {levels.shape[-1]} elements, a multiple of 8 is expected")
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=levels.device)
    apart = (levels.to(torch.int32) & 15).unflatten(-1, (-1, _IN_INT32)) << shifts
    return apart.sum(-1, dtype=torch.int32)


def _unpack(packed: torch.Tensor) -> torch.Tensor:
    """The signed numbers that `_pack` has packed."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)
    levels = (packed.unsqueeze(-1) >> shifts) & 15
    return torch.where(levels > 7, levels - 16, levels).flatten(-2)


def _rounded(values: torch.Tensor, target: torch.dtype) -> torch.Tensor:
    """Numbers as levels: rounded half to even and kept in the range."""
    low, high = (-8, 7) if target is torch.quint4x2 else _RANGES[target]
    levels = values.round().clamp(low, high)
    return _pack(levels) if target is torch.quint4x2 else levels.to(target)


# -- numbers to levels and back ----------------------------------------------------------------------------------


def npu_quantize(
    input: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    dtype: Any,
    axis: int = 1,
    div_mode: bool = True,
) -> torch.Tensor:
    """round(input / scales + zero_points), or input * scales without `div_mode`; scales run along an axis.

    >>> npu_quantize(torch.tensor([[1.0, 300.0]]), torch.tensor([1.0, 2.0]), None, torch.qint8)
    tensor([[  1, 127]], dtype=torch.int8)
    """
    shape = [-1 if i == axis % input.dim() else 1 for i in range(input.dim())]
    step, zero = (v if v is None or v.dim() != 1 else v.view(shape) for v in (scales, zero_points))
    assert step is not None
    levels = input.float() / step.float() if div_mode else input.float() * step.float()
    target = _target("npu_quantize", dtype)
    return _rounded(levels if zero is None else levels + zero.float(), target)


def npu_anti_quant(
    x: torch.Tensor,
    scale: torch.Tensor,
    *,
    offset: torch.Tensor | None = None,
    dst_dtype: Any = None,
    src_dtype: Any = None,
) -> torch.Tensor:
    """(x + offset) * scale, float16 unless another type is requested; int32 holds eight numbers of 4 bits."""
    levels = (_unpack(x) if x.dtype is torch.int32 else x).float()
    if offset is not None:
        levels = levels + offset.float()
    return (levels * scale.float()).to(dst_dtype or torch.float16)


def npu_dynamic_quant(
    x: torch.Tensor,
    *,
    smooth_scales: torch.Tensor | None = None,
    group_index: torch.Tensor | None = None,
    dst_type: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(levels, scale) of each row: scale = max(abs(x)) / 127 and levels = round(x / scale)."""
    target = _target("npu_dynamic_quant", dst_type)
    wide = _smoothed(x, smooth_scales, group_index)
    scale = wide.abs().amax(-1, keepdim=True) / (7 if target is torch.quint4x2 else 127)
    return _rounded(wide / _divisor(scale), target), scale.squeeze(-1)


def npu_dynamic_quant_asymmetric(
    x: torch.Tensor,
    *,
    smooth_scales: torch.Tensor | None = None,
    group_index: torch.Tensor | None = None,
    dst_type: Any = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(levels, scale, offset) of each row, over all levels: levels = round(x / scale + offset)."""
    target = _target("npu_dynamic_quant_asymmetric", dst_type)
    low, high = (-8, 7) if target is torch.quint4x2 else (-128, 127)
    wide = _smoothed(x, smooth_scales, group_index)
    top = wide.amax(-1, keepdim=True)
    scale = (top - wide.amin(-1, keepdim=True)) / (high - low)
    offset = high - top / _divisor(scale)
    return _rounded(wide / _divisor(scale) + offset, target), scale.squeeze(-1), offset.squeeze(-1)


def _divisor(scale: torch.Tensor) -> torch.Tensor:
    """The scale of a row of zeros divides by one."""
    return torch.where(scale == 0, 1.0, scale)


def _smoothed(x: torch.Tensor, smooth: torch.Tensor | None, group_index: torch.Tensor | None) -> torch.Tensor:
    """x times a vector for all rows, or for each group of rows the one that ends at its place."""
    if smooth is None:
        return x.float()
    if group_index is None:
        return x.float() * smooth.float()
    rows = torch.arange(x.shape[:-1].numel(), device=x.device)
    group = torch.searchsorted(group_index.to(rows.dtype), rows, right=True)
    chosen = smooth.float()[group.clamp_max(smooth.shape[0] - 1)]
    return x.float() * chosen.view(*x.shape[:-1], -1)


def npu_trans_quant_param(
    scale: torch.Tensor, offset: torch.Tensor | None = None, round_mode: int | None = 0
) -> torch.Tensor:
    """Scales as int64, in whose lower half are the bits of a float32; `npu_quant_matmul` takes them."""
    if offset is not None:
        raise NotImplementedError(
            "npu_trans_quant_param: offset is not supported; pass it to npu_quant_matmul"
        )
    return scale.float().contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF


def _as_float(scale: torch.Tensor) -> torch.Tensor:
    """Scales as numbers, those of `npu_trans_quant_param` too."""
    if scale.dtype is not torch.int64:
        return scale.float()
    low = scale & 0xFFFFFFFF
    return torch.where(low > 0x7FFFFFFF, low - 0x100000000, low).to(torch.int32).view(torch.float32)


# -- after norms and activations ---------------------------------------------------------------------------------


def npu_rms_norm_quant(
    x: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor,
    epsilon: float = 1e-6,
) -> torch.Tensor:
    """round((RMS norm + beta) * scale + offset) as int8."""
    normed = npu_rms_norm(x.float(), gamma.float(), epsilon)[0] + beta.float()
    return _rounded(normed * scale.float() + offset.float(), torch.int8)


def npu_add_rms_norm_quant(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    scales1: torch.Tensor,
    zero_points1: torch.Tensor | None,
    beta: torch.Tensor | None = None,
    scales2: torch.Tensor | None = None,
    zero_points2: torch.Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-6,
    div_mode: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(levels by the first scales, by the second ones, x1 + x2) of the RMS norm of x1 + x2."""
    total = x1 + x2
    normed = npu_rms_norm(total.float(), gamma.float(), epsilon)[0]
    normed = normed if beta is None else normed + beta.float()
    first = npu_quantize(normed, scales1, zero_points1, torch.int8, axis, div_mode)
    if scales2 is None:
        return first, torch.zeros_like(first), total
    return first, npu_quantize(normed, scales2, zero_points2, torch.int8, axis, div_mode), total


def npu_swiglu_quant(
    x: torch.Tensor,
    *,
    smooth_scales: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    group_index: torch.Tensor | None = None,
    activate_left: bool = False,
    quant_mode: int = 0,
    group_list_type: int = 0,
    dst_type: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(levels, scale) of silu(one half) * the other; `quant_mode=1` is by row, 0 by the given scales and offsets."""
    left, right = halves("npu_swiglu_quant", x.float(), -1)
    gate, other = (left, right) if activate_left else (right, left)
    made = functional.silu(gate) * other
    ends = group_index
    if ends is not None and group_list_type == 1:
        ends = ends.cumsum(0)
    if quant_mode == 1:
        return npu_dynamic_quant(made, smooth_scales=smooth_scales, group_index=ends, dst_type=dst_type)
    if group_index is not None or smooth_scales is None:
        raise NotImplementedError(
            "npu_swiglu_quant: static scales are one vector; use quant_mode=1 for groups"
        )
    levels = made * smooth_scales.float()
    levels = levels if offsets is None else levels + offsets.float()
    return _rounded(levels, _target("npu_swiglu_quant", dst_type)), made.new_empty(0)


# -- products ----------------------------------------------------------------------------------------------------


def npu_quant_matmul(
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor,
    *,
    offset: torch.Tensor | None = None,
    pertoken_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    output_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """(x1 @ x2 + bias) * scale * pertoken_scale + offset of integers; int32 operands hold eight numbers of 4 bits.

    The product of integers is exact; a floating-point bias is added after scaling. The result is int8 unless another
    type is asked for.

    >>> x = torch.tensor([[1, 2]], dtype=torch.int8)
    >>> npu_quant_matmul(x, x.t(), torch.tensor([0.5]), output_dtype=torch.float16)
    tensor([[2.5000]], dtype=torch.float16)
    """
    left, right = (_unpack(x) if x.dtype is torch.int32 else x for x in (x1, x2))
    if x2.dtype is torch.int32 and x2.shape[-2] * _IN_INT32 == left.shape[-1]:  # packed before it was turned
        right = _unpack(x2.transpose(-1, -2)).transpose(-1, -2)
    total = _integer_product(left, right)
    if bias is not None and bias.dtype is torch.int32:
        total, bias = total + bias, None
    if output_dtype is torch.int32:
        return total
    made = total.float() * _as_float(scale)
    if pertoken_scale is not None:
        made = made * pertoken_scale.float().unsqueeze(-1)
    made = made if bias is None else made + bias.float()
    made = made if offset is None else made + offset.float()
    wanted = output_dtype or torch.int8
    return _rounded(made, torch.int8) if wanted is torch.int8 else made.to(wanted)


def _integer_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Exact sums of products of 8-bit numbers, in 32 bits."""
    if left.dim() == right.dim() == 2 and left.dtype is right.dtype is torch.int8:
        return torch._int_mm(left, right)
    return (left.to(torch.int32).unsqueeze(-1) * right.to(torch.int32).unsqueeze(-3)).sum(
        -2, dtype=torch.int32
    )


def npu_convert_weight_to_int4pack(weight: torch.Tensor, inner_k_tiles: int = 0) -> torch.Tensor:
    """Eight int32 of -8 to 7 in each int32, along the last axis.

    >>> npu_convert_weight_to_int4pack(torch.tensor([[1, 2, 0, 0, 0, 0, 0, -1]], dtype=torch.int32))
    tensor([[-268435423]], dtype=torch.int32)
    """
    return _pack(weight)


def _weights(
    weight: torch.Tensor, depth: int, scale: torch.Tensor, offset: torch.Tensor | None, group: int
) -> torch.Tensor:
    """The weights (depth, columns) as numbers: (level + offset) * scale."""
    if weight.dtype is torch.int32:
        along_depth = weight.shape[0] * _IN_INT32 == depth
        weight = _unpack(weight.t()).t() if along_depth else _unpack(weight)
    levels = weight.float()

    def spread(factor: torch.Tensor) -> torch.Tensor:
        factor = factor.float() if factor.dim() == 2 else factor.float().unsqueeze(0)
        return factor.repeat_interleave(group, 0)[:depth] if group else factor

    levels = levels if offset is None else levels + spread(offset)
    return levels * spread(scale)


def npu_weight_quant_batchmatmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    antiquant_scale: torch.Tensor,
    antiquant_offset: torch.Tensor | None = None,
    quant_scale: torch.Tensor | None = None,
    quant_offset: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    antiquant_group_size: int = 0,
    inner_precise: int = 0,
) -> torch.Tensor:
    """x @ ((weight + offset) * scale) + bias: weights are int8, or int32 that hold eight numbers of 4 bits.

    Scales and offsets are one number, one for each column, or (groups, columns) with `antiquant_group_size`. Compiled,
    weights stay packed; faster where they are the transpose of a (columns, depth) matrix.
    """
    made = _packed_matmul(x, weight, antiquant_scale, antiquant_offset, bias, antiquant_group_size)
    if quant_scale is None:
        return made
    levels = made.float() * _as_float(quant_scale)
    return _rounded(levels if quant_offset is None else levels + quant_offset.float(), torch.int8)


@torch.library.custom_op("npu::weight_quant_matmul", mutates_args=())
def _packed_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    bias: torch.Tensor | None,
    group: int,
) -> torch.Tensor:
    """The product as one operator, which the compiler maps to that of packed weights."""
    wide = _weights(weight, x.shape[-1], scale, offset, group)
    made = x.float() @ wide
    return (made if bias is None else made + bias.float()).to(x.dtype)


@_packed_matmul.register_fake
def _packed_shape(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    bias: torch.Tensor | None,
    group: int,
) -> torch.Tensor:
    packed_columns = weight.dtype is torch.int32 and weight.shape[0] * _IN_INT32 != x.shape[-1]
    return x.new_empty((*x.shape[:-1], weight.shape[1] * (_IN_INT32 if packed_columns else 1)))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, weight, scale, offset, bias, group = inputs
    ctx.save_for_backward(weight, scale, offset)
    ctx.depth, ctx.group, ctx.bias = x.shape[-1], group, None if bias is None else bias.dtype


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Weights and their scales are fixed; x and the bias have gradients."""
    weight, scale, offset = ctx.saved_tensors
    wide = _weights(weight, ctx.depth, scale, offset, ctx.group).to(gradient.dtype)
    of_bias = None if ctx.bias is None else gradient.flatten(0, -2).sum(0).to(ctx.bias)
    return gradient @ wide.t(), None, None, None, of_bias, None


_packed_matmul.register_autograd(_backward, setup_context=_keep)
