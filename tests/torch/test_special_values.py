"""NaN and infinities in compiled functions are what PyTorch makes of them."""

from __future__ import annotations

import math

import pytest
import torch

import torchair  # noqa: F401  (registers the backend)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("shape", [(), (1,), (2, 1)])
def test_softmax_of_one_element(name: str, shape: tuple[int, ...]) -> None:
    def shares(x: torch.Tensor) -> torch.Tensor:
        return getattr(torch, name)(x, -1)

    torch._dynamo.reset()
    function = torch.compile(shares, backend="npu")
    for number in (math.nan, math.inf, -math.inf, 2.0):
        found, expected = (f(torch.full(shape, number, requires_grad=True)) for f in (function, shares))
        torch.testing.assert_close(found, expected, equal_nan=True)
