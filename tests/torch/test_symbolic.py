"""Symbolic sizes: programs for a few numbers of rows answer for all sizes, and few graphs are traced."""

from __future__ import annotations

import copy
import ctypes
import gc
import resource
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.fx.experimental import _config
from torch.nn import functional as F

import torchair
from torchair.executable import GraphReport, observe
from torchair.symbolic import Ladder, cover


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    counters.clear()


class Encoder(nn.Module):
    """Tokens to features of each of them and of the whole text."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, width), nn.Embedding(512, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 2 * width, batch_first=True)
        self.head = nn.Linear(width, 5)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.layer(self.tokens(tokens) + self.places(torch.arange(tokens.shape[1])))
        return self.head(x.mean(1)), self.head(x).softmax(-1)


def compiled(function: Any, dynamic: bool | None = True) -> Any:
    return torch.compile(function, backend=torchair.get_npu_backend(), dynamic=dynamic)


def same(function: Any, shapes: list[tuple[int, ...]], dynamic: bool | None = True) -> list[GraphReport]:
    """Compiled and eager results agree for all shapes."""
    run = compiled(function, dynamic)
    with torch.no_grad(), observe() as reports:
        for shape in shapes:
            x = torch.randn(shape)
            torch.testing.assert_close(run(x), function(x), rtol=1e-4, atol=1e-5)
    assert [r.failure for r in reports if r.failure] == []
    return reports


@pytest.mark.parametrize("dynamic", [None, True])
@torch.no_grad()
def test_a_sweep_of_shapes_takes_three_traces_and_few_programs(dynamic: bool | None) -> None:
    model = Encoder().eval()
    run = compiled(model, dynamic)
    generator = torch.Generator().manual_seed(0)
    sizes = [(1, 7), (5, 1), (1, 1)] + [
        (
            int(torch.randint(1, 65, (), generator=generator)),
            int(torch.randint(1, 513, (), generator=generator)),
        )
        for _ in range(40)
    ]
    with observe() as reports:
        for batch, length in sizes[3:6] + sizes:
            tokens = torch.randint(0, 50, (batch, length))
            torch.testing.assert_close(run(tokens), model(tokens), rtol=1e-4, atol=1e-5)
    assert counters["stats"]["unique_graphs"] <= 3
    assert [r.failure for r in reports if r.failure] == []
    assert all(r.programs <= 3 * r.parts for r in reports)
    assert reports[-1].npu_calls > 20
    assert not _config.backed_size_oblivious  # other backends trace as they always do


HELD: dict[str, Any] = {
    "a number": lambda x: x * torch.tensor(2.0),
    "a row": lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "a matrix of a tensor": lambda x: (x * torch.tensor(2)).matmul(torch.tensor([[1.0, 2.0]] * 4)),
    "an index": lambda x: x[..., torch.tensor([0, 2])],
    "returned": lambda x: (torch.tensor([1.0, 2.0]) * torch.tensor(2.0), x + 1),
    "sizes": lambda x: x * x.shape[0] + torch.arange(x.shape[1]).unsqueeze(-1) / float(x.shape[-1]),
}


@pytest.mark.parametrize("name", HELD)
def test_tensors_and_sizes_in_the_code_of_an_open_graph(name: str) -> None:
    """Also where a size is 0 or 1."""
    same(HELD[name], [(2, 3, 4), (1, 3, 4), (3, 1, 4), (2, 0, 4), (0, 3, 4), (33, 5, 4)])


CUT: dict[str, Any] = {  # of fixed size, with strides that are open
    "a column": lambda x: (x[:, 0] * 2 + x[:, -1]).exp(),
    "columns": lambda x: x[:, 1:3].sin() @ torch.ones(2, 3),
    "a turned column": lambda x: x.t()[:2].cos().sum(0),
    "a written column": lambda x: (
        torch.zeros_like(x).index_fill(1, torch.tensor(0), 2.0)[:, :2] * x[:, :2].neg()
    ),
}


@pytest.mark.parametrize("name", CUT)
def test_parts_of_fixed_size_of_an_open_tensor(name: str) -> None:
    run = torch.compile(CUT[name], backend="npu")
    for columns in (4, 7, 9, 3):
        x = torch.randn(3, columns)
        torch.testing.assert_close(run(x), CUT[name](x))


def test_gradients_with_a_tensor_in_the_code() -> None:
    run = compiled(HELD["a matrix of a tensor"])
    for shape in ((2, 3, 4), (5, 7, 4), (0, 3, 4)):
        x = torch.randn(shape, requires_grad=True)
        found, wanted = (torch.autograd.grad(f(x).sum(), x) for f in (run, HELD["a matrix of a tensor"]))
        torch.testing.assert_close(found, wanted)


def _resident() -> int:
    """Bytes of memory that the process holds, after what is free in it was given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.slow
