"""Gears: graphs with symbolic sizes are compiled ahead for the listed sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

__all__ = ["gears_of", "set_dim_gears"]

_NAME = "_npu_dim_gears"


def set_dim_gears(t: torch.Tensor, dim_gears: Mapping[int, Sequence[int]]) -> None:
    """Say which sizes a tensor's axes will have, before the first call of a compiled function with it.

    Dynamo takes these axes as symbolic; each of the sizes is compiled when it comes for the first time. Other sizes are
    right too, but run on ATen.

    >>> x = torch.ones(4, 8)
    >>> set_dim_gears(x, {0: [1, 2, 4]})
    """
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"set_dim_gears takes a tensor, got a {type(t).__name__}")
    found: dict[int, tuple[int, ...]] = {}
    for axis, sizes in dim_gears.items():
        if not -t.dim() <= axis < t.dim():
            raise ValueError(f"axis {axis} of a tensor with {t.dim()} axes")
        choices = tuple(sorted({int(s) for s in sizes}))
        if not choices or choices[0] < 1:
            raise ValueError(f"the sizes of axis {axis} must be positive, got {list(sizes)}")
        if t.shape[axis] not in choices:
            raise ValueError(f"axis {axis} has {t.shape[axis]} elements, which is not among {list(choices)}")
        found[axis % t.dim()] = choices
    setattr(t, _NAME, found)
    for axis in found:
        torch._dynamo.maybe_mark_dynamic(t, axis)


def gears_of(args: Sequence[Any]) -> dict[tuple[int, int], tuple[int, ...]]:
    """The known sizes of arguments: (position, axis) -> sizes."""
    return {
        (position, axis): sizes
        for position, arg in enumerate(args)
        for axis, sizes in getattr(arg, _NAME, {}).items()
    }
