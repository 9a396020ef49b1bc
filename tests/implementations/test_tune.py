"""The tuning command: a crossover is where least time is lost, and what is measured is what plans are made by."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from ge import tune
from ge.compiler import compile_plan
from ge.errors import GeError
from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions
from ge.target import CostTable, costs_file, host, named, runtime_loops


def test_a_crossover_is_where_least_time_is_lost() -> None:
    assert tune.crossover([8, 16, 32, 64], [0.5, 1.2, 0.95, 2.0]) == 16
    assert tune.crossover([8, 16], [0.5, 0.6]) == 32  # never
    assert tune.crossover([8, 16], [1.5, 1.6]) == 8
    assert tune.crossover([1, 2, 4], [0.9, 0.8, 0.7], at_most=True) == 0.5


def test_every_sweep_measures_an_entry_of_the_table() -> None:
    entries = {field.name for field in fields(CostTable)}
    assert {sweep.entry for sweep in tune.SWEEPS} <= entries


@pytest.mark.parametrize("sweep", tune.SWEEPS, ids=lambda sweep: sweep.entry)
def test_a_sweep_forces_its_implementation_on_and_off(sweep: tune.Sweep) -> None:
    """At its largest size, on a target that has all of them; nothing is run."""
    target = named("avx512_bf16")
    assert target.costs is not None
    b = GraphBuilder(sweep.entry)
    b.output(sweep.build(b, sweep.sizes[-1]))
    plans = [
        compile_plan(b.graph, CompileOptions(target=replace(target, costs=sweep.forced(target.costs, on))))
        for on in (True, False)
    ]
    assert tune.choices(plans[0]) != tune.choices(plans[1])


def test_the_command_writes_what_plans_are_made_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NPU_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tune, "measure", lambda sweep, target, rounds: 77)
    assert tune.main(["--only", "winograd_tiles"]) == 0
    assert "winograd_tiles" in capsys.readouterr().out
    written = json.loads(costs_file(host().isa).read_text())
    assert written == {**asdict(CostTable()), "winograd_tiles": 77}
    assert host().costs == CostTable.of(written)


def test_a_table_that_another_version_wrote_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions share the cache folder: unknown entries are ignored, missing ones keep their defaults."""
    monkeypatch.setenv("NPU_CACHE_DIR", str(tmp_path))
    costs_file(host().isa).write_text(json.dumps({"winograd_tiles": 77, "entry_of_a_later_version": 1}))
    assert host().costs == CostTable.of({"winograd_tiles": 77})


@pytest.mark.parametrize("text", ["[", "[1, 2]", '{"winograd_tiles": "many"}'])
def test_a_damaged_table_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("NPU_CACHE_DIR", str(tmp_path))
    costs_file(host().isa).write_text(text)
    with pytest.raises(GeError, match="cannot be read"):
        host()


def test_unknown_entries_are_named_with_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        tune.main(["--only", "nothing"])
    assert "there is no entry nothing" in capsys.readouterr().err


def test_measured_thresholds_of_threads_reach_kernels_and_the_runtime() -> None:
    b = GraphBuilder("exponentials")
    b.output(b.op("Exp", b.input("x", (1 << 18,), "float32")))
    target = named("avx2")
    plans = [
        compile_plan(b.graph, CompileOptions(target=replace(target, costs=CostTable.of({"wake_ns": wake}))))
        for wake in (5_000, 80_000)
    ]
    quick, slow = (plan.tasks[0].attrs["grain"] for plan in plans)
    assert quick < slow <= 16 * quick
    assert [runtime_loops(plan.report)["wake_ns"] for plan in plans] == [5_000, 80_000]
