"""Gradients of recurrent layers that PyTorch traced as layers for inference, which keep nothing for gradients.

PyTorch takes a layer's input for a sign of training: where only weights need gradients, the traced layer keeps nothing,
and PyTorch's own backends end in an error. Here the gradient runs the layer again, as one for training.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["layer_backward"]

aten = torch.ops.aten

_library = torch.library.Library("torchair", "FRAGMENT")
_library.define(
    "rnn_layer_backward(Tensor input, Tensor[] weights, Tensor hx, Tensor cx, Tensor?[] grads, bool reverse, int mode, "
    "int hidden_size, int num_layers, bool has_biases, bool bidirectional, int[] batch_sizes, bool batch_first) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def layer_backward(*args: Any) -> Any:
    """The decomposition of `aten.mkldnn_rnn_layer_backward`; one with what it needs stays as it is."""
    x, *weights, h, c = args[:7]
    reverse, mode, hidden, layers, has_biases, train, bidirectional, batch_sizes, batch_first = args[13:22]
    if train:
        return NotImplemented
    rest = reverse, mode, hidden, layers, has_biases, bidirectional, batch_sizes, batch_first
    return torch.ops.torchair.rnn_layer_backward.default(x, weights, h, c, list(args[10:13]), *rest)


def _run(
    x: torch.Tensor,
    weights: list[torch.Tensor],
    h: torch.Tensor,
    c: torch.Tensor,
    grads: list[torch.Tensor | None],
    *rest: Any,
) -> Any:
    reverse, mode, hidden, layers, has_biases, bidirectional, batch_sizes, batch_first = rest
    tensors = [t.detach() for t in (x, *weights, h, c)]
    with torch.enable_grad():  # only then the layer keeps what its gradient needs
        *results, workspace = aten.mkldnn_rnn_layer.default(
            *tensors, reverse, batch_sizes, mode, hidden, layers, has_biases, bidirectional, batch_first, True
        )
    shape = reverse, mode, hidden, layers, has_biases, True, bidirectional, batch_sizes, batch_first
    return aten.mkldnn_rnn_layer_backward.default(*tensors, *results, *grads, *shape, workspace)


def _fake(x: torch.Tensor, weights: list[torch.Tensor], h: torch.Tensor, c: torch.Tensor, *rest: Any) -> Any:
    return tuple(t.new_empty(t.shape) for t in (x, *weights, h, c))


_library.impl("rnn_layer_backward", _run, "CPU")
torch.library.register_fake("torchair::rnn_layer_backward", _fake, lib=_library)
