"""Functions of `torch_npu.contrib`: calls of PyTorch; those of detectors say so when they are called."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from torch_npu import functions
from torch_npu.surface import absent

__all__ = [
    "dropout_with_byte_mask",
    "fuse_add_softmax_dropout",
    "matmul_transpose",
    "npu_bbox_coder_decode_xywh2xyxy",
    "npu_bbox_coder_encode_xyxy2xywh",
    "npu_fast_condition_index_put",
    "roll",
]

_DETECTION = "write it with torchvision.ops, or as calls of PyTorch"
_ATTENTION = "call torch.nn.functional.scaled_dot_product_attention"
_ABSENT = {
    "npu_batched_multiclass_nms": _DETECTION,
    "npu_bbox_coder_encode_yolo": _DETECTION,
    "npu_ciou": _DETECTION,
    "npu_diou": _DETECTION,
    "npu_fused_attention": _ATTENTION,
    "npu_fused_attention_with_layernorm": _ATTENTION,
    "npu_giou": _DETECTION,
    "npu_iou": "call torch_npu.npu_iou",
    "npu_multiclass_nms": _DETECTION,
    "npu_ptiou": "call torch_npu.npu_ptiou",
    "npu_single_level_responsible_flags": _DETECTION,
}


def __getattr__(name: str) -> Callable[..., Any]:
    if name in _ABSENT:
        return absent(f"contrib.function.{name}", _ABSENT[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def matmul_transpose(tensor1: torch.Tensor, tensor2: torch.Tensor) -> torch.Tensor:
    """The product with the transpose of the second matrix."""
    return tensor1 @ tensor2.transpose(-2, -1)


def roll(input: torch.Tensor, shifts: Any, dims: Any = None) -> torch.Tensor:
    """`torch.roll`."""
    return torch.roll(input, shifts, dims)


def npu_fast_condition_index_put(x: torch.Tensor, condition: torch.Tensor, value: float) -> torch.Tensor:
    """A number in the place of the elements that a mask names."""
    return torch.where(condition, torch.as_tensor(value, dtype=x.dtype, device=x.device), x)


def fuse_add_softmax_dropout(
    training: bool,
    dropout: Any,
    attn_mask: torch.Tensor,
    attn_scores: torch.Tensor,
    attn_head_size: int,
    p: float = 0.5,
    dim: int = -1,
) -> torch.Tensor:
    """Dropout of the softmax of scores by the root of the head's size, a mask added to them."""
    scores = attn_scores / math.sqrt(attn_head_size) + attn_mask
    return functional.dropout(functional.softmax(scores, dim), p, training)


def dropout_with_byte_mask(
    input1: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    """Dropout."""
    return functional.dropout(input1, p, training, inplace)


def npu_bbox_coder_encode_xyxy2xywh(
    bboxes: torch.Tensor,
    gt_bboxes: torch.Tensor,
    means: Sequence[float] | None = None,
    stds: Sequence[float] | None = None,
    is_normalized: bool = False,
    normalized_scale: float = 10000.0,
) -> torch.Tensor:
    """`npu_bounding_box_encode` of float32 boxes."""
    scale = normalized_scale if is_normalized else 1.0
    m, s = means or (0.0,) * 4, stds or (1.0,) * 4
    return functions.npu_bounding_box_encode(
        bboxes.float() * scale, gt_bboxes.float() * scale, m[0], m[1], m[2], m[3], s[0], s[1], s[2], s[3]
    )


def npu_bbox_coder_decode_xywh2xyxy(
    bboxes: torch.Tensor,
    pred_bboxes: torch.Tensor,
    means: Sequence[float] | None = None,
    stds: Sequence[float] | None = None,
    max_shape: Sequence[int] | None = None,
    wh_ratio_clip: float = 16 / 1000,
) -> torch.Tensor:
    """`npu_bounding_box_decode` of float32 boxes, within an image where there is one."""
    m, s = means or (0.0,) * 4, stds or (1.0,) * 4
    boxes, deltas, shape = bboxes.float(), pred_bboxes.float(), max_shape or (9999, 9999)
    return functions.npu_bounding_box_decode(
        boxes, deltas, m[0], m[1], m[2], m[3], s[0], s[1], s[2], s[3], shape, wh_ratio_clip
    )
