"""The walk of a `torch.compile` call in docs/architecture.md."""

from __future__ import annotations

import torch

import torchair
from tests.support.walks import Entered, check_walk
from torchair import decompositions


def test_a_compiled_call() -> None:
    network = torch.compile(torch.nn.Linear(8, 4), backend=torchair.get_npu_backend())
    torch.compiler.reset()  # as in a new process
    decompositions.table.cache_clear()
    with Entered() as entered:
        network(torch.ones(2, 8))
    check_walk("A `torch.compile` call", entered)
