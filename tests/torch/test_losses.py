"""Losses inside of compiled modules: values and gradients are eager mode's, all of it on the NPU."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.losses import WithLoss, chances, classes, with_loss
from benchmarks.models import zoo
from torchair.executable import observe

ROWS, WIDTH, CLASSES = 24, 32, 1003


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def ignoring(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores.float(), targets, ignore_index=3)


def smoothed(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores.float(), targets, label_smoothing=0.1)


def in_the_networks_type(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores, targets)


LOSSES: list[Callable[[Tensor, Tensor], Tensor]] = [classes, ignoring, smoothed, in_the_networks_type]


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """All gradients in float32."""
    return {n: p.grad.float() for n, p in model.named_parameters() if p.grad is not None}


def check(model: nn.Module, args: list[Tensor], tolerance: float) -> None:
    """One step in eager mode and one compiled: the same loss and the same gradients, nothing left to ATen."""
    twin = copy.deepcopy(model)
    expected = model(*args)
    expected.backward()
    with observe() as reports:
        found = torch.compile(twin, backend="npu")(*args)
        found.backward()
    assert [(r.failure, r.refusals) for r in reports] == [("", []), ("", [])]
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=0)
    wanted, mine = gradients(model), gradients(twin)
    largest = max(gradient.norm() for gradient in wanted.values())
    for name, gradient in wanted.items():  # those of keys' biases are sums of rounding errors
        assert (mine[name] - gradient).norm() <= tolerance * max(gradient.norm(), 1e-3 * largest), name


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 4e-2)])
def test_cross_entropy_of_many_classes(
    loss: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype, tolerance: float
) -> None:
    model = WithLoss(nn.Linear(WIDTH, CLASSES), loss).to(dtype)
    targets = torch.randint(5, (ROWS,))  # some of them the one that is ignored
    check(model, [targets, torch.randn(ROWS, WIDTH, dtype=dtype)], tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 4e-2)])
def test_events(dtype: torch.dtype, tolerance: float) -> None:
    network = nn.Sequential(nn.Linear(WIDTH, 1), nn.Sigmoid())
    targets = torch.randint(2, (ROWS,)).float()
    check(WithLoss(network, chances).to(dtype), [targets, torch.randn(ROWS, WIDTH, dtype=dtype)], tolerance)


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_networks_with_their_losses(name: str) -> None:
    model = zoo(small=True)[name]
    args = [torch.from_numpy(a) for a in model.inputs(4)]
    module, args = with_loss(name, model.module(), args)
    check(module.requires_grad_(True).train(), args, 1e-4)
