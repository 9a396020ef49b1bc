"""The hub's own rules: outcomes are right, wrong, crash, fallback or refused, and a report is continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from ge.errors import GeError
from torchair import executable
from torchair.conformance.hub import Case, cases, command, run


def _case(compiled: Any) -> Case:
    def results(backend: str | None) -> list[torch.Tensor]:
        x = torch.arange(6.0)
        if backend is None:
            return [x.exp()]
        return compiled(torch.compile(torch.exp, backend=backend), x)

    return Case("toys", "exp", "forward", results)


def _raise(call: Any, x: torch.Tensor) -> list[torch.Tensor]:
    raise ValueError("cannot")


@pytest.mark.parametrize(
    ("compiled", "outcome", "why"),
    [
        (lambda call, x: [call(x)], "right", ""),
        (lambda call, x: [call(x) * 1.01], "wrong", "differs by"),
        (lambda call, x: [call(x)[1:]], "wrong", "shape"),
        (lambda call, x: [call(x) / 0], "wrong", "finite"),
        (lambda call, x: [call(x)] * 2, "wrong", "2 results"),
        (_raise, "crash", "ValueError: cannot"),
    ],
)
def test_an_outcome_is_a_comparison_with_eager_mode(compiled: Any, outcome: str, why: str) -> None:
    found = run(_case(compiled))
    assert (found.outcome, found.why[: len(why)] if outcome == "crash" else why in found.why) == (
        outcome,
        why if outcome == "crash" else True,
    )
    if outcome == "right":
        assert (found.npu_calls, found.calls, found.programs) == (1, 1, 1)


def test_what_eager_mode_cannot_do_is_refused() -> None:
    def results(backend: str | None) -> list[torch.Tensor]:
        raise KeyError("no such network")

    assert run(Case("toys", "none", "forward", results)).outcome == "refused"


def test_a_graph_that_the_compiler_gives_up_is_a_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise GeError("E10001", "not today")

    monkeypatch.setattr(executable, "lower", fail)
    with pytest.warns(UserWarning, match="runs on ATen"):
        found = run(_case(lambda call, x: [call(x)]))
    assert found.outcome == "fallback"
    assert "not today" in found.why


def test_a_report_is_continued(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[str] = []

    def toys() -> Any:
        for name in ("first", "second"):

            def results(backend: str | None, name: str = name) -> list[torch.Tensor]:
                ran.append(name)
                return [torch.ones(1)]

            yield Case("toys", name, "forward", results)

    monkeypatch.setitem(command.FAMILIES, "toys", toys)
    app = typer.Typer()
    app.command()(command.hub)
    path = tmp_path / "report.jsonl"
    path.write_text(json.dumps(vars(cases.Found("toys", "first", "forward", "right"))) + "\n")
    result = CliRunner().invoke(app, ["--families", "toys", "--report", str(path)])
    assert result.exit_code == 0, result.output
    assert set(ran) == {"second"}
    assert "toys, forward: 2 right, 0 wrong" in result.output
    assert len(path.read_text().splitlines()) == 2
