"""Functions of the device's own interface beside those of PyTorch: activations, norms, rotary embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

__all__ = [
    "copy_memory_",
    "empty_with_format",
    "fast_gelu",
    "halves",
    "npu_add_layer_norm",
    "npu_add_rms_norm",
    "npu_add_rms_norm_cast",
    "npu_apply_rotary_pos_emb",
    "npu_bmmV2",
    "npu_bounding_box_decode",
    "npu_bounding_box_encode",
    "npu_broadcast",
    "npu_clipped_swiglu",
    "npu_confusion_transpose",
    "npu_conv2d",
    "npu_conv3d",
    "npu_conv_transpose2d",
    "npu_convolution",
    "npu_convolution_transpose",
    "npu_cross_entropy_loss",
    "npu_deep_norm",
    "npu_dropout_with_add_softmax",
    "npu_dtype_cast",
    "npu_fast_gelu",
    "npu_geglu",
    "npu_gelu",
    "npu_gelu_mul",
    "npu_gemma_rms_norm",
    "npu_group_norm_silu",
    "npu_group_norm_swish",
    "npu_indexing",
    "npu_iou",
    "npu_layer_norm_eval",
    "npu_linear",
    "npu_masked_fill_range",
    "npu_max",
    "npu_min",
    "npu_mish",
    "npu_one_hot",
    "npu_pad",
    "npu_ptiou",
    "npu_reshape",
    "npu_rms_norm",
    "npu_rotary_mul",
    "npu_scaled_masked_softmax",
    "npu_sign_bits_pack",
    "npu_sign_bits_unpack",
    "npu_silu",
    "npu_silu_",
    "npu_slice",
    "npu_softmax_cross_entropy_with_logits",
    "npu_sort_v2",
    "npu_swiglu",
    "npu_transpose",
    "npu_transpose_batchmatmul",
    "one_",
]

_APPROXIMATIONS = ("none", "tanh")


# -- activations -------------------------------------------------------------------------------------------------


def npu_swiglu(self: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """silu(left half) * right half, the halves of one axis.

    >>> npu_swiglu(torch.tensor([0.0, 2.0, 3.0, 4.0]))[0]
    tensor(0.)
    """
    left, right = halves("npu_swiglu", self, dim)
    return functional.silu(left) * right


def npu_geglu(
    self: torch.Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """(product, gelu): one half times the gelu of the other, and that gelu; `approximate=1` is gelu by tanh."""
    left, right = halves("npu_geglu", self, dim)
    if approximate not in (0, 1):
        raise ValueError(f"npu_geglu: approximate={approximate}, 0 or 1 is expected")
    gate, other = (left, right) if activate_left else (right, left)
    active = functional.gelu(gate, approximate=_APPROXIMATIONS[approximate])
    return other * active, active


def halves(name: str, tensor: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    if tensor.shape[dim] % 2:
        raise ValueError(f"{name}: axis {dim} has {tensor.shape[dim]} elements, an even number is expected")
    left, right = tensor.chunk(2, dim)
    return left, right


def npu_gelu_mul(input: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """gelu(left half) * right half of the last axis."""
    left, right = halves("npu_gelu_mul", input, -1)
    return functional.gelu(left, approximate=approximate) * right


def npu_clipped_swiglu(
    x: torch.Tensor,
    *,
    group_index: torch.Tensor | None = None,
    dim: int = -1,
    alpha: float = 1.702,
    limit: float = 7.0,
    bias: float = 1.0,
    interleaved: bool = True,
) -> torch.Tensor:
    """a * sigmoid(alpha * a) * (b + bias): a and b are neighbours, or halves, kept within a limit."""
    if group_index is not None or (interleaved and dim % x.dim() != x.dim() - 1):
        raise NotImplementedError(
            "npu_clipped_swiglu: group_index, and neighbours of inner axes, are not supported"
        )
    left, right = (x[..., ::2], x[..., 1::2]) if interleaved else halves("npu_clipped_swiglu", x, dim)
    left, right = left.clamp(max=limit), right.clamp(-limit, limit)
    return left * torch.sigmoid(alpha * left) * (right + bias)


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


def npu_add_rms_norm_cast(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(RMS norm of x1 + x2 in float32, in their type, 1 / rms, x1 + x2)."""
    made, scale, total = npu_add_rms_norm(x1, x2, gamma, epsilon)
    return made.float(), made, scale, total


