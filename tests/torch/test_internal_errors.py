"""A defect of the compiler runs a graph on ATen: with PyTorch's answer, one warning and a line in `explain`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchair
import torchair.executable
from ge import faults


def _fail(*args: Any, **kwargs: Any) -> Any:
    raise KeyError("a defect")


def test_a_graph_runs_on_aten_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchair.executable, "compile_graph", _fail)
    monkeypatch.setattr(faults, "_shown", set())
    monkeypatch.setenv("NPU_INTERNAL_ERRORS", "warn")
    compiled = torch.compile(lambda x: x * 2 + 1, backend=torchair.get_npu_backend())
    with pytest.warns(faults.InternalErrorWarning, match="a defect"):
        assert compiled(torch.ones(3)).tolist() == [3.0] * 3
    monkeypatch.setenv("NPU_INTERNAL_ERRORS", "raise")
    torch._dynamo.reset()
    with pytest.raises(Exception, match="a defect"):
        torch.compile(lambda x: x * 2 + 1, backend=torchair.get_npu_backend())(torch.ones(4))
