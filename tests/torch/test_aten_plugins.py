"""ATen plugins: which operators have one, and how one-to-one plugins convert their operands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torchair
from ge.ops.plugins import mapped
from ge.parsers import aten  # noqa: F401  declares the plugins


def test_no_operator_loses_its_plugin() -> None:
    """A call without a plugin still gives the right answer, on the host: only this list notices the loss."""
    listed = Path(__file__).with_name("aten_operators.txt").read_text().split()
    assert mapped("aten") == sorted(listed), "add new operators to tests/torch/aten_operators.txt"


_CASES: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "integers to a float function": (torch.exp, [torch.arange(5)]),
    "bools to a float function": (torch.sqrt, [torch.tensor([True, False])]),
    "integers and floats compared": (torch.lt, [torch.arange(4), torch.tensor([0.5, 0.5, 2.5, 9.0])]),
    "an integer tensor and a float number": (torch.ge, [torch.arange(4), 1.5]),
    "bools compared": (torch.gt, [torch.tensor([True, False]), torch.tensor([False, False])]),
    "integers as truth values": (torch.logical_and, [torch.arange(3), torch.tensor([0.0, 1.5, 0.5])]),
    "a quotient of integers": (torch.div, [torch.arange(4), torch.tensor([1, 2, 4, 8])]),
    "a choice between types": (torch.where, [torch.tensor([True, False]), torch.arange(2), 0.5]),
    "a parameter": (torch.nn.functional.leaky_relu, [torch.tensor([-1.0, 2.0]), 0.25]),
    "a named variant": (
        lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        [torch.linspace(-3, 3, 7)],
    ),
}


@pytest.mark.parametrize("case", _CASES)
def test_operands_are_converted_as_pytorch_does(case: str) -> None:
    function, args = _CASES[case]
    torch._dynamo.reset()
    wanted = function(*args)
    got = torch.compile(function, backend=torchair.get_npu_backend())(*args)
    assert got.dtype == wanted.dtype
    torch.testing.assert_close(got, wanted)
