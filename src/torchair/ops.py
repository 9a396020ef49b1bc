"""Operators for models that are compiled: printing values from inside a graph."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.fx.node import has_side_effect

__all__ = ["npu_print"]

_library = torch.library.Library("torchair", "FRAGMENT")
_library.define("npu_print(Tensor[] tensors, str[] texts, int summarize_size) -> ()")


def npu_print(*args: Any, summarize_size: int = 3) -> None:
    """Print values when the graph runs, in the order of the code, without cutting the graph.

    summarize_size: how many elements at each end of an axis are shown, -1 for all.

    >>> npu_print("x =", torch.ones(2))
    x = tensor([1., 1.])
    """
    if summarize_size < -1 or summarize_size == 0:
        raise ValueError("summarize_size is positive, or -1 for all elements")
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    texts = ["" if isinstance(a, torch.Tensor) else "'" + str(a) for a in args]  # "" stands for a tensor
    torch.ops.torchair.npu_print(tensors, texts, summarize_size)


def _print(tensors: list[torch.Tensor], texts: list[str], summarize_size: int) -> None:
    shown = iter([_text(t, summarize_size) for t in tensors])
    print(*[text[1:] if text else next(shown) for text in texts], file=sys.stdout, flush=True)


def _text(tensor: torch.Tensor, edge: int) -> str:
    options = torch._tensor_str.PRINT_OPTS
    before = options.threshold, options.edgeitems
    everything = edge == -1 or max(tensor.shape, default=0) <= 2 * edge
    torch.set_printoptions(threshold=sys.maxsize if everything else 1, edgeitems=max(edge, 1))
    try:
        return repr(tensor.detach())
    finally:
        torch.set_printoptions(threshold=before[0], edgeitems=before[1])


_library.impl("npu_print", _print, "CompositeExplicitAutograd")
torch.library.register_fake("torchair::npu_print", lambda tensors, texts, summarize_size: None, lib=_library)
has_side_effect(torch.ops.torchair.npu_print.default)
