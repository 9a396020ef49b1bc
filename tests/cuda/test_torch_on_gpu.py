"""PyTorch's compiled functions on CUDA tensors, read and written in place; skipped where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cuda.test_on_gpu import _architecture

if not _architecture():
    pytest.skip("this machine has no GPU", allow_module_level=True)

import torch

import torchair


def _changed(x: torch.Tensor) -> torch.Tensor:
    x.add_(2)
    return x.exp()


def _numbers() -> torch.Tensor:
    return torch.randn(4, 6, dtype=torch.complex64, generator=torch.Generator().manual_seed(0)).cuda()


@pytest.mark.parametrize(
    ("make", "function"),
    [
        (lambda: _numbers().conj().imag, lambda x: x * 2),
        (lambda: _numbers().conj().imag[:, :2], lambda x: (x, x @ x.t())),
        (lambda: _numbers().conj().imag, _changed),
        (lambda: torch._neg_view(torch.arange(6.0, device="cuda")), _changed),
    ],
)
def test_memory_with_the_other_sign(
    make: Callable[[], torch.Tensor], function: Callable[..., object]
) -> None:
    torch._dynamo.reset()
    run = torch.compile(function, backend=torchair.get_npu_backend())
    ours, theirs = make(), make()
    torch.testing.assert_close(run(ours), function(theirs))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("axis", [0, 1])
def test_concatenations_of_hundreds_of_tensors(axis: int) -> None:
    torch._dynamo.reset()
    x = torch.randn(64, 64, device="cuda")

    def parts(x: torch.Tensor) -> torch.Tensor:
        rows = x.unbind(axis)
        return torch.cat([rows[i % 64].unsqueeze(axis) * (i % 3 + 1) for i in range(600)], axis)

    run = torch.compile(parts, backend=torchair.get_npu_backend())
    torch.testing.assert_close(run(x), parts(x), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(4,), (1, 5, 1), (3, 5, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_products_with_sums_and_permuted_results(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    x, w, b = (torch.randn(s, device="cuda", dtype=dtype) for s in ((3, 5, 8), (8, 4), shape))

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (x @ w + b).permute(1, 0, 2).contiguous()

    run = torch.compile(function, backend=torchair.get_npu_backend())
    want = function(x.double(), w.double(), b.double())
    error = (run(x, w, b).double() - want).norm() / want.norm()
    assert error <= {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]


def test_backward_passes_inside_a_compiled_function() -> None:
    torch._dynamo.reset()

    def step(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        w = w.detach().requires_grad_()
        loss = (x @ w).tanh().square().sum()
        return torch.autograd.grad(loss, w)[0]

    torch.manual_seed(0)
    w, x = (torch.randn(16, 16, device="cuda") for _ in range(2))
    run = torch.compile(step, backend=torchair.get_npu_backend())
    torch.testing.assert_close(run(w, x), step(w, x), rtol=1e-4, atol=1e-4)
