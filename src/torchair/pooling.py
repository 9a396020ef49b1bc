"""Max-pooling gradients that recompute the positions of the maxima, so that the forward graph need not save them."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

__all__ = ["find_maxima_again"]

aten = torch.ops.aten
_TYPES = (torch.float32, torch.bfloat16)

_library = torch.library.Library("torchair", "FRAGMENT")
_library.define(
    "max_pool2d_backward(Tensor grad_output, Tensor self, int[] kernel_size, int[] stride, int[] padding, "
    "int[] dilation, bool ceil_mode) -> Tensor"
)


def find_maxima_again(graph: fx.Graph) -> None:
    """Gradients of pooling by positions become gradients by the pooled data, which they have anyway.

    Positions are 64 bits for each result, and adding up at positions is slow. Not where sizes are open, windows have
    holes or the data is an argument, which may have been written since.
    """
    for node in list(graph.nodes):
        if node.target is not aten.max_pool2d_with_indices_backward.default or not _is_plain(node):
            continue
        with graph.inserting_before(node):
            again = graph.call_function(torch.ops.torchair.max_pool2d_backward.default, tuple(node.args[:7]))
        again.meta.update(node.meta)
        node.replace_all_uses_with(again)
        graph.erase_node(node)


def _is_plain(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if len(node.args) != 8 or node.kwargs or not isinstance(value, torch.Tensor) or value.dim() != 4:
        return False
    numbers = [n for part in node.args[2:6] for n in part]  # type: ignore[union-attr]
    known = all(isinstance(n, int) for n in (*value.shape, *numbers)) and _is_computed(node.args[1])
    return known and value.dtype in _TYPES and set(node.args[5]) == {1}  # type: ignore[arg-type]


def _is_computed(data: Any) -> bool:
    return isinstance(data, fx.Node) and data.op == "call_function"


def _max_pool2d_backward(grad_output: torch.Tensor, self: torch.Tensor, *window: Any) -> torch.Tensor:
    places = aten.max_pool2d_with_indices.default(self, *window)[1]
    return aten.max_pool2d_with_indices_backward.default(grad_output, self, *window, places)


_library.impl("max_pool2d_backward", _max_pool2d_backward, "CompositeExplicitAutograd")
torch.library.register_fake(
    "torchair::max_pool2d_backward",
    lambda grad_output, self, *window: torch.empty_like(self),
    lib=_library,
)
