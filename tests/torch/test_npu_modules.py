"""Modules that move to the npu device and back keep their parameters: optimizers and shared weights follow."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torch_npu  # noqa: F401  makes the device known


def test_an_optimizer_made_before_the_move_trains_the_moved_module() -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), torch.randn(3, 4)
    twin = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    twin.load_state_dict(module.state_dict())
    kept = list(module.parameters())
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.1) for m in (module, twin)]
    module.npu()
    assert all(p is q and p.device.type == "npu" for p, q in zip(module.parameters(), kept, strict=True))
    for network, optimizer in zip((module, twin), optimizers, strict=True):
        for _ in range(3):
            optimizer.zero_grad()
            network(x.to(next(network.parameters()).device)).square().mean().backward()
            optimizer.step()
    module.cpu()
    assert all(p is q and p.device.type == "cpu" for p, q in zip(module.parameters(), kept, strict=True))
    for found, expected in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(found, expected)


def test_shared_weights_attributes_and_gradients_move_with_the_parameter() -> None:
    module = nn.ModuleDict({"table": nn.Embedding(5, 4), "head": nn.Linear(4, 5, bias=False)})
    module["head"].weight = module["table"].weight
    module["table"].weight.note = "kept"  # type: ignore[attr-defined]
    module["head"](module["table"](torch.arange(3))).sum().backward()
    gradient = module["head"].weight.grad
    assert gradient is not None
    module.to("npu")
    weight = module["head"].weight
    assert weight is module["table"].weight and weight.note == "kept"
    assert weight.grad is not None and weight.grad.device.type == "npu"
    torch.testing.assert_close(weight.grad.cpu(), gradient.cpu())


def test_a_parameter_that_others_hold_is_replaced_with_a_warning() -> None:
    module = nn.Linear(2, 2, bias=False)
    held = module(torch.ones(1, 2)).square()  # its graph keeps the weight
    alias = module.weight.detach().view(2, 2), torch.utils.weak.WeakIdRef(module.weight)
    with pytest.warns(UserWarning, match=r"Linear\.weight is a new parameter on npu"):
        module.npu()
    assert module.weight.device.type == "npu" and held is not None and alias is not None


def test_the_future_setting_of_pytorch_still_replaces_parameters() -> None:
    module = nn.Linear(2, 2)
    before = module.weight
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        module.npu()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    assert module.weight is not before and before.device.type == "cpu"
