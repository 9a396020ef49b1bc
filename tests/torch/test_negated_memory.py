"""Tensors that are the negative of their memory, such as the imaginary part of a conjugate, in compiled graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torchair

Function = Callable[..., object]


def _changed(x: torch.Tensor) -> torch.Tensor:
    x.add_(2)
    return x.exp()


def _changed_inside(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = z.conj().imag
    y.mul_(3)
    return y.exp(), z


def _numbers() -> torch.Tensor:
    return torch.randn(4, 6, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("make", "function"),
    [
        (_numbers, lambda z: z.conj().imag * 2 + 1),
        (_numbers, lambda z: (z * 2).conj().imag[:, 1:].softmax(-1)),
        (_numbers, _changed_inside),
        (lambda: _numbers().conj().imag, lambda x: x * 2),
        (lambda: _numbers().conj().imag[:, :2], lambda x: (x, x @ x.t())),
        (lambda: _numbers().conj().imag, _changed),
        (lambda: torch._neg_view(torch.arange(6.0)), lambda x: x + 1),
        (lambda: torch._neg_view(torch.arange(6.0)), _changed),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "open"])
def test_what_is_read_and_written_is_the_negative(
    make: Callable[[], torch.Tensor], function: Function, dynamic: bool
) -> None:
    torch._dynamo.reset()
    run = torch.compile(function, backend=torchair.get_npu_backend(), dynamic=dynamic)
    ours, theirs = make(), make()
    torch.testing.assert_close(run(ours), function(theirs))
    torch.testing.assert_close(ours, theirs)


def test_gradients_and_turns_with_plain_tensors() -> None:
    torch._dynamo.reset()
    run = torch.compile(lambda x, w: (x * w).sin().sum(), backend=torchair.get_npu_backend())
    for x in (torch.arange(6.0), torch._neg_view(torch.arange(6.0)), torch.arange(6.0)):
        w = torch._neg_view(torch.full((6,), 0.5)).requires_grad_()
        expected = torch.autograd.grad((x * w).sin().sum(), w)[0]
        torch.testing.assert_close(torch.autograd.grad(run(x, w), w)[0], expected)
