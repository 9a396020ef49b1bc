"""Cells of recurrent layers, which PyTorch asks every accelerator for as one operator, on tensors of the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["KERNELS"]

Bias = torch.Tensor | None


def _summed(gates: torch.Tensor, bias: Bias) -> torch.Tensor:
    return gates if bias is None else gates + bias


def _lstm_cell(
    input_gates: torch.Tensor, hidden_gates: torch.Tensor, cx: torch.Tensor, input_bias: Bias = None,
    hidden_bias: Bias = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """The new hidden state, the new cell state, and the gates for the gradient."""
    gates = _summed(input_gates, input_bias) + _summed(hidden_gates, hidden_bias)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def _lstm_cell_backward(
    grad_hy: Bias, grad_cy: Bias, cx: torch.Tensor, cy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[Any, ...]:
    i, f, g, o = workspace.chunk(4, 1)
    squashed = cy.tanh()
    slope = torch.zeros_like(cy) if grad_cy is None else grad_cy
    of_output = torch.zeros_like(o)
    if grad_hy is not None:
        slope = slope + grad_hy * o * (1 - squashed * squashed)
        of_output = grad_hy * squashed * o * (1 - o)
    parts = [slope * g * i * (1 - i), slope * cx * f * (1 - f), slope * i * (1 - g * g), of_output]
    gates = torch.cat(parts, 1)
    return gates, slope * f, gates.sum(0) if has_bias else None


def _gru_cell(
    input_gates: torch.Tensor, hidden_gates: torch.Tensor, hx: torch.Tensor, input_bias: Bias = None,
    hidden_bias: Bias = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """The new hidden state, and what the gradient reads."""
    of_input = _summed(input_gates, input_bias).chunk(3, 1)
    of_hidden = _summed(hidden_gates, hidden_bias).chunk(3, 1)
    r = (of_input[0] + of_hidden[0]).sigmoid()
    z = (of_input[1] + of_hidden[1]).sigmoid()
    n = (of_input[2] + r * of_hidden[2]).tanh()
    return (hx - n) * z + n, torch.cat([r, z, n, hx, of_hidden[2]], 1)


def _gru_cell_backward(grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool) -> tuple[Any, ...]:
    r, z, n, hx, hidden = workspace.chunk(5, 1)
    of_z = grad_hy * (hx - n) * z * (1 - z)
    of_n = grad_hy * (1 - z) * (1 - n * n)
    of_r = of_n * hidden * r * (1 - r)
    inputs, hiddens = torch.cat([of_r, of_z, of_n], 1), torch.cat([of_r, of_z, of_n * r], 1)
    biases = (inputs.sum(0), hiddens.sum(0)) if has_bias else (None, None)
    return (inputs, hiddens, grad_hy * z, *biases)


KERNELS: dict[str, Callable[..., Any]] = {
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "_thnn_fused_gru_cell": _gru_cell,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
}
