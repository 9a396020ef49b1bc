"""A defect of the compiler runs a graph on ATen: with PyTorch's answer, one warning and a line in `explain`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import torchair
import torchair.executable
from ge import faults
from ge.errors import GeError
from ge.ops.plugins import Unsupported
from ge.parsers.aten import parser as aten
from torchair.executable import observe


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


@pytest.mark.parametrize("error", [ValueError, RuntimeError, NotImplementedError, ZeroDivisionError])
def test_any_untyped_error_of_a_plugin_is_a_defect(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def stumble(node: Any) -> Any:
        raise error("a defect")

    torch._dynamo.reset()
    plugin = dataclasses.replace(aten._found("aten.neg.default"), function=stumble)
    monkeypatch.setattr(aten, "_found", lambda target: plugin)
    monkeypatch.setattr(faults, "_shown", set())
    monkeypatch.setenv("NPU_INTERNAL_ERRORS", "warn")
    before = len(faults.recorded())
    with pytest.warns(faults.InternalErrorWarning, match="a defect"):
        assert torch.compile(lambda x: -x, backend="npu")(torch.ones(3)).tolist() == [-1.0] * 3
    assert len(faults.recorded()) > before


@pytest.fixture
def shift() -> Iterator[Any]:
    library = torch.library.Library("internal_errors_test", "DEF")
    library.define("shift(Tensor x) -> Tensor")
    library.impl("shift", lambda x: x + 1, "CPU")
    library.impl("shift", lambda x: torch.empty_like(x), "Meta")
    yield torch.ops.internal_errors_test.shift.default
    library._destroy()


@pytest.mark.filterwarnings("error")
def test_the_error_of_a_users_converter_reaches_the_user(shift: Any) -> None:
    @torchair.register_fx_node_ge_converter(shift)
    def convert(x: Any, *, graph: Any) -> Any:
        raise ValueError("on purpose")

    with pytest.raises(
        Exception, match=r"E10601.*test_internal_errors.*the converter raised ValueError: on purp"
    ):
        torch.compile(lambda x: shift(x), backend="npu")(torch.ones(3))


@pytest.mark.parametrize("refusal", [Unsupported("not today"), GeError("E10003", "not today")])
def test_a_users_converter_may_refuse(shift: Any, refusal: Exception) -> None:
    @torchair.register_fx_node_ge_converter(shift)
    def convert(x: Any, *, graph: Any) -> Any:
        raise refusal

    before = len(faults.recorded())
    with observe() as reports:
        assert torch.compile(lambda x: shift(x * 2), backend="npu")(torch.ones(3)).tolist() == [3.0] * 3
    assert [r.reason for report in reports for r in report.refusals] == ["not today"]
    assert len(faults.recorded()) == before