@torch.no_grad()
def test_500_calls_of_any_shape_take_three_compiles_and_bounded_memory() -> None:
    model = Encoder().eval()
    run = compiled(model, None)
    generator = torch.Generator().manual_seed(1)
    held = []
    with observe() as reports:
        for _ in range(500):
            batch, length = (int(torch.randint(1, most + 1, (), generator=generator)) for most in (64, 512))
            tokens = torch.randint(0, 50, (batch, length), generator=generator)
            torch.testing.assert_close(run(tokens), model(tokens), rtol=1e-4, atol=1e-5)
            held.append(_resident() if len(held) % 20 == 19 else held[-1] if held else 0)
    assert counters["stats"]["unique_graphs"] <= 3
    assert [r.failure for r in reports if r.failure] == []
    assert all(r.programs <= 3 * r.parts for r in reports)
    assert max(held[200:]) - held[199] < 16 << 20


@torch.no_grad()
def test_parameters_that_change_are_followed() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16)).eval()
    run = compiled(model)
    for step, size in enumerate([3, 9, 12, 70, 33]):
        x = torch.randn(size, 8)
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)
        if step == 2:
            model[0].weight.mul_(1.5)


def test_a_batch_of_any_size_is_all_the_npus() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 5),
    ).eval()
    reports = same(net, [(2, 3, 16, 16), (5, 3, 16, 16), (11, 3, 16, 16), (1, 3, 16, 16)], None)
    assert reports[-1].refusals == []
    assert reports[-1].operators["aten.convolution.default"]
    torch._dynamo.reset()
    attention = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    reports = same(attention, [(2, 7, 16), (5, 7, 16), (9, 7, 16)], None)
    assert reports[-1].refusals == []


def test_sums_over_open_sizes_are_atens() -> None:
    reports = same(lambda x: (x.sin() - x.sin().mean(0), x.t() * 2, x.sum()), [(3, 4), (9, 4), (700, 4)])
    assert {r.operator for r in reports[0].refusals} >= {"aten.mean.dim", "aten.sum.default"}


def test_orders_of_open_sizes_are_not_confused() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.transpose(0, 1) * 2
        return (y.reshape(-1, 3).exp() + 1).view(y.shape) + x.cos().transpose(0, 1)

    same(function, [(2, 5, 3), (7, 4, 3), (40, 31, 3)])
    same(lambda x: x.permute(2, 0, 1).relu().flatten(1) + x.reshape(-1, 3).t().exp(), [(2, 5, 3), (7, 4, 3)])
    same(lambda x: (x[:, None] + x[None]).tanh().sum(-1), [(2, 3), (7, 3), (40, 3)])
    same(lambda x: x * x.shape[0] + 1, [(2, 3), (7, 3), (40, 3)])
    same(lambda x: x.view(x.shape[0], -1).softmax(-1), [(2, 3, 4), (7, 5, 4), (40, 6, 4)])


def test_strides_and_written_inputs_are_eager_modes() -> None:
    conv = nn.Conv2d(3, 4, 3).eval()
    run = compiled(lambda x: (conv(x) + 1, x.permute(0, 2, 3, 1).exp()))
    for size in (2, 5, 9):
        x = torch.randn(size, 3, 8, 8).to(memory_format=torch.channels_last)
        with torch.no_grad():
            found, expected = run(x), (conv(x) + 1, x.permute(0, 2, 3, 1).exp())
        torch.testing.assert_close(found, expected)
        assert [f.stride() for f in found] == [e.stride() for e in expected]

    def write(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.mul_(2).add_(x.exp())
        return cache.sum(-1)

    run = compiled(write)
    for size in (2, 5, 9):
        left, x = torch.randn(size, 4), torch.randn(size, 4)
        right = copy.deepcopy(left)
        torch.testing.assert_close(run(left, x), write(right, x))
        torch.testing.assert_close(left, right)


def test_gradients_of_open_sizes() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
    run = compiled(model)
    for size in (3, 17, 600):
        x = torch.randn(size, 6)
        grads = []
        for call in (run, model):
            model.zero_grad()
            F.mse_loss(call(x), torch.ones(size, 3)).backward()
            grads.append([p.grad.clone() for p in model.parameters()])
        torch.testing.assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-5)


@hypothesis.given(rows=st.integers(1, 20000), row=st.integers(1, 1 << 20))
def test_runs_cover_all_rows(rows: int, row: int) -> None:
    ladder = Ladder.of(row)
    runs = cover(rows, ladder)
    assert all(size in ladder.rungs for _, size in runs)
    place = 0
    for begin, size in runs:
        assert 0 <= begin <= place
        place = max(place, begin + size)
    assert place >= rows
    assert len(runs) == 1 or place == rows