def npu_gemma_rms_norm(
    input: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """`npu_rms_norm` with 1 + gamma for gamma."""
    return npu_rms_norm(input, 1.0 + gamma.float(), epsilon)


def npu_layer_norm_eval(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Layer norm."""
    return functional.layer_norm(input, tuple(normalized_shape), weight, bias, eps)


def npu_add_layer_norm(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    epsilon: float = 1e-5,
    additional_output: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(layer norm of x1 + x2, mean, 1 / deviation, x1 + x2); the sum is empty unless it is requested."""
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


def npu_group_norm_swish(
    input: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float | None = 1e-5,
    swish_scale: float | None = 1.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(y * sigmoid(scale * y) of the group norm y, mean, 1 / deviation)."""
    epsilon = 1e-5 if eps is None else eps
    normed = functional.group_norm(input, num_groups, weight, bias, epsilon)
    _, mean, scale = npu_group_norm_silu(input, weight, bias, num_groups, epsilon)
    factor = 1.0 if swish_scale is None else swish_scale
    return normed * torch.sigmoid(factor * normed), mean, scale


# -- losses and boxes --------------------------------------------------------------------------------------------


def npu_cross_entropy_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(loss, log of the softmax, nothing, nothing)."""
    if return_zloss or lse_square_scale_for_zloss:
        raise NotImplementedError("npu_cross_entropy_loss: the z-loss is not supported; add it to the loss")
    logs = functional.log_softmax(input.float(), -1)
    loss = functional.cross_entropy(
        input.float(),
        target,
        weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
    nothing = input.new_empty(0)
    return loss.to(input.dtype), logs.to(input.dtype), nothing, nothing


def npu_softmax_cross_entropy_with_logits(features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """-sum(labels * log(softmax(features))) of each row."""
    return -(labels * functional.log_softmax(features, -1)).sum(-1)


def npu_dropout_with_add_softmax(
    self: torch.Tensor, x1: torch.Tensor, alpha: float, prob: float, dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(which elements were kept, the softmax, the softmax after dropout) of alpha * self + x1."""
    made = torch.softmax(alpha * self + x1, dim)
    kept = torch.empty_like(made).bernoulli_(1.0 - prob)
    return kept.to(torch.uint8), made, made * kept / (1.0 - prob)


def npu_iou(bboxes: torch.Tensor, gtboxes: torch.Tensor, mode: int = 0) -> torch.Tensor:
    """Intersection over union (mode 0), or over the area of the true box (1): a row for each true box.

    >>> npu_iou(torch.tensor([[0.0, 0, 10, 10]]), torch.tensor([[0.0, 0, 10, 20]]))
    tensor([[0.5000]])
    """
    low = torch.maximum(bboxes[None, :, :2], gtboxes[:, None, :2])
    high = torch.minimum(bboxes[None, :, 2:], gtboxes[:, None, 2:])
    common = (high - low).clamp_min(0).prod(-1)
    areas = [(b[:, 2:] - b[:, :2]).prod(-1) for b in (bboxes, gtboxes)]
    total = areas[1][:, None] if mode == 1 else areas[0][None] + areas[1][:, None] - common
    return torch.where(total > 0, common / total, 0.0)


npu_ptiou = npu_iou


# -- rotary embeddings -------------------------------------------------------------------------------------------


def npu_rotary_mul(
    input: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str = "half"
) -> torch.Tensor:
    """input * r1 + rotated(input) * r2; pairs are halves of the last axis, or neighbours ("interleave").

    >>> npu_rotary_mul(torch.tensor([1.0, 2.0]), torch.tensor([0.0]), torch.tensor([1.0]))
    tensor([-2.,  1.])
    """
    if rotary_mode == "half":
        left, right = halves("npu_rotary_mul", input, -1)
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
    """The axes in another order, contiguous unless the caller declines."""
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


def npu_bmmV2(
    self: torch.Tensor, mat2: torch.Tensor, output_sizes: Sequence[int] | None = None
) -> torch.Tensor:
    """The product of stacks of matrices, summed to other sizes where these are given."""
    made = self @ mat2
    return made.sum_to_size(tuple(output_sizes)) if output_sizes else made


def npu_transpose_batchmatmul(
    input: torch.Tensor,
    weight: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    perm_x1: Sequence[int] | None = None,
    perm_x2: Sequence[int] | None = None,
    perm_y: Sequence[int] | None = None,
    batch_split_factor: int | None = 1,
) -> torch.Tensor:
    """A product of stacks of matrices with transposes before and after it."""
    if scale is not None or batch_split_factor not in (None, 1):
        raise NotImplementedError("npu_transpose_batchmatmul: scale and batch_split_factor are not supported")
    left, right = (t if p is None else t.permute(*p) for t, p in ((input, perm_x1), (weight, perm_x2)))
    made = left @ right if bias is None else left @ right + bias
    return made if perm_y is None else made.permute(*perm_y)


def npu_max(self: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """(the largest elements along an axis, where they are)."""
    made = self.max(dim, keepdim)
    return made.values, made.indices.to(torch.int32)


def npu_min(self: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """(the smallest elements along an axis, where they are)."""
    made = self.min(dim, keepdim)
    return made.values, made.indices.to(torch.int32)


def npu_sort_v2(self: torch.Tensor, dim: int = -1, descending: bool = False) -> torch.Tensor:
    """The elements in order along an axis."""
    return self.sort(dim, descending).values


def npu_pad(input: torch.Tensor, paddings: Sequence[int]) -> torch.Tensor:
    """Zeros around a tensor, two numbers per axis, the first axis first.

    >>> npu_pad(torch.ones(1, 1), [1, 0, 0, 2])
    tensor([[0., 0., 0.],
            [1., 0., 0.]])
    """
    pairs = [tuple(paddings[i : i + 2]) for i in range(0, len(paddings), 2)]
    return functional.pad(input, [number for pair in reversed(pairs) for number in pair])


def npu_slice(self: torch.Tensor, offsets: Sequence[int], size: Sequence[int]) -> torch.Tensor:
    """A box of a tensor."""
    for axis, (offset, length) in enumerate(zip(offsets, size, strict=True)):
        self = self.narrow(axis, offset, self.shape[axis] - offset if length == -1 else length)
    return self.contiguous()


def npu_broadcast(self: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """A tensor repeated to a shape."""
    return self.expand(tuple(size)).contiguous()


def npu_reshape(self: torch.Tensor, shape: Sequence[int], can_refresh: bool = False) -> torch.Tensor:
    """A tensor under another shape."""
    return self.reshape(tuple(shape))


def npu_masked_fill_range(
    self: torch.Tensor, start: torch.Tensor, end: torch.Tensor, value: torch.Tensor, axis: int = -1
) -> torch.Tensor:
    """Ranges of the last axis filled with values: for each range and row one beginning and one end."""
    if axis % self.dim() != self.dim() - 1:
        raise NotImplementedError("npu_masked_fill_range: only the last axis is supported")
    places = torch.arange(self.shape[-1], device=self.device)
    made = self
    for begins, ends, filling in zip(start, end, value, strict=True):
        rows = min(begins.shape[0], made.shape[0]) if made.dim() > 1 else 1
        inside = (places >= begins[:rows, None]) & (places < ends[:rows, None])
        if made.dim() == 1:
            made = torch.where(inside[0], filling, made)
        else:
            shape = (rows, *[1] * (made.dim() - 2), -1)
            made = torch.cat((torch.where(inside.view(shape), filling, made[:rows]), made[rows:]))
    return made


def one_(self: torch.Tensor) -> torch.Tensor:
    """Fill a tensor with ones."""
    return self.fill_(1)


def copy_memory_(dst: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`dst.copy_(src)` of tensors with one element type."""
    if dst.dtype != src.dtype:
        raise ValueError(f"copy_memory_: {dst.dtype} and {src.dtype}, one element type is expected")
    return dst.copy_(src)


def empty_with_format(
    size: Sequence[int],
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
    acl_format: int = 2,
) -> torch.Tensor:
    """An empty tensor; it always has the one format of this device."""
    return torch.empty(tuple(size), dtype=dtype, device="npu" if device is None else device)


def npu_indexing(
    self: torch.Tensor,
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int],
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
) -> torch.Tensor:
    """A strided slice; bit i of a mask: entry i has no begin or no end, or is an ellipsis, a new axis or an index.

    >>> npu_indexing(torch.arange(8).view(2, 4), [0, 1], [2, 3], [1, 1])
    tensor([[1, 2],
            [5, 6]])
    """
    entries: list[Any] = []
    for i, (first, last, step) in enumerate(zip(begin, end, strides, strict=True)):
        if step < 1:
            raise ValueError(f"npu_indexing: strides={list(strides)}, positive ones are expected")
        if ellipsis_mask >> i & 1:
            entries.append(...)
        elif new_axis_mask >> i & 1:
            entries.append(None)
        elif shrink_axis_mask >> i & 1:
            entries.append(first)
        else:
            low = None if begin_mask >> i & 1 else first
            entries.append(slice(low, None if end_mask >> i & 1 else last, step))
    return self[tuple(entries)]


# -- convolutions ------------------------------------------------------------------------------------------------


def npu_convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """A convolution over two or three axes."""
    axes, none = list(stride), [0] * (weight.dim() - 2)
    return torch.convolution(input, weight, bias, axes, list(padding), list(dilation), False, none, groups)


npu_conv2d = npu_conv3d = npu_convolution  # which takes either number of axes


def npu_convolution_transpose(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding: Sequence[int],
    output_padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """A transposed convolution over two or three axes."""
    return torch.convolution(
        input, weight, bias, list(stride), list(padding), list(dilation), True, list(output_padding), groups
    )


npu_conv_transpose2d = npu_convolution_transpose


# -- signs, boxes ------------------------------------------------------------------------------------------------


def npu_sign_bits_pack(self: torch.Tensor, size: int) -> torch.Tensor:
    """Eight signs a byte, the first one in the lowest bit, 1 for numbers from 0 on; `size` rows.

    >>> npu_sign_bits_pack(torch.tensor([5.0, 4, 3, 2, 0, -1, -2, 4, 3, 2, 1, 0, -1, -2]), 2)
    tensor([[159],
            [ 15]], dtype=torch.uint8)
    """
    bits = functional.pad((self >= 0).to(torch.int32), (0, -self.numel() % 8)).view(-1, 8)
    weights = 2 ** torch.arange(8, dtype=torch.int32, device=self.device)
    return (bits * weights).sum(-1).to(torch.uint8).view(size, -1)


def npu_sign_bits_unpack(input: torch.Tensor, size: int, dtype: torch.dtype) -> torch.Tensor:
    """What `npu_sign_bits_pack` packs, as 1 and -1.

    >>> npu_sign_bits_unpack(torch.tensor([15], dtype=torch.uint8), 1, torch.float32)
    tensor([[ 1.,  1.,  1.,  1., -1., -1., -1., -1.]])
    """
    places = torch.arange(8, dtype=torch.int32, device=input.device)
    bits = (input.to(torch.int32)[:, None] >> places) & 1
    return (bits * 2 - 1).to(dtype).view(size, -1)


def _centres(boxes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Centres and sizes, in whole pixels, of boxes by their corners."""
    low, high = boxes[:, :2], boxes[:, 2:]
    return (low + high) * 0.5, high - low + 1


def npu_bounding_box_encode(
    anchor_box: torch.Tensor, ground_truth_box: torch.Tensor, means0: float, means1: float, means2: float,
    means3: float, stds0: float, stds1: float, stds2: float, stds3: float,
) -> torch.Tensor:  # fmt: skip
    """Shifts and logarithms of scales that take anchors to boxes, less their means, by their deviations."""
    (centre, size), (wanted, wanted_size) = _centres(anchor_box), _centres(ground_truth_box)
    deltas = torch.cat([(wanted - centre) / size, (wanted_size / size).abs().log()], 1)
    means, stds = (
        deltas.new_tensor([means0, means1, means2, means3]),
        deltas.new_tensor([stds0, stds1, stds2, stds3]),
    )
    return (deltas - means) / stds


def npu_bounding_box_decode(
    rois: torch.Tensor, deltas: torch.Tensor, means0: float, means1: float, means2: float, means3: float,
    stds0: float, stds1: float, stds2: float, stds3: float, max_shape: Sequence[int], wh_ratio_clip: float,
) -> torch.Tensor:  # fmt: skip
    """Boxes from regions and what `npu_bounding_box_encode` gives, within an image of (height, width)."""
    means, stds = (
        deltas.new_tensor([means0, means1, means2, means3]),
        deltas.new_tensor([stds0, stds1, stds2, stds3]),
    )
    plain = deltas * stds + means
    centre, size = _centres(rois)
    limit = abs(math.log(wh_ratio_clip))
    centre = centre + size * plain[:, :2]
    half = size * plain[:, 2:].clamp(-limit, limit).exp() * 0.5 - 0.5
    last = rois.new_tensor([max_shape[1] - 1, max_shape[0] - 1])
    corners = [torch.minimum(corner.clamp(min=0), last) for corner in (centre - half, centre + half)]
    return torch.cat(corners, 1)
