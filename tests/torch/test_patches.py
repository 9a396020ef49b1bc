"""Convolutions whose windows lie side by side: products of patches, in training too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import ge
import torchair.plan

# Sizes of a picture, of windows and of steps between them; whether it is a product.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], bool]] = {
    "plane": ((2, 3, 12, 16), (5, 3, 4, 8), {"stride": (4, 8)}, True),
    "one plane": ((2, 3, 8, 8), (5, 3, 8, 8), {"stride": 8}, True),
    "line": ((3, 2, 64), (6, 2, 16), {"stride": 16}, True),
    "space": ((1, 1, 4, 8, 6), (3, 1, 2, 4, 3), {"stride": (2, 4, 3)}, True),
    "what is left over": ((2, 3, 13, 16), (5, 3, 4, 8), {"stride": (4, 8)}, False),
    "overlapping": ((2, 3, 12, 16), (5, 3, 4, 8), {"stride": 4}, False),
    "padded": ((2, 3, 12, 16), (5, 3, 4, 4), {"stride": 4, "padding": 2}, False),
    "many channels": ((2, 8, 12, 16), (5, 8, 4, 4), {"stride": 4}, False),
    "groups": ((2, 4, 12, 16), (6, 2, 4, 4), {"stride": 4, "groups": 2}, False),
}


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list[ge.Model]:
    """Those of the programs that are made."""
    found: list[ge.Model] = []
    make = torchair.plan.Program.__init__

    def noted(self: Any, form: Any, model: ge.Model, training: bool = False) -> None:
        found.append(model)
        make(self, form, model, training)

    monkeypatch.setattr(torchair.plan.Program, "__init__", noted)
    return found


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case: str, dtype: torch.dtype, biased: bool, models: list[ge.Model]) -> None:
    torch.compiler.reset()  # one function, compiled for each case
    shape, weights, options, is_product = CASES[case]
    torch.manual_seed(3)
    function = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[len(shape)]
    x = torch.randn(shape).to(dtype)
    w = torch.randn(weights).to(dtype).requires_grad_()
    b = torch.randn(weights[0]).to(dtype).requires_grad_() if biased else None
    wide = [None if t is None else t.detach().double().requires_grad_() for t in (w, b)]
    expected = function(x.double(), *wide, **options)
    dy = torch.randn(expected.shape).to(dtype)
    expected.backward(dy.double())
    y = torch.compile(lambda *given: function(*given, **options), backend="npu", fullgraph=True)(x, w, b)
    y.backward(dy)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for ours, theirs in [
        (y, expected),
        *((t.grad, u.grad) for t, u in zip((w, b), wide, strict=True) if t is not None),
    ]:
        scale = float(theirs.abs().max())
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=tolerance * scale)
    kinds = {task.kind for model in models for task in model.plan.tasks}
    assert ("matmul" in kinds) == is_product and any(k.startswith("conv") for k in kinds) != is_product
