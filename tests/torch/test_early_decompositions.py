"""Resizing and margin losses, which PyTorch decomposes before autograd, give eager mode's numbers when compiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import torchair  # noqa: F401  (registers the backend)

MODES = {"linear": 1, "bilinear": 2, "trilinear": 3}
SPECIAL = torch.tensor([math.inf, math.inf, 1.0, -math.inf, math.nan, 2.0, -1.0])


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def check(function: Callable[..., Any], *args: torch.Tensor) -> None:
    """The same results and the same gradients of the first argument."""
    results = []
    for run in (function, torch.compile(function, backend="npu")):
        first = args[0].clone(memory_format=torch.preserve_format)
        if first.is_floating_point():
            first.requires_grad_()
        found = run(first, *args[1:])
        given = torch.autograd.grad(found.sum(), first) if first.requires_grad else ()
        results.append((found.detach(), *given))
    torch.testing.assert_close(results[1], results[0], equal_nan=True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_interpolation_next_to_infinity(mode: str, align_corners: bool, size: int) -> None:
    rank = MODES[mode]
    images = torch.randn([2, 2] + [3] * rank)
    images.view(-1)[:7] = SPECIAL
    check(lambda x: F.interpolate(x, size=[size] * rank, mode=mode, align_corners=align_corners), images)


@pytest.mark.parametrize("scale", [1.1, 1.9, 2.1, 0.7])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", *MODES])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_size_need_not_follow_from_its_scale(scale: float, mode: str, rank: int) -> None:
    if MODES.get(mode, rank) != rank:
        return
    images = torch.randn([2, 4] + [4] * rank)
    # Eager gradients of neighbours along one or three axes take other positions than the results did.
    images = images if MODES.get(mode) or rank == 2 else (images * 10).to(torch.uint8)
    formats = [
        torch.contiguous_format,
        *{2: [torch.channels_last], 3: [torch.channels_last_3d]}.get(rank, []),
    ]
    for form in formats:
        check(lambda x: F.interpolate(x, scale_factor=scale, mode=mode), images.to(memory_format=form))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_margins_of_special_values(reduction: Any, p: int, weighted: bool) -> None:
    rows = torch.randn(9, 7)
    rows[:7].diagonal().copy_(SPECIAL)
    rows[7] = SPECIAL
    places, weight = torch.arange(9) % 7, torch.rand(7) if weighted else None

    def loss(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return F.multi_margin_loss(x, places, p=p, weight=weight, reduction=reduction)

    check(loss, rows, places)
    check(loss, rows[8], places[8])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_margins_count_labels_before_the_first_that_is_none(reduction: Any) -> None:
    rows, labels = torch.randn(9, 7), torch.full((9, 7), -1)
    rows[:7].diagonal().copy_(SPECIAL)
    for row, count in enumerate((0, 1, 2, 3, 7, 6, 1, 0, 2)):
        labels[row, :count] = torch.randperm(7)[:count]
    labels[1, 3] = labels[8, 6] = 5  # behind the end

    def loss(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.multilabel_margin_loss(x, labels, reduction=reduction)

    check(loss, rows, labels)
    check(loss, rows[8], labels[8])


@pytest.mark.parametrize(
    "labels", [[-2, 0, -1, 1], [0, -2, -1, 1], [4, -1, 0, 0], [0, -1, -2, 1], [0, -1, 7, 1]]
)
def test_margins_of_labels_that_are_no_places(labels: list[int]) -> None:
    for run in (F.multilabel_margin_loss, torch.compile(F.multilabel_margin_loss, backend="npu")):
        with pytest.raises(RuntimeError, match="out of"):
            run(torch.rand(1, 4), torch.tensor([labels]))
