"""Slices that move towards the arguments: the same values and gradients, by fewer operations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn
from torch.utils.flop_counter import FlopCounterMode

from ge.ops.base import lookup
from ge.ops.dataflow import Dataflow
from torchair.sink_slices import sink_slices

WIDTH, HEADS, LENGTH = 16, 2, 9


class Block(nn.Module):
    """A transformer's block, in the ways they are written; `read` takes what its user reads of the result."""

    def __init__(
        self, read: Callable[[Tensor], Tensor], *, attend: str = "fused", dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.read, self.attend, self.dropout = read, attend, dropout
        self.packed = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.scales = nn.ParameterList(nn.Parameter(torch.rand(WIDTH)) for _ in range(2))

    def norm(self, x: Tensor, scale: Tensor) -> Tensor:
        if self.attend == "written":
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * scale
        return F.layer_norm(x, (WIDTH,), scale, None, 1e-6)

    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.attend == "written":
            scores = q @ k.transpose(-1, -2) * 0.5 + torch.zeros(1, 1, q.shape[2], 1, dtype=q.dtype)
            return torch.matmul(F.softmax(scores, dim=-1), v)
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(2) if self.attend == "masked" else None
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.attend == "causal")

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            t.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for t in self.packed(self.norm(x, self.scales[0])).chunk(3, -1)
        )
        if self.attend == "turned":  # by half of their width, as rotary positions do
            q = q * 0.5 + torch.cat([-q[..., WIDTH // HEADS // 2 :], q[..., : WIDTH // HEADS // 2]], -1) * 0.5
        mixed = self.mixed(q, k, v).transpose(1, 2).reshape(*x.shape[:2], WIDTH)
        x = x + F.dropout(self.out(mixed), self.dropout, self.training)
        return self.read(x + self.down(F.gelu(self.up(self.norm(x, self.scales[1])))))


class Counted:
    """A backend that runs graphs eagerly, before and after, and knows what each way costs."""

    def __init__(self) -> None:
        self.sunk: list[bool] = []
        self.operations: list[tuple[int, int]] = []

    def __call__(self, module: fx.GraphModule, _: Any) -> Callable[..., Any]:
        before = fx.GraphModule(module, copy.deepcopy(module.graph))
        self.sunk.append(sink_slices(module))

        def run(*args: Any) -> Any:
            counts = []
            for graph in (before, module):
                torch.manual_seed(0)
                with FlopCounterMode(display=False) as counter:
                    result = graph(*args)
                counts.append(counter.get_total_flops())
            self.operations.append((counts[0], counts[1]))
            return result

        return run


def _results(run: Callable[..., Any], parameters: Sequence[Tensor], *args: Tensor) -> list[Tensor]:
    torch.manual_seed(0)
    y = run(*args)
    loss = (y * torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view(y.shape)).sum()
    wanted = [*parameters, *(a for a in args if a.requires_grad)]
    return [y.detach(), *torch.autograd.grad(loss, wanted, materialize_grads=True)]


def _check(function: Any, *args: Tensor, dynamic: bool = False) -> Counted:
    """The values and gradients of a function in double precision, through the pass."""
    torch.compiler.reset()
    parameters = list(function.parameters()) if isinstance(function, nn.Module) else []
    counted = Counted()
    found = _results(torch.compile(function, backend=counted, dynamic=dynamic), parameters, *args)
    for mine, theirs in zip(found, _results(function, parameters, *args), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)
    return counted


def _input(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).requires_grad_()


READS: dict[str, Callable[[Tensor], Tensor]] = {
    "first": lambda x: x[:, 0],
    "first with all axes": lambda x: x[:, 0, :],
    "first kept": lambda x: x[:, :1],
    "last": lambda x: x[:, -1],
    "last kept": lambda x: x[:, -1:],
    "two": lambda x: x[:, 3:5],
    "ellipsis": lambda x: x[..., 2, :],
    "select": lambda x: x.select(1, 4),
    "of one batch": lambda x: x[0],
    "twice": lambda x: x[:, 0] + x[:, 0:1].sum(1),
}


@pytest.mark.parametrize("attend", ["fused", "written", "masked", "turned"])
@pytest.mark.parametrize("read", READS)
def test_blocks(read: str, attend: str) -> None:
    torch.manual_seed(0)
    block = Block(READS[read], attend=attend).double()
    counted = _check(block, _input(3, LENGTH, WIDTH))
    ((before, after),) = counted.operations
    assert counted.sunk == [True] and after < 0.8 * before


@pytest.mark.parametrize(
    ("place", "sunk"), [(-1, True), (LENGTH - 1, True), (0, False), (slice(-2, None), False)]
)
def test_only_the_last_row_of_causal_attention_sees_all_keys(place: int | slice, sunk: bool) -> None:
    def attend(x: Tensor, w: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x @ w, x * 2, x, is_causal=True)[:, place]

    counted = _check(attend, _input(3, LENGTH, WIDTH), _input(WIDTH, WIDTH, seed=2))
    assert counted.sunk == [sunk]


@pytest.mark.parametrize("attend", ["fused", "written"])
@pytest.mark.parametrize("read", ["first", "last", "twice"])
def test_open_sizes(read: str, attend: str) -> None:
    torch.manual_seed(0)
    block = Block(READS[read], attend=attend).double()
    counted = _check(block, _input(3, LENGTH, WIDTH), dynamic=True)
    assert counted.sunk == [read != "twice"]  # how long x[:, 0:1] is depends on an open size
    assert all(after <= before for before, after in counted.operations)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_layers_of_pytorch(batch_first: bool, norm_first: bool) -> None:
    torch.manual_seed(0)
    options = {"dropout": 0.0, "batch_first": batch_first, "norm_first": norm_first, "dtype": torch.float64}
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, **options)  # type: ignore[arg-type]

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            return y[:, 0] if batch_first else y[0]

    counted = _check(Reader(), _input(3, LENGTH, WIDTH))
    ((before, after),) = counted.operations
    assert counted.sunk == [True] and after < 0.7 * before


def _written_through_a_view(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    z = y.transpose(0, 1)
    z.mul_(2)
    return y[:, 0]


def _written_after_a_view(x: Tensor, w: Tensor) -> Tensor:
    y = x * 2
    z = y.transpose(1, 2).transpose(1, 2)
    y.add_(1)
    return (z @ w)[:, 0]


def _written_in_place(activate: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def function(x: Tensor, w: Tensor) -> Tensor:
        y = x * 1.5
        z = y * 2
        return (activate(y) @ w)[:, 0] + (y + z).sum(1)

    return function


def _kept_in_an_argument(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    cache = torch.zeros_like(y)
    cache[:, :] = y
    return y[:, 0] + cache.sum(1)


KEPT: dict[str, tuple[Callable[..., Tensor], bool]] = {
    "read whole as well": (lambda x, w: (y := x @ w)[:, 0] + y.sum(1), False),
    "two different places": (lambda x, w: (y := x @ w)[:, 0] + y[:, 1], False),
    "most of it": (lambda x, w: (x @ w)[:, 1:], False),
    "columns": (lambda x, w: (x @ w)[..., 0], False),
    "every second": (lambda x, w: (x @ w)[:, ::2], False),
    "normalised over the axis": (lambda x, w: torch.softmax(x @ w, 1)[:, 0], False),
    "reduced over the axis": (lambda x, w: (x @ w - (x @ w).mean(1, keepdim=True))[:, 0], True),
    "drawn": (lambda x, w: F.dropout(x @ w, 0.5, True)[:, 0], False),
    "nothing to compute": (lambda x, w: torch.relu(x)[:, 0] @ w, False),
    "written through a view": (_written_through_a_view, False),
    "written after a view": (_written_after_a_view, True),
    "activated in place": (_written_in_place(lambda y: F.leaky_relu(y, 0.1, True)), True),
    "activated in place, by name": (_written_in_place(lambda y: F.relu(y, inplace=True)), True),
    "activated in place, by a layer": (_written_in_place(nn.ELU(0.5, True)), True),
    "arguments by name": (
        lambda x, w: torch.softmax(input=torch.reshape(input=F.linear(x, w), shape=(3, 9, 16)), dim=-1)[:, 0],
        False,
    ),
    "bits": (lambda x, w: (x[0] @ w).sum(1).view(torch.int64)[:2].view(torch.float64) + 0 * w[0, :2], False),
    "kept elsewhere": (_kept_in_an_argument, False),
    "the same twice": (lambda x, w: (x @ x.transpose(1, 2))[:, 0], True),
    "shared sizes": (lambda x, w: (x @ w).reshape(3, -1, 4, 4)[:, 0], True),
    "split axis": (lambda x, w: (x @ w).reshape(3, 3, 3, 16)[:, 0], False),
    "broadcast": (lambda x, w: (x[:, :1] @ w + x)[:, 3], False),
    "through a type": (lambda x, w: (x @ w).to(torch.float32).double().contiguous()[:, 0], True),
}


@pytest.mark.parametrize("case", KEPT)
def test_what_is_read_otherwise_is_computed(case: str) -> None:
    function, sunk = KEPT[case]
    counted = _check(function, _input(3, LENGTH, WIDTH), _input(WIDTH, WIDTH, seed=2))
    assert counted.sunk == [sunk]


def test_the_dataflow_of_the_engines_operators_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return torch.relu(x @ w)[:, 0]

    operands = _input(3, LENGTH, WIDTH), _input(WIDTH, WIDTH, seed=2)
    assert _check(function, *operands).sunk == [True]
    monkeypatch.setattr(lookup("MatMul"), "dataflow", Dataflow())  # nothing is known
    assert _check(function, *operands).sunk == [False]


STEPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "product": lambda x, w: x @ w,
    "linear": lambda x, w: F.linear(x, w),
    "residual": lambda x, w: x + torch.tanh(x),
    "positions": lambda x, w: x + w[: x.shape[-2]],
    "turned round": lambda x, w: x.permute(0, 2, 1).transpose(1, 2) * 1.5,
    "heads": lambda x, w: x.reshape(*x.shape[:2], 4, 4).transpose(1, 2).transpose(1, 2).flatten(2),
    "norm": lambda x, w: F.layer_norm(x, (WIDTH,)),
    "attention": lambda x, w: F.scaled_dot_product_attention(x, x * 2, x + 1),
    "own keys": lambda x, w: F.scaled_dot_product_attention(x, x, x),
    "softmax": lambda x, w: x.softmax(-1),
    "mean": lambda x, w: x - x.mean(dim=-1, keepdim=True),
    "mean of all": lambda x, w: x - x.mean(dim=1, keepdim=True),
}


@given(
    steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6),
    read=st.sampled_from(sorted(set(READS) - {"twice"})),
    dynamic=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_any_chain(steps: list[str], read: str, dynamic: bool) -> None:
    def chain(x: Tensor, w: Tensor) -> Tensor:
        for step in steps:
            x = STEPS[step](x, w)
        return READS[read](x @ w)

    counted = _check(chain, _input(3, LENGTH, WIDTH), _input(WIDTH, WIDTH, seed=2), dynamic=dynamic)
    assert all(after <= before for before, after in counted.operations)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("read", ["first", "two", "of one batch"])
def test_on_the_npu(read: str, dtype: torch.dtype) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    block = Block(READS[read]).to(dtype)
    x = _input(3, LENGTH, WIDTH).detach().to(dtype).requires_grad_()
    found = _results(torch.compile(block, backend="npu", fullgraph=True), list(block.parameters()), x)
    wide = copy.deepcopy(block).double()
    expected = _results(wide, list(wide.parameters()), x.detach().double().requires_grad_())
    for mine, theirs in zip(found, expected, strict=True):
        scale = float(theirs.abs().max())
        bound = 1e-5 if dtype == torch.float32 else 5e-2
        torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=bound * scale)


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name that switches passes of the Graph Engine off, too."""
    import torchair.backend

    seen: list[fx.GraphModule] = []
    monkeypatch.setattr(torchair.backend.sink_slices, "sink_slices", seen.append)
    function = torch.compile(lambda x: (x @ x)[0], backend="npu")
    for disabled, calls in (("sink_slices", 0), ("", 1)):
        torch.compiler.reset()
        monkeypatch.setenv("NPU_DISABLE_PASSES", disabled)
        function(torch.eye(4))
        assert len(seen) == calls
