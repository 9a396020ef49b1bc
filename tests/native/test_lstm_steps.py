"""All steps of an LSTM layer by one task, and back through them, are what PyTorch gives in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import npu_runtime as rt
from tests.native.native_support import (
    FLOATS,
    VECTORS,
    Array,
    close,
    needs_own_kernels,
    randn,
    run_single,
)

pytestmark = needs_own_kernels

F32 = np.dtype(np.float32)
FORWARD, BACK, IMPLEMENTATION = "lstm_steps", "lstm_steps_grad", f"steps:{VECTORS}"
CASES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(FLOATS),
        "steps": st.integers(1, 9),
        "batch": st.one_of(st.integers(1, 8), st.sampled_from([13, 24])),
        "hidden": st.sampled_from([16, 32, 48, 80, 128, 144]),
        "reverse": st.booleans(),
        "given": st.tuples(st.booleans(), st.booleans(), st.booleans()),
    }
)


def _tolerance(dtype: Any) -> float:
    return 2e-5 if dtype == F32 else 4e-2


def _operands(case: dict[str, Any]) -> dict[str, Array]:
    steps, batch, hidden, dtype = (case[k] for k in ("steps", "batch", "hidden", "dtype"))
    state = (batch, hidden)
    return {
        "gates": randn(steps, batch, 4 * hidden),
        "r": (randn(4 * hidden, hidden, seed=1) / np.sqrt(hidden)).astype(dtype),
        "h": randn(*state, seed=2, dtype=dtype),
        "c": randn(*state, seed=3, dtype=dtype),
        "dy": randn(steps, *state, seed=4, dtype=dtype),
        "dh": randn(*state, seed=5, dtype=dtype),
        "dc": randn(*state, seed=6, dtype=dtype),
    }


def _forward(case: dict[str, Any], operands: dict[str, Array]) -> list[Array]:
    steps, batch, hidden, dtype = (case[k] for k in ("steps", "batch", "hidden", "dtype"))
    shapes = ((steps, batch, hidden), (steps, batch, 5 * hidden), (batch, hidden), (batch, hidden))
    found = [np.full(s, np.nan, t) for s, t in zip(shapes, (dtype, dtype, F32, F32), strict=True)]
    inputs = [operands[k] for k in ("gates", "r", "h", "c")]
    assert run_single(FORWARD, inputs, found, {"reverse": case["reverse"]}) == IMPLEMENTATION
    return found


def _back(case: dict[str, Any], operands: dict[str, Array], kept: Array) -> list[Array]:
    state = operands["h"].shape
    found = [
        np.full(operands["gates"].shape, np.nan, case["dtype"]),
        *(np.full(state, np.nan, F32) for _ in "hc"),
    ]
    names = [k for k, there in zip(("dy", "dh", "dc"), case["given"], strict=True) if there]
    inputs = [kept, operands["r"], *(operands[k] for k in names)]
    attrs = {"reverse": case["reverse"], **{f"has_{k[1]}": True for k in names}}
    assert run_single(BACK, inputs, found, attrs) == IMPLEMENTATION
    return found


def _of_pytorch(case: dict[str, Any], operands: dict[str, Array]) -> tuple[list[Array], list[Array]]:
    """Results, and gradients of gates and states: of a layer whose input weights are the identity."""
    wide = {k: torch.from_numpy(v.astype(np.float64)) for k, v in operands.items()}
    width, hidden = wide["r"].shape
    layer = torch.nn.LSTM(width, hidden, bias=False).double()
    layer.weight_ih_l0.data, layer.weight_hh_l0.data = torch.eye(width).double(), wide["r"]
    turned = (lambda t: t.flip(0)) if case["reverse"] else (lambda t: t)
    leaves = [wide[k].requires_grad_() for k in ("gates", "h", "c")]
    gates, h, c = leaves
    y, (last, memory) = layer(turned(gates), (h[None], c[None]))
    results = (turned(y), last[0], memory[0])
    slopes = [wide[k] if there else None for k, there in zip(("dy", "dh", "dc"), case["given"], strict=True)]
    known = [(r, s) for r, s in zip(results, slopes, strict=True) if s is not None]
    made = torch.autograd.grad([r for r, _ in known], leaves, [s for _, s in known]) if known else leaves
    gradients = [g if known else torch.zeros_like(g) for g in made]
    return [t.detach().numpy() for t in results], [t.detach().numpy() for t in gradients]


@settings(max_examples=60, deadline=None)
@given(case=CASES)
def test_results_and_gradients_are_pytorchs(case: dict[str, Any]) -> None:
    operands = _operands(case)
    y, kept, *last = _forward(case, operands)
    results, gradients = _of_pytorch(case, operands)
    for ours, theirs in zip((y, *last), results, strict=True):
        close(ours, theirs, _tolerance(case["dtype"]))
    for ours, theirs in zip(_back(case, operands, kept), gradients, strict=True):
        close(ours, theirs, _tolerance(case["dtype"]))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_kept_are_the_gates_and_the_cell_before(dtype: Any, reverse: bool) -> None:
    case = {"dtype": dtype, "steps": 4, "batch": 3, "hidden": 32, "reverse": reverse, "given": (True,) * 3}
    operands = _operands(case)
    y, kept, h, c = _forward(case, operands)
    i, f, g, o, before = np.split(kept.astype(np.float64), 5, axis=2)
    order = slice(None, None, -1 if reverse else 1)
    after = (f * before + i * g)[order]
    close(before[order][0], operands["c"].astype(np.float64), 1e-6)
    close(before[order][1:], after[:-1], _tolerance(dtype))
    close(c, after[-1], _tolerance(dtype))
    close(y[order], o[order] * np.tanh(after), _tolerance(dtype))
    close(y[order][-1], h.astype(dtype), 0.0)


def test_what_is_not_finite_stays_so() -> None:
    case = {"dtype": F32, "steps": 3, "batch": 2, "hidden": 16, "reverse": False, "given": (True,) * 3}
    operands = _operands(case)
    operands["gates"][1, 0, 5] = np.nan
    operands["gates"][0, 1, :] = 1e30
    y, kept, *_ = _forward(case, operands)
    assert np.isfinite(y[0]).all() and np.isfinite(y[:, 1]).all()
    assert np.isnan(y[1, 0, 5]) and np.isnan(y[2, 0]).all()
    gates, dh, _ = _back(case, operands, kept)
    assert np.isfinite(gates[:, 1]).all() and np.isfinite(dh[1]).all() and np.isnan(dh[0]).all()


def test_threads_do_what_one_does() -> None:
    case = {"dtype": F32, "steps": 5, "batch": 5, "hidden": 208, "reverse": False, "given": (True,) * 3}
    operands = _operands(case)
    results, before = [], rt.num_threads()
    try:
        for threads in (1, 2, 3):
            rt.set_num_threads(threads)
            forward = _forward(case, operands)
            results.append([*forward, *_back(case, operands, forward[1])])
    finally:
        rt.set_num_threads(before)
    for other in results[1:]:
        for ours, theirs in zip(other, results[0], strict=True):
            assert np.array_equal(ours, theirs)


def _arrays(shapes: list[tuple[int, ...]], dtypes: list[str]) -> list[Array]:
    return [np.zeros(s, rt.numpy_dtype(d)) for s, d in zip(shapes, dtypes, strict=True)]


@pytest.mark.parametrize(
    ("hidden", "dtypes", "state"),
    [
        (24, ["float32"] * 4, (2, 24)),  # no whole blocks of units
        (16, ["float32"] * 4, (3, 16)),  # states of another batch
        (16, ["float16"] * 4, (2, 16)),
        (16, ["bfloat16"] * 4, (2, 16)),  # gates are float32
    ],
)
def test_others_are_refused(hidden: int, dtypes: list[str], state: tuple[int, ...]) -> None:
    kind = dtypes[1]
    outputs = _arrays(
        [(3, 2, hidden), (3, 2, 5 * hidden), (2, hidden), (2, hidden)], [kind, kind, "float32", "float32"]
    )
    inputs = _arrays([(3, 2, 4 * hidden), (4 * hidden, hidden), state, state], dtypes)
    with pytest.raises(rt.UnsupportedTask):
        run_single(FORWARD, inputs, outputs)
    good = _arrays([(3, 2, 64), (64, 16), (2, 16), (2, 16)], ["float32"] * 4)
    fine = _arrays([(3, 2, 16), (3, 2, 80), (2, 16), (2, 16)], ["float32"] * 4)
    assert run_single(FORWARD, good, fine) == IMPLEMENTATION
