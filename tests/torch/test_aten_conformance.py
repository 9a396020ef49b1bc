"""A few operators of PyTorch's own database, of every kind of plugin; `python -m torchair.conformance` runs all."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

pytest.importorskip("expecttest", reason="PyTorch's operator database needs it")

from tests.support.sampling import one_in
from torchair.conformance import samples
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


@pytest.mark.parametrize(
    "op", one_in(3, [pytest.param(o, id=_label(o)) for o in operators() if _label(o) in CHOSEN])
)
def test_samples_are_eager_modes(op: object) -> None:
    for dtype in DTYPES:
        outcome = run_operator(op, dtype, 2, gradients=True)
        assert outcome.wrong == []
        if _label(op) in NATIVE:
            assert outcome.native == outcome.samples


@pytest.mark.parametrize(
    "op", one_in(2, [pytest.param(o, id=_label(o)) for o in operators() if _label(o) in NATIVE])
)
def test_samples_through_torch_compile_run_on_the_npu(op: object) -> None:
    for dtype in DTYPES:
        outcome = run_operator(op, dtype, 2, gradients=True, dynamo=True)
        assert outcome.wrong == []
        assert outcome.native == outcome.samples
        assert outcome.ungraphed == outcome.breaks == 0


@pytest.mark.parametrize("op", one_in(6, [pytest.param(o, id=_label(o)) for o in operators()[::16]]))
def test_samples_through_torch_compile_are_eager_modes(op: object) -> None:
    """Every 16th operator of the database; `python -m torchair.conformance --dynamo` takes all."""
    for dtype in DTYPES:
        assert run_operator(op, dtype, 1, gradients=True, dynamo=True).wrong == []


@pytest.mark.parametrize(
    "op",
    [
        pytest.param(o, id=_label(o))
        for o in operators()
        if _label(o) in {"add", "rand_like", "as_strided_copy"}
    ],
)
@pytest.mark.parametrize("eager", [False, True])
def test_samples_with_gaps_in_memory_are_eager_modes(op: object, eager: bool) -> None:
    """`python -m torchair.conformance --strided` takes all."""
    for dtype in ("float32", "float16"):
        assert run_operator(op, dtype, 2, gradients=True, eager=eager, strided=True).wrong == []


@pytest.mark.parametrize("op", one_in(4, [pytest.param(o, id=_label(o)) for o in operators()[7::32]]))
def test_samples_on_the_device_are_the_hosts(op: object) -> None:
    """Every 32nd operator of the database; `python -m torchair.conformance --eager` takes all."""
    for dtype in DTYPES:
        assert run_operator(op, dtype, 2, gradients=True, eager=True).wrong == []


@pytest.mark.parametrize(("off", "wrong", "theirs"), [((), 0, 0), ((1,), 1, 0), ((1, 2), 0, 1)])
def test_wrong_answers_are_told(
    off: tuple[int, ...], wrong: int, theirs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What differs from eager mode is ours unless a backend of PyTorch's own answers as we do."""
    honest, calls = samples._called, itertools.count()  # of eager mode, ours, PyTorch's own

    def called(*args: Any) -> Any:
        return [f + (next_call in off) for next_call in [next(calls)] for f in honest(*args)]

    monkeypatch.setattr(samples, "_called", called)
    op = next(o for o in operators() if _label(o) == "exp")
    outcome = run_operator(op, "float32", 1, gradients=False, dynamo=True)
    assert (len(outcome.wrong), len(outcome.theirs)) == (wrong, theirs)
