"""Conjugates, negatives, transforms of functions and recurrent layers on the npu device, against the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import func, nn
from torch.autograd import forward_ad
from torch.nn.utils import rnn
from torch.utils import _pytree as pytree

import torch_npu

assert torch_npu


def _same(found: Any, expected: Any) -> None:
    plain = pytree.tree_map(lambda v: v.detach().cpu() if isinstance(v, torch.Tensor) else v, found)
    torch.testing.assert_close(plain, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "call",
    [
        lambda z: z.conj() * 1,
        lambda z: z.conj() @ z.mH,
        lambda z: torch._neg_view(z) + 1,
        lambda z: z.conj().imag + z.real,
        lambda z: z.conj().imag.neg_(),
        lambda z: torch.view_as_real(z.resolve_conj()),
        lambda z: z.conj().clone().t_(),
        lambda z: torch.stack([z.conj(), z]).sum(0).angle(),
        lambda z: torch.linalg.svdvals(z.mH),
        lambda z: torch.linalg.lu_solve(*torch.linalg.lu_factor(z[:, :2]), z.mT, left=False),
        lambda z: torch.zeros_like(z).copy_(z.conj()),
        lambda z: z.conj().to(torch.complex128),
        lambda z: torch.vdot(z[0].conj(), z[1]),
        lambda z: z.conj().tolist(),
        lambda z: torch._efficientzerotensor(3, device=z.device) + 1,
    ],
)
def test_conjugates_and_negatives_are_resolved(call: Callable[..., Any]) -> None:
    z = torch.randn(2, 3, dtype=torch.complex64)
    _same(call(z.npu()), call(z.clone()))


def test_gradients_of_complex_functions() -> None:
    z = torch.randn(3, 3, dtype=torch.complex64)
    found = []
    for device in ("cpu", "npu"):
        x = z.clone().to(device).detach().requires_grad_()
        y = (x.conj() @ x).imag.sum() + (x.mH * x).abs().sum() + torch.fft.fft(x).real.square().sum()
        y.backward()
        found.append(x.grad.cpu())  # type: ignore[union-attr]
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


def _cubes(x: torch.Tensor) -> torch.Tensor:
    return (x**3).sum() + x.sin().prod()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: func.jvp(_cubes, (x,), (torch.ones_like(x),)),
        lambda x: func.hessian(_cubes)(x),
        lambda x: func.grad(_cubes)(x),
        lambda x: func.vmap(func.grad(_cubes))(x.expand(2, 3)),
        lambda x: func.jacrev(torch.tanh)(x),
        lambda x: func.jacfwd(torch.cumsum)(x, 0),
        lambda x: func.vjp(torch.exp, x)[1](torch.ones_like(x)),
        lambda x: func.linearize(torch.sin, x)[1](torch.ones_like(x)),
        lambda x: func.functionalize(lambda v: v.clone().add_(1))(x),
        lambda x: torch.autograd.functional.hvp(_cubes, x, torch.ones_like(x)),
        lambda x: func.vmap(lambda v: torch.where(v > 0, v, 0 * v).sum())(torch.stack([x, -x])),
    ],
)
def test_functions_are_transformed(call: Callable[..., Any]) -> None:
    x = torch.tensor([0.5, -1.5, 2.0])
    _same(call(x.npu()), call(x))


def test_dual_numbers_carry_tangents() -> None:
    found = []
    for device in ("cpu", "npu"):
        x = torch.tensor([0.5, 2.0], device=device)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            parts = forward_ad.unpack_dual((dual * 3).exp() * x)
            found.append(torch.stack([parts.primal, parts.tangent]).cpu())  # type: ignore[list-item]
    torch.testing.assert_close(found[1], found[0])


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True),
    "lstm, projected": lambda: nn.LSTM(3, 4, proj_size=2, batch_first=True),
    "lstm, no bias": lambda: nn.LSTM(3, 4, bias=False, dropout=0.5, num_layers=2),
    "gru": lambda: nn.GRU(3, 4, num_layers=2, bidirectional=True, batch_first=True),
    "gru, no bias": lambda: nn.GRU(3, 4, bias=False),
    "rnn": lambda: nn.RNN(3, 4, nonlinearity="relu", num_layers=2),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("packed", [False, True])
def test_recurrent_layers(name: str, packed: bool) -> None:
    torch.manual_seed(0)
    host = LAYERS[name]()
    if packed or "no bias" in name:
        host.eval()
    first = bool(host.batch_first)
    x = torch.randn(*((2, 5, 3) if first else (5, 2, 3)))
    found = []
    for device, layer in (("cpu", host), ("npu", copy.deepcopy(host).npu())):
        given = x.clone().to(device).detach().requires_grad_()
        data = rnn.pack_padded_sequence(given, torch.tensor([5, 3]), batch_first=first) if packed else given
        result, state = layer(data)
        if packed:
            result = rnn.pad_packed_sequence(result, batch_first=first)[0]
        total = sum(s.square().sum() for s in pytree.tree_leaves(state))
        (result.square().sum() + total).backward()
        slopes = [given.grad, *(p.grad for p in layer.parameters())]
        found.append([v.detach().cpu() for v in (result, *slopes)])  # type: ignore[union-attr]
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recurrent_cells(kind: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    cell = kind(3, 4).to(dtype)
    x = torch.randn(2, 3, dtype=dtype)
    expected = cell(x)
    torch.testing.assert_close(
        pytree.tree_map(lambda v: v.detach().cpu(), copy.deepcopy(cell).npu()(x.npu())),
        pytree.tree_map(lambda v: v.detach(), expected),
        rtol=1e-5 if dtype is torch.float32 else 2e-2,
        atol=1e-6 if dtype is torch.float32 else 1e-2,
    )


def test_second_gradients_of_recurrent_layers() -> None:
    torch.manual_seed(0)
    host = nn.GRU(2, 3)
    found = []
    for device, layer in (("cpu", host), ("npu", copy.deepcopy(host).npu())):
        x = torch.ones(2, 1, 2, device=device, requires_grad=True)
        (slope,) = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(slope.square().sum(), x)
        found.append(second.cpu())
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_numbers_stand_for_tensors_in_every_operator() -> None:
    """PyTorch hands numbers that it wrapped as tensors to kernels in Python as numbers again."""
    x, places = torch.arange(6.0).reshape(2, 3), torch.tensor([[-1, 0]])
    _same(torch.take_along_dim(x.npu(), places.npu(), 1), torch.take_along_dim(x, places, 1))
