"""Layer normalisation on tensors of the host, with the statistics that PyTorch expects of an accelerator.

Those of bfloat16 and float16 are float32, as compiled programs make them; the kernels of the host have them as narrow
as their operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["KERNELS"]

aten = torch.ops.aten
_NARROW = (torch.bfloat16, torch.float16)


def _forward(input: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
    y, *statistics = aten.native_layer_norm.default(input, *rest)
    return y, *(s.float() if s.dtype in _NARROW else s for s in statistics)


def _backward(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    shape: Any,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    *rest: Any,
) -> Any:
    factors = [v for v in rest[:2] if v is not None]
    if all(v.dtype == input.dtype for v in factors):
        mean, rstd = mean.to(input.dtype), rstd.to(input.dtype)
    return aten.native_layer_norm_backward.default(grad_out, input, shape, mean, rstd, *rest)


KERNELS: dict[str, Callable[..., Any]] = {
    "native_layer_norm": _forward,
    "native_layer_norm_backward": _backward,
}
