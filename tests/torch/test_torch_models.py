"""Networks of many families: inference and one training step against eager mode."""

from __future__ import annotations

import copy

import pytest
import torch

import torchair
from tests.support.sampling import slow_except
from tests.torch.torch_zoo import MODELS
from torchair.executable import observe

QUICK = ("bert", "mixtral", "unet", "lstm")  # one of each kind
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.mark.parametrize("name", slow_except(QUICK, MODELS))
def test_inference_is_eager_modes(name: str) -> None:
    make, inputs = MODELS[name]
    model, args = make().eval(), inputs()
    compiled = torch.compile(model, backend="npu", fullgraph=True)
    with torch.no_grad(), observe() as reports:
        torch.testing.assert_close(compiled(*args), model(*args), **TOLERANCE)
    assert [r.failure for r in reports] == [""]
    assert reports[0].refusals == []


@pytest.mark.parametrize("name", slow_except(QUICK, MODELS))
def test_a_training_step_is_eager_modes(name: str) -> None:
    make, inputs = MODELS[name]
    model, args = make().train(), inputs()
    other = copy.deepcopy(model)
    compiled = torch.compile(other, backend="npu", fullgraph=True)
    losses = []
    with observe() as reports:
        for module, call in ((model, model), (other, compiled)):
            optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
            for _ in range(2):
                optimizer.zero_grad()
                loss = call(*args).square().mean()
                loss.backward()
                optimizer.step()
            losses.append(loss.detach())
    assert [r.failure for r in reports] == ["", ""]
    torch.testing.assert_close(losses[1], losses[0], **TOLERANCE)
    for (path, left), right in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(right, left, **TOLERANCE, msg=lambda text, path=path: f"{path}: {text}")


def test_the_backend_has_a_name() -> None:
    assert "npu" in torch.compiler.list_backends(exclude_tags=())
    assert torchair.CompilerConfig().mode == "max-autotune"
