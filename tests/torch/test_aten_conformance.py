"""A few operators of PyTorch's own database, of every kind of plugin; `python -m torchair.conformance` runs all."""

from __future__ import annotations

import pytest

pytest.importorskip("expecttest", reason="PyTorch's operator database needs it")

from torchair.conformance.samples import DTYPES, operators, run_operator

CHOSEN = {
    "add", "div.floor_rounding", "remainder", "pow", "clamp", "where", "sum", "var_mean", "argmax", "cumsum", "sort",
    "index_put", "gather", "scatter_add", "slice_scatter", "unfold", "as_strided", "cat", "linspace", "addmm",
    "nn.functional.conv2d", "nn.functional.layer_norm", "nn.functional.gelu", "masked.softmax",
}  # fmt: skip
NATIVE = {"add", "clamp", "sum", "var_mean", "gather", "cat", "addmm", "nn.functional.gelu"}


def _label(op: object) -> str:
    variant = getattr(op, "variant_test_name", "")
    return f"{op.name}.{variant}" if variant else op.name  # type: ignore[attr-defined]


@pytest.mark.parametrize("op", [pytest.param(o, id=_label(o)) for o in operators() if _label(o) in CHOSEN])
def test_samples_are_eager_modes(op: object) -> None:
    for dtype in DTYPES:
        outcome = run_operator(op, dtype, 2, gradients=True)
        assert outcome.wrong == []
        if _label(op) in NATIVE:
            assert outcome.native == outcome.samples


@pytest.mark.parametrize("op", [pytest.param(o, id=_label(o)) for o in operators() if _label(o) in NATIVE])
def test_samples_through_torch_compile_are_eager_modes(op: object) -> None:
    for dtype in DTYPES:
        outcome = run_operator(op, dtype, 2, gradients=True, dynamo=True)
        assert outcome.wrong == []
        assert outcome.native == outcome.samples
