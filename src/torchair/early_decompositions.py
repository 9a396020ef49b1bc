"""Operators that PyTorch decomposes before autograd, as its CPU kernels compute them.

PyTorch's own decompositions of these give other numbers next to infinity, or where a size does not follow from its
scale: no table of decompositions is asked for them. The replacements hold while a graph is traced for the NPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import DispatchKey, Tensor
from torch._prims_common import get_computation_dtype, suggest_memory_format

__all__ = ["in_force", "multi_margin_loss", "multilabel_margin_loss", "nearest_places", "resized_linearly"]

aten = torch.ops.aten
_MEAN, _SUM = 1, 2
_CHANNELS = 4  # from which on images of three axes are resized by a kernel of their own
_state = threading.local()


@contextmanager
def in_force() -> Iterator[None]:
    """Trace with the replacements."""
    before = _is_in_force()
    _state.on = True
    try:
        yield
    finally:
        _state.on = before


def _is_in_force() -> bool:
    return bool(getattr(_state, "on", False))


# -- resizing ------------------------------------------------------------------------------------------------------


def nearest_places(original: Callable[..., Any]) -> Callable[..., Any]:
    """Nearest neighbours; in images of two axes, an axis of the same or the double size disregards its scale."""

    def places(input: Tensor, output_size: list[Any], scales: list[Any], exact: bool = False) -> Any:
        if _is_in_force() and not exact and _disregards_scales(input):
            sizes = input.shape[2:]
            scales = [
                None if scale is not None and out in (size, 2 * size) else scale
                for scale, size, out in zip(scales, sizes, output_size, strict=True)
            ]
        return original(input, output_size, scales, exact)

    return places


def _disregards_scales(images: Tensor) -> bool:
    if images.dim() == 5 and images.shape[1] >= _CHANNELS:
        _, channel, *space = images.stride()  # PyTorch suggests no memory format of open strides
        return bool(0 < channel < space[2] <= space[1] <= space[0])
    return images.dim() == 4


def resized_linearly(original: Callable[..., Any]) -> Callable[..., Any]:
    """Linear interpolation as a weighted sum: `a + (b - a) * t` would be NaN between two infinities."""

    def resized(input: Tensor, output_size: list[Any], align_corners: bool, scales: list[Any]) -> Tensor:
        if not _is_in_force() or not input.is_floating_point():
            return original(input, output_size, align_corners, scales)
        wide = input.to(get_computation_dtype(input.dtype))
        for axis in range(input.dim() - 1, 1, -1):
            wide = _resized_axis(wide, axis, output_size[axis - 2], align_corners, scales[axis - 2])
        return wide.to(input.dtype).contiguous(memory_format=suggest_memory_format(input))

    return resized


def _resized_axis(x: Tensor, axis: int, out: Any, align_corners: bool, scale: float | None) -> Tensor:
    size = x.shape[axis]
    low, high, share = _neighbours(x, size, out, align_corners, scale)
    share = share.reshape([-1] + [1] * (x.dim() - 1 - axis))
    return x.index_select(axis, low) * (1 - share) + x.index_select(axis, high) * share


def _neighbours(x: Tensor, size: Any, out: Any, align_corners: bool, scale: float | None) -> Any:
    """The two positions that each output position reads, and the share of the second."""
    places = torch.arange(out, device=x.device)
    if out == size:
        return places, places, torch.zeros_like(places, dtype=x.dtype)
    where = places.to(x.dtype)
    if align_corners:
        where = where * ((size - 1.0) / (out - 1.0) if out > 1 else 0.0)
    else:
        step = 1.0 / scale if scale is not None and scale > 0 else size / out
        where = (step * (where + 0.5) - 0.5).clamp(min=0.0)
    low = where.to(torch.int64).clamp(max=size - 1)
    return low, (low + 1).clamp(max=size - 1), (where - low).clamp(0.0, 1.0)


# -- losses --------------------------------------------------------------------------------------------------------


def multi_margin_loss(kernels: dict[Any, Any]) -> dict[Any, Any]:
    """The loss without what is not above the margin: NaN is not."""
    return _replaced(aten.multi_margin_loss.default, kernels, _multi_margin_loss)


def multilabel_margin_loss(kernels: dict[Any, Any]) -> dict[Any, Any]:
    """The same for sets of labels; those after the first -1 are none."""
    return _replaced(aten.multilabel_margin_loss_forward.default, kernels, _multilabel_margin_loss)


def _replaced(op: Any, kernels: dict[Any, Any], ours: Callable[..., Any]) -> dict[Any, Any]:
    """The kernels of an operator with ours in the place of PyTorch's decomposition."""
    theirs = kernels[DispatchKey.Autograd]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return (ours if _is_in_force() else theirs)(*args, **kwargs)

    op._dispatch_cache.clear()
    return {**kernels, DispatchKey.Autograd: kernel}


def _multi_margin_loss(
    self: Tensor,
    target: Tensor,
    p: float = 1,
    margin: float = 1,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    rows, places = torch.atleast_2d(self), torch.atleast_1d(target).unsqueeze(1)
    count = rows.shape[1]
    excess = margin - rows.gather(1, places) + rows
    counted = (torch.arange(count, device=rows.device) != places) & (excess > 0)
    loss = torch.where(counted, excess, 0)
    if p == 2:
        loss = loss * loss
    if weight is not None:
        loss = torch.where(counted, loss * weight[places], 0)
    return _reduced(loss.sum(1) / count, reduction, target.shape)


def _multilabel_margin_loss(self: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    rows, labels = torch.atleast_2d(self), torch.atleast_2d(target)
    count = rows.shape[1]
    valid = (labels < 0).cumsum(1) == 0
    chosen = rows.gather(1, torch.where(labels == -1, 0, labels))  # what is no place fails
    places = torch.arange(count, device=rows.device)
    is_target = ((labels.unsqueeze(2) == places) & valid.unsqueeze(2)).any(1)
    excess = 1 - chosen.unsqueeze(2) + rows.unsqueeze(1)
    counted = valid.unsqueeze(2) & ~is_target.unsqueeze(1) & (excess > 0)
    loss = torch.where(counted, excess, 0).sum((1, 2)) / count
    return _reduced(loss, reduction, target.shape[:-1]), is_target.to(self.dtype).reshape(target.shape)


def _reduced(loss: Tensor, reduction: int, shape: Any) -> Tensor:
    if reduction == _MEAN:
        return loss.mean()
    return loss.sum() if reduction == _SUM else loss.reshape(shape)
