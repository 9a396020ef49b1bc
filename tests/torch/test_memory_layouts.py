"""Operators whose result depends on the memory layout of an operand: compiled, they answer as eager mode does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torchair  # noqa: F401  (registers the backend)

Function = Callable[[torch.Tensor], torch.Tensor]


def _flat(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).flatten()


READS_MEMORY: dict[str, Function] = {
    "of a transposed input": lambda x: torch.as_strided(x.t(), (3,), (2,)) + 1,
    "of an input, from its first element": lambda x: torch.as_strided(x, (3,), (1,)) + 1,
    "of an input, from the beginning of its memory": lambda x: torch.as_strided(x, (3,), (1,), 0) + 1,
    "of a slice": lambda x: torch.as_strided(_flat(x)[2:], (3,), (1,)) + 1,
    "of a slice, to the left": lambda x: torch.as_strided(_flat(x)[2:], (3,), (1,), 0) + 1,
    "of a slice, to the right": lambda x: torch.as_strided(_flat(x)[2:4], (3,), (1,), 4) + 1,
    "of every second element": lambda x: torch.as_strided(_flat(x)[::2], (3,), (1,)) + 1,
    "of a chunk": lambda x: torch.as_strided(_flat(x).chunk(3)[1], (2, 2), (1, 3)) + 1,
    "as a copy": lambda x: torch.as_strided_copy(_flat(x)[1::2], (2, 2), (1, 1)) + 1,
    "written into": lambda x: torch.as_strided_scatter(_flat(x)[1:], torch.zeros(2), (2,), (1,), 1) + 1,
    "beside other readers": lambda x: (
        (y := _flat(x)[1::2]) * 3
    ).sum() + torch.as_strided(y, (2, 2), (1, 1)),
}  # fmt: skip


def _input() -> torch.Tensor:
    """Eight elements with gaps, not at the beginning of their memory."""
    return torch.arange(24.0).reshape(4, 6).t()[1:3]


@pytest.mark.parametrize("name", READS_MEMORY)
def test_memory_below_views_is_read(name: str) -> None:
    torch._dynamo.reset()
    function = READS_MEMORY[name]
    found = torch.compile(function, backend="npu", dynamic=False)(_input())
    assert torch.equal(found, function(_input()))


@pytest.mark.parametrize("name", ["of a transposed input", "of every second element"])
def test_memory_below_views_of_open_sizes_is_read(name: str) -> None:
    torch._dynamo.reset()
    function = READS_MEMORY[name]
    found = torch.compile(function, backend="npu", dynamic=True)(_input())
    assert torch.equal(found, function(_input()))


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "with gaps": lambda: torch.zeros(10, 12).t()[1::2, 1::2],
    "transposed": lambda: torch.zeros(5, 6).t(),
    "channels last": lambda: torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "expanded": lambda: torch.zeros(5, 1).expand(5, 4).t(),
}
DRAWS: dict[str, Function] = {
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randn_like, contiguous": lambda x: torch.randn_like(x, memory_format=torch.contiguous_format),
    "dropout": lambda x: torch.nn.functional.dropout(x + 1, 0.5),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_numbers_are_drawn_in_the_order_of_memory(layout: str) -> None:
    torch._dynamo.reset()
    x = LAYOUTS[layout]()

    def drawn(compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        functions = [torch.compile(f, backend="npu") if compiled else f for f in DRAWS.values()]
        return [f(x) for f in functions]

    for name, found, wanted in zip(DRAWS, drawn(True), drawn(False), strict=True):
        assert torch.equal(found, wanted), name
        assert found.stride() == wanted.stride(), name
