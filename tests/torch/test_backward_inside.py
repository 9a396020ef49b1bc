"""Backward passes that start inside a compiled function: Dynamo does not trace the compiler, nothing deadlocks."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

import torchair


def _through_grad(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad((x @ w).pow(3).sum(), w)[0] * 2


def _through_backward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    w.grad = None
    (x @ w).tanh().sum().backward()
    assert w.grad is not None
    return w.grad + 1


@pytest.mark.parametrize("function", [_through_grad, _through_backward])
def test_gradients_inside_of_a_compiled_function(function: Callable[..., torch.Tensor]) -> None:
    torch._dynamo.reset()
    run = torch.compile(function, backend=torchair.get_npu_backend())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*Dynamo.*")  # it traced code that is not the user's
        for seed in range(2):
            torch.manual_seed(seed)
            x, w = torch.randn(3, 4), torch.randn(4, 2, requires_grad=True)
            found, expected = run(x, w), function(x, w)
            torch.testing.assert_close(found, expected)
