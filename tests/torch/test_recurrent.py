"""Recurrent layers in graphs: results and gradients of all kinds and options against eager mode."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import torchair
from torchair.executable import observe

KINDS: dict[str, Any] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *args, **options: nn.RNN(*args, nonlinearity="relu", **options),
}


@pytest.fixture(autouse=True)
def _layers_are_traced() -> Any:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


def _flat(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else [t for r in result for t in _flat(r)]


def _step(
    run: Any, model: nn.Module, inputs: list[torch.Tensor], used: tuple[int, ...], through: bool
) -> list[torch.Tensor | None]:
    """Results of a call with states, then gradients of all weights and inputs; the loss reads the results `used`."""
    x, *states = (t.clone().requires_grad_(through) for t in inputs)
    torch.manual_seed(1)
    results = _flat(run(x) if not states else run(x, states[0] if len(states) == 1 else tuple(states)))
    loss = sum(results[i % len(results)].float().mul(0.5 + i).square().sum() for i in used)
    loss.backward()  # type: ignore[union-attr]
    return [
        *(r.detach() for r in results),
        *(p.grad for p in model.parameters()),
        x.grad,
        *(s.grad for s in states),
    ]


def _agree(
    found: Sequence[torch.Tensor | None], expected: Sequence[torch.Tensor | None], bound: float
) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        if theirs is None or mine is None:  # a gradient that is not there is zero
            other = theirs if mine is None else mine
            assert other is None or not other.any()
            continue
        torch.testing.assert_close(
            mine, theirs, rtol=bound, atol=bound * max(float(theirs.abs().max()), 1e-3)
        )


def _compare(
    model: nn.Module,
    inputs: list[torch.Tensor],
    used: tuple[int, ...] = (0,),
    through: bool = True,
    fullgraph: bool = True,
) -> None:
    twin = copy.deepcopy(model)
    found = _step(torch.compile(model, backend="npu", fullgraph=fullgraph), model, inputs, used, through)
    expected = _step(twin, twin, inputs, used, through)
    if inputs[0].dtype == torch.float32:
        _agree(found, expected, 1e-4)
        return
    twin = copy.deepcopy(model).float()
    twin.zero_grad()
    _as_exact(found, expected, _step(twin, twin, [t.float() for t in inputs], used, through))


def _as_exact(
    found: Sequence[torch.Tensor | None],
    narrow: Sequence[torch.Tensor | None],
    wide: Sequence[torch.Tensor | None],
) -> None:
    """Results in 16 bits are as near to those in float32 as eager mode's are."""
    for mine, theirs, exact in zip(found, narrow, wide, strict=True):
        if mine is None or theirs is None or exact is None:
            continue
        errors = [float((t.float() - exact).abs().max()) for t in (mine, theirs)]
        assert errors[0] <= 2 * errors[1] + 2e-2 * float(exact.abs().max())


@settings(max_examples=10, deadline=None, phases=[Phase.explicit, Phase.generate])  # shrinking takes minutes
@given(
    st.sampled_from(sorted(KINDS)),
    st.tuples(
        st.integers(1, 12),
        st.integers(1, 5),
        st.integers(1, 9),
        st.one_of(st.integers(1, 20), st.sampled_from([16, 48])),
    ),
    st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    st.integers(1, 3),
    st.sets(st.integers(0, 2), min_size=1),
    st.sampled_from([torch.bfloat16, torch.float32]),
)
def test_gradients_are_those_of_eager_mode(
    kind: str,
    sizes: tuple[int, ...],
    options: tuple[bool, ...],
    layers: int,
    used: set[int],
    dtype: torch.dtype,
) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    steps, batch, width, units = sizes
    bias, batch_first, bidirectional, with_states, through = options
    model = KINDS[kind](
        width, units, layers, bias=bias, batch_first=batch_first, bidirectional=bidirectional
    ).to(dtype)
    x = torch.randn(*((batch, steps) if batch_first else (steps, batch)), width, dtype=dtype)
    count = (2 if kind == "lstm" else 1) if with_states else 0
    states = [torch.randn(layers * (1 + bidirectional), batch, units, dtype=dtype) for _ in range(count)]
    _compare(model, [x, *states], tuple(sorted(used)), through)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_long_layers_run_on_the_npu_in_both_passes(kind: str) -> None:
    torch.manual_seed(0)
    model = KINDS[kind](6, 8, 2, bidirectional=True)
    with observe() as reports:
        _compare(model, [torch.randn(20, 3, 6)], (0, 1))
    assert [(r.kind, r.refusals, r.failure) for r in reports] == [("forward", [], ""), ("backward", [], "")]
    assert sum("recurrent_layer" in name for r in reports for name in r.operators) == 2


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_inference_is_that_of_eager_mode(kind: str) -> None:
    torch.manual_seed(0)
    model = KINDS[kind](6, 16, 2, bidirectional=True).eval()
    x = torch.randn(20, 3, 6)
    with torch.no_grad():
        _agree(_flat(torch.compile(model, backend="npu", fullgraph=True)(x)), _flat(model(x)), 1e-4)


def test_dropout_between_layers_drops_what_eager_mode_drops() -> None:
    torch.manual_seed(0)
    _compare(nn.LSTM(6, 8, 3, dropout=0.5), [torch.randn(9, 3, 6)])


def test_projected_states_are_left_to_pytorch() -> None:
    torch.manual_seed(0)
    _compare(nn.LSTM(6, 8, 2, proj_size=3), [torch.randn(5, 3, 6)])


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_packed_sequences_are_left_to_pytorch(kind: str) -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = KINDS[kind](6, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(pack_padded_sequence(x, torch.tensor([5, 3, 2])))[0].data

    torch.manual_seed(0)
    _compare(Packed(), [torch.randn(5, 3, 6)], fullgraph=False)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_open_sizes_are_right_with_aten_and_with_programs(kind: str) -> None:
    torch.manual_seed(0)
    model = KINDS[kind](6, 8)
    twin = copy.deepcopy(model)
    run = torch.compile(model, backend="npu", dynamic=True)
    for steps in (9, 12, *[11] * 6):
        x = torch.randn(steps, 3, 6)
        model.zero_grad()
        twin.zero_grad()
        _agree(_step(run, model, [x], (0, 1), True), _step(twin, twin, [x], (0, 1), True), 1e-4)


def test_autocast_narrows_an_lstm() -> None:
    torch.manual_seed(0)
    model = nn.LSTM(6, 8)
    x = torch.randn(9, 3, 6)
    run = torch.compile(model, backend="npu")
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = run(x), model(x)
    assert found[0].dtype == expected[0].dtype == torch.bfloat16
    _agree([t.detach().float() for t in _flat(found)], [t.detach().float() for t in _flat(expected)], 4e-2)


def test_without_the_npu_a_layer_is_atens() -> None:
    config = torchair.CompilerConfig()
    config.debug.run_eagerly = True
    torch.manual_seed(0)
    for make in KINDS.values():
        model = make(6, 8, bidirectional=True)
        twin = copy.deepcopy(model)
        x = torch.randn(9, 3, 6)
        run = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config))
        _agree(_step(run, model, [x], (0, 1), True), _step(twin, twin, [x], (0, 1), True), 1e-5)


def test_gradients_of_gradients_are_refused_as_in_every_compiled_graph() -> None:
    model = nn.GRU(6, 8)
    x = torch.randn(9, 3, 6, requires_grad=True)
    (slope,) = torch.autograd.grad(torch.compile(model, backend="npu")(x)[0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        slope.sum().backward()
