"""Memory of large results: used again when nobody holds it, never before."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch._C._dynamo.eval_frame import set_eval_frame

from torchair.recycling import Recycler

FORM = ((1024, 512), (512, 1), torch.float32)


def addresses() -> tuple[int, int, int]:
    """Where a result lies, one of somebody else made once it is let go of, and the next one."""
    make = Recycler(*FORM)
    first = make()
    address = first.data_ptr()
    del first
    other = Recycler(*FORM)()  # takes the first one's place where nobody kept it
    again = make()
    assert (tuple(again.shape), again.stride(), again.dtype) == FORM
    return address, other.data_ptr(), again.data_ptr()


def test_memory_comes_back_once_it_is_free() -> None:
    first, other, again = addresses()
    assert first == again != other


def test_memory_comes_back_while_dynamo_evaluates_frames() -> None:
    prior = set_eval_frame(False)  # as around every call of a compiled function, in any thread
    try:
        first, other, again = addresses()
    finally:
        set_eval_frame(prior)
    assert first == again != other


HOLDERS = {
    "tensor": lambda t: t,
    "view": lambda t: t[3:5],
    "array": lambda t: t.numpy(),
    "storage": lambda t: t.untyped_storage(),
    "detached": lambda t: t.detach(),
    "capsule": torch.utils.dlpack.to_dlpack,
}


@pytest.mark.parametrize("name", HOLDERS)
def test_memory_that_somebody_holds_is_not_used_again(name: str) -> None:
    make = Recycler(*FORM)
    first = make()
    address = first.data_ptr()
    held = HOLDERS[name](first)
    del first
    assert make().data_ptr() != address
    del held


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))


def test_gradients_of_several_steps_are_those_of_eager_mode() -> None:
    mine, theirs = (copy.deepcopy(model()) for _ in range(2))
    run = torch.compile(mine, backend="npu")
    kept = []
    for step in range(4):
        x = torch.randn(512, 512, generator=torch.Generator().manual_seed(step))
        if step != 2:  # once gradients are added to those of before
            mine.zero_grad()
            theirs.zero_grad()
        run(x).square().mean().backward()
        theirs(x).square().mean().backward()
        kept.append((mine[0].weight.grad, theirs[0].weight.grad))
    for found, expected in kept:  # of steps whose gradients were let go of but here
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_a_second_forward_pass_before_the_first_backward_pass() -> None:
    mine, theirs = (copy.deepcopy(model()) for _ in range(2))
    run = torch.compile(mine, backend="npu")
    inputs = [torch.randn(512, 512, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    for net, twin in ((run, mine), (theirs, theirs)):
        losses = [net(x).square().mean() for x in inputs]
        for loss in losses:
            loss.backward()
        assert twin[0].weight.grad is not None
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)
