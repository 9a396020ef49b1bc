"""Maps torch tensors to the runtime: element types, memory formats, constants without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from ge.ir.types import TENSORS, TensorDesc

__all__ = ["array_of", "desc_of", "dtype_name", "memory_order"]

_NAMES: dict[torch.dtype, str] = {
    getattr(torch, name): name
    for name in sorted(TENSORS)
    if isinstance(getattr(torch, name, None), torch.dtype)
}


def dtype_name(dtype: torch.dtype) -> str | None:
    """Our name of an element type, None for one that tensors here never have.

    >>> dtype_name(torch.bfloat16), dtype_name(torch.complex64)
    ('bfloat16', None)
    """
    return _NAMES.get(dtype)


def desc_of(value: Any) -> TensorDesc | None:
    """The description of a plain, dense tensor with known sizes; None for anything else."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    name = dtype_name(value.dtype)
    if name is None or not all(isinstance(d, int) for d in value.shape):
        return None
    return TensorDesc(tuple(value.shape), name)


def memory_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The axis order in which a tensor is dense in memory; None if it has gaps, overlaps or open sizes.

    >>> memory_order((2, 3, 4), (12, 1, 3))
    (0, 2, 1)
    """
    if not all(isinstance(n, int) for n in (*shape, *strides)):
        return None
    order = sorted(range(len(shape)), key=lambda a: (-strides[a], a))
    step = 1
    for axis in reversed(order):
        if shape[axis] != 1 and strides[axis] != step:
            return None
        step *= shape[axis]
    kept = [a for a in order if shape[a] != 1]
    if kept == sorted(kept):  # axes of one element may stand anywhere
        return tuple(range(len(shape)))
    return tuple(order)


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """A dense tensor's memory as an array, not copied unless it is a GPU's."""
    tensor = tensor.detach()
    if tensor.device.type == "npu":
        from torch_npu.memory import as_cpu

        tensor = as_cpu(tensor)
    elif tensor.device.type == "cuda":
        tensor = tensor.cpu()
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()
