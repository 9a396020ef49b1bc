"""Operands of several element types: compiled calls compute in the type that eager mode promotes them to."""

from __future__ import annotations

import itertools

import pytest
import torch

import torchair  # noqa: F401  (registers the backend)

EDGES = [
    torch.tensor([1, 2, 3, 100], dtype=t) for t in (torch.int8, torch.int64, torch.float32, torch.float64)
]
VALUES = [
    torch.tensor([2.5, -1.0, 3.0, 99.5]),
    torch.tensor([0.1, 2.0], dtype=torch.float64),
    torch.tensor([2.5, 300.0], dtype=torch.float16),
    torch.tensor([300, 2, -300]),
    torch.tensor(2.5),
]


def _places(edges: list[torch.Tensor], values: list[torch.Tensor]) -> list[torch.Tensor]:
    pairs = list(itertools.product(edges, values))
    return [
        *[torch.bucketize(v, e) for e, v in pairs],
        *[torch.searchsorted(e, v, right=True) for e, v in pairs],
        *[torch.searchsorted(e, 2.5) for e in edges],
        *[torch.bucketize(2.5, e) for e in edges],
    ]


def test_places_among_sorted_elements_of_another_type() -> None:
    torch._dynamo.reset()
    found = torch.compile(_places, backend="npu")(EDGES, VALUES)
    for f, wanted in zip(found, _places(EDGES, VALUES), strict=True):
        assert f.dtype == wanted.dtype
        assert torch.equal(f, wanted)


def test_boundaries_of_several_axes_are_refused() -> None:
    torch._dynamo.reset()
    function = torch.compile(torch.bucketize, backend="npu")
    with pytest.raises(RuntimeError, match="must be 1 dimension"):
        function(torch.ones(2, 3, 1), torch.ones(3, 4))
