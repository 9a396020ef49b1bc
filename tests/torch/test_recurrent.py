"""Recurrent layers in graphs: gradients, where PyTorch traces the layer as one for inference."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import torchair  # noqa: F401  registers the backend "npu"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(6, 8, num_layers=2, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(x)[0][:, -1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("through", [False, True], ids=["weights", "input too"])
def test_gradients_of_an_lstm_are_those_of_eager_mode(dtype: torch.dtype, through: bool) -> None:
    torch.manual_seed(0)
    model = Net().to(dtype)
    twin = copy.deepcopy(model)
    x = torch.randn(2, 5, 6, dtype=dtype)
    found, expected = ([model, x.clone()], [twin, x.clone()])
    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        run = torch.compile(model, backend="npu", fullgraph=True)
        for net, given in (found, expected):
            given.requires_grad_(through)
            (run if net is model else net)(given).float().square().sum().backward()
    bound = 1e-5 if dtype == torch.float32 else 3e-2
    grads = [
        [*(p.grad for p in net.parameters()), *([given.grad] if through else [])]
        for net, given in (found, expected)
    ]
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=bound, atol=bound * float(theirs.abs().max()))