def _inner(x: Any) -> Any:
    y = x * 2
    return y[y.shape[0] - 1 :], y


_PLACED = {
    "chunk": lambda x: (torch.chunk(x, 2, 0)[1],),
    "slice": lambda x: (x[x.shape[0] - 1 :],),
    "steps": lambda x: (x[: x.shape[0] // 2 * 2 : 2],),
    "column": lambda x: (x.view(x.shape[0], 1)[x.shape[0] - 1 :],),
    "whole": lambda x: (x.view(x.shape[0], 1),),
    "and its double": lambda x: (x[x.shape[0] - 1 :], x[x.shape[0] - 1 :] * 2),
    "of an intermediate value": _inner,
}


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("other", [0, 2])
@pytest.mark.parametrize("name", _PLACED)
def test_results_that_are_views_by_an_open_size(name: str, other: int, offset: int) -> None:
    """From the first call of a size to those after its own program is compiled; empty tensors are traced otherwise."""
    function = _PLACED[name]
    run = compiled(lambda x, unused: function(x), None)
    for size in (3, *[2] * 6):
        x = torch.arange(size + offset)[offset:]
        for found, expected in zip(run(x, torch.zeros(other)), function(x), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("dynamic", [None, True])
def test_an_open_size_of_one_broadcasts(dynamic: bool | None) -> None:
    run = compiled(torch.sub, dynamic)
    for size in (3, 1, 3, 1):
        x, y = torch.randn(size), torch.randn(2, 3)
        torch.testing.assert_close(run(x, y), x - y)


def test_what_fails_in_eager_mode_fails() -> None:
    with pytest.raises(Exception, match=r"must match|broadcast"):
        compiled(torch.sub)(torch.randn(4), torch.randn(2, 3))


class Stack(nn.Module):
    """Norms, products and gates of tokens, in heads and joined again."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 32), nn.Linear(32, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.up(self.norm(x))).unflatten(-1, (4, 8))
        first, second = (y * y.mean(-1, keepdim=True)).chunk(2, -1)
        y = torch.cat((-second, first), -1).flatten(2)
        return x + self.down(y).reshape(-1, x.shape[-1]).view(x.shape)


@pytest.mark.parametrize("batch", [2, 3, 6])
def test_texts_of_any_length_in_a_batch_of_known_size_are_the_npus(batch: int) -> None:
    reports = same(Stack(), [(batch, n, 16) for n in (5, 9, 1, 14, 200, 3)], None)
    opened = reports[-1]
    assert [(r.operator, r.reason) for r in opened.refusals] == []
    assert opened.npu_calls > 10 and opened.programs <= 3


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.transpose(0, 1).contiguous().tanh() * 2).transpose(0, 1) + x.exp(),
        lambda x: x.reshape(x.shape[1], x.shape[0], -1).tanh() + x.transpose(0, 1),
        lambda x: x.reshape(-1, 32).relu().reshape(-1, 8).softmax(-1),
        lambda x: (x + 1).reshape(x.shape[0], -1, 4).softmax(-1).sum(0),
        lambda x: x.tanh()[:1] + x.unsqueeze(1).exp().sum((0, 1)),
        lambda x: x.view(2, 2, x.shape[1], 16).tanh().view(4, -1, 16) * x.sigmoid(),
        lambda x: x.sin().flatten(0, 1).expand(2, -1, -1).cos(),
        lambda x: torch.stack((x, x)).tanh().flatten(0, 1).softmax(-1),
        lambda x: x.permute(2, 0, 1).tanh() + x.mean(),
    ],
)
def test_rows_of_a_known_batch_are_not_confused(function: Any) -> None:
    same(function, [(4, n, 16) for n in (6, 10, 14, 2, 300)], None)


def test_sizes_divided_by_zero() -> None:
    """The gradient of a variance divides by the number of elements less one: of one element it is NaN, no error."""
    compiled = torch.compile(lambda x: torch.var(x, dim=0, keepdim=True), backend="npu", dynamic=True)
    for size in (8, 5, 1):
        x = torch.randn(size, requires_grad=True)
        (found,) = torch.autograd.grad(compiled(x), x)
        (wanted,) = torch.autograd.grad(torch.var(x, dim=0, keepdim=True), x)
        torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.parametrize(
    "first", [lambda x: x[:1] * 2, lambda x: x[-2:].exp(), lambda x: x.t()[:1].unsqueeze(0) + 1]
)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_first_rows_of_what_becomes_empty_are_none(first: Any, shape: tuple[int, int]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(first, backend="npu", dynamic=True)
    for size in ((4, 3), (2, 5), shape, (3, 4)):
        x = torch.randn(*size)
        torch.testing.assert_close(compiled(x), first(x))
