"""The runner of other projects' test suites, on a tiny suite whose tests end in every possible way."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ge.conformance.__main__ import app
from ge.conformance.suites import suite as suite_module
from tests.support import fake_suite

LIST = """
[[known]]
tests = ['first_test.py::Tests::test_listed.*']
reason = "no such thing on an NPU"
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the command on the suite with a list of known failures; gives its result and its report."""
    monkeypatch.setitem(suite_module.SUITES, "keras", "tests.support.fake_suite")
    known = tmp_path / "known.toml"
    (tmp_path / "suite").mkdir()

    def go(*arguments: str, text: str = LIST) -> tuple[Result, dict[str, Any]]:
        known.write_text(text)
        command = ["suites", "keras", "--source", str(tmp_path / "suite"), "--seconds", "3"]
        command += ["--results", str(tmp_path / "results"), "--known", str(known), *arguments]
        result = CliRunner().invoke(app, command)
        return result, json.loads((tmp_path / "results" / "keras.json").read_text())

    return go


def test_every_way_a_test_can_end_is_told_apart(run: Any) -> None:
    result, report = run()
    assert result.exit_code == 1
    assert {name.rpartition("::")[2]: outcome[0] for name, outcome in report["failed"].items()} == {
        "test_wrong": "failed",
        "test_dies": "crash",
        "test_hangs": "hang",
        "test_wrong_teardown": "failed",
        "second_test.py": "crash",
        "third_test.py": "failed",
    }
    assert report["failed"]["first_test.py::Tests::test_wrong"][1].startswith(
        "AssertionError: wrong on the NPU"
    )
    assert list(report["known"]) == ["first_test.py::Tests::test_listed"]
    assert list(report["mended"]) == ["first_test.py::Tests::test_listed_and_good"]
    counts = {key: report[key] for key in ("passed", "skipped", "not on the CPU", "missing")}
    assert counts == {"passed": 3, "skipped": 1, "not on the CPU": 1, "missing": 2}


def test_the_npu_first_leaves_the_cpu_what_did_not_pass(run: Any, tmp_path: Path) -> None:
    result, report = run("--npu-first", "--select", "first::good|wrong|listed|skipped")
    assert result.exit_code == 1
    failed = ["test_wrong", "test_wrong_teardown"]
    assert sorted(name.rpartition("::")[2] for name in report["failed"]) == failed
    assert list(report["known"]) == ["first_test.py::Tests::test_listed"]
    assert list(report["mended"]) == ["first_test.py::Tests::test_listed_and_good"]
    counts = {key: report[key] for key in ("npu only", "passed", "skipped", "not on the CPU", "missing")}
    assert counts == {"npu only": 3, "passed": 0, "skipped": 1, "not on the CPU": 1, "missing": 0}
    lines = (tmp_path / "results" / "keras-1.0" / "cpu" / "outcomes.jsonl").read_text().splitlines()
    assert len(lines) == 5  # those that failed or were skipped


def test_a_failure_without_an_outcome_on_the_cpu_is_not_judged(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "results" / "keras-1.0" / "npu"
    folder.mkdir(parents=True)
    (folder / "outcomes.jsonl").write_text(json.dumps(["first_test.py::Tests::test_hangs", "failed", ""]))
    result, report = run("--npu-first", "--resume", "--select", "first::hangs", "--minutes", "1e-12")
    assert result.exit_code == 1 and not report["failed"]
    assert list(report["unjudged"]) == ["first_test.py::Tests::test_hangs"]


def test_listed_failures_are_no_error_and_are_counted_by_reason(run: Any) -> None:
    result, report = run("--select", "first::good|listed")
    assert result.exit_code == 0
    assert report["passed"] == 3 and "known, 1: no such thing on an NPU" in result.output
    result, report = run("--select", "first::good|listed", text="")
    assert result.exit_code == 1 and list(report["failed"]) == ["first_test.py::Tests::test_listed"]


def test_a_run_without_a_test_that_passes_on_the_cpu_is_no_success(run: Any) -> None:
    result, report = run("--select", "no such file")
    assert (result.exit_code, report["passed"], report["failed"]) == (1, 0, {})


def test_a_resumed_run_keeps_outcomes_and_another_one_does_not(run: Any, tmp_path: Path) -> None:
    for device, status in (("cpu", "passed"), ("npu", "failed")):
        folder = tmp_path / "results" / "keras-1.0" / device
        folder.mkdir(parents=True)
        line = json.dumps(["first_test.py::Tests::test_good", status, ""])
        (folder / "outcomes.jsonl").write_text(f"{line}\n[cut sho")
    select = ("--select", "first::Tests::test_good$")
    assert list(run(*select, "--resume")[1]["failed"]) == ["first_test.py::Tests::test_good"]
    assert run(*select)[1]["passed"] == 1


def test_a_missing_suite_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(suite_module.SUITES, "keras", "tests.support.fake_suite")
    result = CliRunner().invoke(app, ["suites", "keras", "--results", str(tmp_path)])
    assert result.exit_code == 1 and "name a folder with --source" in result.output


def test_processes_that_share_a_file_run_every_test_once(run: Any, tmp_path: Path) -> None:
    report = run("--select", "first::good|wrong", "--parts", "3", "--jobs", "3")[1]
    assert sorted(name.rpartition("::")[2] for name in report["failed"]) == [
        "test_wrong",
        "test_wrong_teardown",
    ]
    assert report["passed"] == 3
    lines = (tmp_path / "results" / "keras-1.0" / "npu" / "outcomes.jsonl").read_text().splitlines()
    names = [json.loads(line)[0].rpartition("::")[2] for line in lines]
    assert len(names) == len(set(names)) == 5
    assert "test_wrong_everywhere" not in names  # only what passes on the CPU runs on the NPU


def test_a_test_that_runs_when_the_time_is_up_has_no_outcome(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "results" / "keras-1.0" / "cpu"
    folder.mkdir(parents=True)
    (folder / "outcomes.jsonl").write_text(json.dumps(["first_test.py::Tests::test_hangs", "passed", ""]))
    report = run("--select", "first::hangs", "--seconds", "100", "--minutes", "0.08")[1]
    assert not report["failed"] and report["missing"] == 1


def test_the_samples_of_all_residues_are_the_whole_suite(run: Any) -> None:
    names: list[str] = []
    for residue in range(2):
        _, report = run("--select", "first::good|wrong", "--sample", "2", "--residue", str(residue))
        counts = report["groups"].get("first_test.py", {})
        assert counts.get("passed", 0) == report["passed"] and counts.get("failed", 0) == len(
            report["failed"]
        )
        names += [*report["failed"], *["passed"] * report["passed"]]
    assert names.count("passed") == 3 and len(names) == len(set(names)) + 2 == 5
    assert run("--sample", "2", "--residue", "2")[0].exit_code == 2


def test_counts_are_by_part_of_the_suite(run: Any) -> None:
    result, report = run()
    assert list(report["groups"]) == ["first_test.py", "second_test.py", "third_test.py"]
    first = report["groups"]["first_test.py"]
    assert first == {"passed": 3, "skipped": 1, "known": 1, "failed": 4, "missing": 0, "not on the CPU": 1}
    assert "second_test.py" in result.output


def test_a_resumed_run_starts_no_process_for_files_without_tests_left(run: Any, tmp_path: Path) -> None:
    select = ("--select", "first::test_good")
    assert run(*select)[1]["passed"] == 2
    log = tmp_path / "results" / "keras-1.0" / "npu" / "first_test.log"
    log.unlink()
    assert run(*select, "--resume")[1]["passed"] == 2
    assert not log.exists()
    assert run("--select", "first::test_good|listed", "--resume")[1]["passed"] == 3
    assert log.exists()


def test_files_that_leave_state_behind_have_a_process_of_their_own(
    run: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    find = fake_suite.find
    alone = lambda source: dataclasses.replace(find(source), alone=("second_test.py",))  # noqa: E731
    monkeypatch.setattr(fake_suite, "find", alone)
    run("--select", "first|second::good|never")
    logs = {path.stem for path in (tmp_path / "results" / "keras-1.0" / "cpu").glob("*.log")}
    assert logs == {"first_test", "second_test"}
