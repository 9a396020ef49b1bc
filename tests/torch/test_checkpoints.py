"""Checkpoints whose function draws random numbers: the gradient draws them again, from the state that was kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import torch_npu  # noqa: F401  (registers the device)
from torchair import executable

Step = Callable[[torch.Tensor], Any]


@pytest.fixture(autouse=True)
def _compiled_anew() -> None:
    torch._dynamo.reset()


def attend(x: torch.Tensor, dropout: float = 0.5, **options: Any) -> torch.Tensor:
    return functional.scaled_dot_product_attention(x * 2, x, x, dropout_p=dropout, **options) + 1


def masked(x: torch.Tensor) -> torch.Tensor:
    return attend(x, attn_mask=torch.ones(5, 5, dtype=torch.bool, device=x.device).tril())


def several(x: torch.Tensor) -> tuple[torch.Tensor, None, torch.Tensor]:
    first, second = functional.dropout(x.sin(), 0.5), functional.dropout(x.cos(), 0.25)
    return first * second, None, first + second


def kept(function: Step, reentrant: bool = False) -> Step:
    return lambda x: checkpoint(function, x, use_reentrant=reentrant)


def twice(x: torch.Tensor) -> torch.Tensor:
    return kept(attend)(x.sin()) * functional.dropout(x, 0.5)


STEPS: dict[str, Step] = {
    "attention": kept(attend),
    "attention, reentrant": kept(attend, reentrant=True),
    "a pair of pairs": kept(lambda x: attend(x, 0.0)),
    "mask": kept(masked),
    "several results": lambda x: sum(v for v in kept(several)(x * 3) if v is not None),
    "nested": kept(twice),
    "draws outside": lambda x: functional.dropout(x, 0.5) + kept(attend)(functional.dropout(x, 0.5)),
    "noise beside the result": kept(lambda x: functional.rrelu(x * 2, training=True).sin()),
    "made from nothing": kept(lambda x: x.sin()[..., torch.randperm(8)] * torch.rand(5, 8)),
}


def results(run: Step, device: str = "cpu") -> list[torch.Tensor]:
    torch.manual_seed(0)
    x = torch.linspace(-0.5, 0.5, 80, device=device).reshape(1, 2, 5, 8).detach().requires_grad_()
    result = run(x)
    result.sum().backward()
    assert x.grad is not None
    return [result.detach(), x.grad, torch.rand(3)]  # and where the generator is


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
def test_results_and_gradients_are_those_of_eager_mode(step: Step) -> None:
    expected = results(step)
    with executable.observe() as reports:
        found = results(torch.compile(step, backend="npu", dynamic=False))
    assert len(reports) == 2
    assert all(not r.failure and r.npu_calls for r in reports)
    for compiled, eager in zip(found, expected, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-5)


def test_a_draw_from_a_kept_state_leaves_the_calls_that_read_it_to_the_npu() -> None:
    with executable.observe() as reports:
        results(torch.compile(kept(attend), backend="npu", dynamic=False))
    refused = [
        (r.operator.removeprefix("higher_order."), r.reason) for made in reports for r in made.refusals
    ]
    reason = "no plugin maps it"
    assert refused == [("run_and_save_rng_state", reason), ("run_with_rng_state", reason)]


@pytest.mark.parametrize(("device", "dynamic"), [("cpu", True), ("npu", False)], ids=["open sizes", "npu"])
def test_dropout_is_that_of_eager_mode(device: str, dynamic: bool) -> None:
    step = kept(lambda x: functional.dropout(x.sin(), 0.5).cos())
    expected = results(step, device)
    found = results(torch.compile(step, backend="npu", dynamic=dynamic), device)
    for compiled, eager in zip(found, expected, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-5)
