"""GELU through torch.compile: values and slopes are those of float64, far from zero too."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchair  # noqa: F401  names the backend

# Errors of values and slopes, for numbers up to 8, whose slopes are about 1.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2.0**-5, torch.float16: 2.0**-8}


@pytest.mark.parametrize("count", [7, 4096])  # less than a vector; many
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_values_and_slopes(dtype: torch.dtype, approximate: str, count: int) -> None:
    torch.compiler.reset()  # one function, compiled for each case
    x = torch.linspace(-8, 8, count).to(dtype).requires_grad_()
    wide = x.detach().double().requires_grad_()
    y = torch.compile(lambda t: F.gelu(t, approximate=approximate), backend="npu", fullgraph=True)(x)
    expected = F.gelu(wide, approximate=approximate)
    y.sum().backward()
    expected.sum().backward()
    assert x.grad is not None and wide.grad is not None
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=TOLERANCE[dtype])
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_ends(approximate: str) -> None:
    torch.compiler.reset()
    x = torch.tensor([-3e38, -1e3, -30.0, 0.0, 30.0, 1e3, 3e38, torch.nan]).repeat(8).requires_grad_()
    y = torch.compile(lambda t: F.gelu(t, approximate=approximate), backend="npu", fullgraph=True)(x)
    y.sum().backward()
    slopes = torch.tensor([0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 1.0, torch.nan]).repeat(8)
    torch.testing.assert_close(x.grad, slopes, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(y, torch.where(x <= 0, 0.0, x).detach(), rtol=0, atol=0, equal_nan=True)
