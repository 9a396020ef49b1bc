"""Indices out of range and whole numbers divided by zero raise PyTorch's errors from compiled graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torchair

X, TABLE, SCORES, WHOLE = torch.randn(5, 4), torch.randn(10, 3), torch.randn(3, 5), torch.tensor([6, 7, 8])
PLANES = X[:3, :, None, None]
Case = tuple[Any, list[int], list[list[int]], str]
CASES: dict[str, Case] = {  # function, good, bad, the operator that the error names
    "embedding": (lambda i: F.embedding(i, TABLE), [1, 9, 0], [[1, 10, 0], [-1, 2, 3]], "embedding"),
    "gather": (lambda i: X.gather(0, i[:, None]), [0, 1, 4], [[0, 1, 9], [0, -1, 2]], "gather"),
    "index_select": (lambda i: X.index_select(0, i), [0, 1, 4], [[0, 1, 5], [0, -1, 2]], "index_select"),
    "index": (lambda i: X[i], [0, -5, 2], [[0, 5, 2], [0, -6, 2]], "index"),
    "index of two axes": (lambda i: X[i, i], [0, -4, 3], [[0, 4, 2], [0, -5, 2]], "index"),
    "index_put": (lambda i: X.index_put((i,), X[0]), [0, -1, 2], [[0, 5, 2], [0, -6, 2]], "index_put"),
    "index_add": (lambda i: X.index_add(0, i, X[:3]), [0, 1, 4], [[0, 5, 2]], "index_add"),
    "index_copy": (lambda i: X.index_copy(0, i, X[:3]), [0, 1, 4], [[0, 5, 2]], "index_copy"),
    "scatter": (lambda i: X.scatter(0, i[:, None], 2.0), [0, 1, 4], [[0, 5, 2], [0, -1, 2]], "scatter"),
    "scatter_add": (lambda i: X.scatter_add(0, i[:, None], X[:3]), [0, 1, 4], [[0, 5, 2]], "scatter_add"),
    "take": (lambda i: X.take(i), [0, 19, -20], [[0, 20, 1], [-21, 0, 0]], "take"),
    "put": (lambda i: X.put(i, X[0, :3]), [0, 19, -20], [[0, 20, 1], [-21, 0, 0]], "put"),
    "put and add": (lambda i: X.put(i, X[0, :3], True), [0, 0, -20], [[0, 20, 1], [-40, 0, 0]], "put"),
    "index_select of columns": (lambda i: X.index_select(1, i), [0, 1, 3], [[0, 1, 4], [0, -1, 2]], "INDICES"),
    "masked_scatter": (lambda i: X[:3, 0].masked_scatter(i > 0, X[1, :2]), [0, 1, 2], [[1, 2, 3]], "masked_scatter"),
    "cross_entropy": (lambda i: F.cross_entropy(SCORES, i), [0, -100, 2], [[0, 5, 2], [0, -1, 2]], "Target"),
    "nll_loss2d": (lambda i: F.nll_loss(PLANES, i.view(3, 1, 1)), [0, 3, 1], [[0, 4, 2]], "Target"),
    "max_unpool2d": (
        lambda i: F.max_unpool2d(PLANES[:, :1], i.view(3, 1, 1, 1), 2), [0, 1, 3], [[0, 4, 1], [-1, 0, 0]], "scatter"
    ),
    "one_hot": (lambda i: F.one_hot(i, 5), [0, 1, 4], [[0, 5, 2]], "one_hot"),
    "index_fill": (lambda i: X.index_fill(0, i, 2.0), [0, -5, 2], [[0, 5, 2], [0, -6, 2]], "index_fill"),
    "binary_cross_entropy": (
        lambda i: F.binary_cross_entropy(i / 4, i.flip(0) / 4), [0, 1, 4], [[0, 5, 1], [-1, 0, 4]], "between 0 and 1"
    ),
    "floor_divide": (lambda i: WHOLE // i, [1, 2, -3], [[1, 0, 3]], "ZeroDivisionError"),
    "remainder": (lambda i: WHOLE % i, [1, 2, -3], [[1, 0, 3]], "ZeroDivisionError"),
    "fmod": (lambda i: torch.fmod(WHOLE, i), [1, 2, -3], [[1, 0, 3]], "ZeroDivisionError"),
    "div": (lambda i: torch.div(WHOLE, i, rounding_mode="trunc"), [1, 2, -3], [[1, 0, 3]], "ZeroDivisionError"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "open"])
def test_wrong_numbers_raise_and_later_calls_are_right(name: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    function, good, bad, named = CASES[name]
    run = torch.compile(function, backend=torchair.get_npu_backend(), dynamic=dynamic)
    for wrong in bad:
        with pytest.raises((IndexError, RuntimeError)) as theirs:
            function(torch.tensor(wrong))
        with pytest.raises(theirs.type, match=None if dynamic else named):
            run(torch.tensor(wrong))
        torch.testing.assert_close(run(torch.tensor(good)), function(torch.tensor(good)))


def test_constants_that_are_wrong_raise() -> None:
    with pytest.raises(IndexError):
        torch.compile(lambda x: x[torch.tensor([7])] + 1, backend="npu")(X)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:0].max(),
        lambda x: x[:, :0].min(),
        lambda x: (x > 0).argmax(),
        lambda x: F.binary_cross_entropy(x[:1] * 0 + 0.5, x[:1] * float("nan")),
    ],
)
def test_what_pytorch_refuses_to_compute_raises(function: Any) -> None:
    torch._dynamo.reset()
    with pytest.raises((IndexError, RuntimeError)) as theirs:
        function(X)
    with pytest.raises(theirs.type):
        torch.compile(function, backend="npu")(X)


def assert_loss_and_gradient_agree(run: Callable[[torch.Tensor], torch.Tensor], start: torch.Tensor) -> None:
    ours, theirs = start.clone().requires_grad_(), start.clone().requires_grad_()
    found, wanted = torch.compile(run, backend="npu")(ours), run(theirs)
    torch.testing.assert_close(found, wanted)
    found.sum().backward()
    wanted.sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weight", [None, torch.rand(6)], ids=["plain", "weighted"])
@pytest.mark.parametrize("shape", [(6,), (3, 6)], ids=str)
def test_losses_of_probabilities_and_their_gradients(
    shape: tuple[int, ...], weight: torch.Tensor | None, reduction: str
) -> None:
    torch._dynamo.reset()
    target = torch.rand(shape)
    target.view(-1)[:2] = torch.tensor([0.0, 1.0])

    def run(x: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy(x, target, weight, reduction=reduction)

    start = torch.rand(shape)
    start.view(-1)[1:4] = torch.tensor([0.0, 1.0, 0.0])
    assert_loss_and_gradient_agree(run, start)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 2.0, 0.5, 3.0])], ids=["plain", "weighted"])
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 4, 3), (2, 4, 2, 3)], ids=str)
def test_losses_of_classes_and_their_gradients(
    shape: tuple[int, ...], weight: torch.Tensor | None, reduction: str
) -> None:
    torch._dynamo.reset()
    classes = torch.randint(0, 4, shape[:1] + shape[2:] if len(shape) > 1 else ())
    if len(shape) > 1:
        classes.view(-1)[0] = -100

    def run(x: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, classes, weight=weight, reduction=reduction)

    start = torch.randn(shape)
    assert_loss_and_gradient_agree(run, start)
