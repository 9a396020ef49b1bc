"""The command line: help without frameworks, exit statuses, completion, the environment's report."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from npu_tools import env
from npu_tools.main import COMMANDS, main
from tests.tools.command_line import ROOT, run_command

HEAVY = ("tensorflow", "torch", "keras", "numpy", "onnx", "llvmlite", "npu_runtime._native", "libcst")


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom npu_tools.main import main\nstatus = main(['--help'])\n"
        f"print(status, [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "0 []"
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_row_names_a_command_with_help_and_the_same_first_line(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert COMMANDS[name].text in shown
    assert f"Usage: tf-adapter {name}" in shown


def test_both_modules_and_the_script_are_the_same_command() -> None:
    assert '\ntf-adapter = "npu_tools.main:main"\n' in (ROOT / "pyproject.toml").read_text()
    for package in ("npu_tools", "tf_adapter"):
        source = (ROOT / "src" / package / "__main__.py").read_text()
        assert "from npu_tools.main import main" in source and "sys.exit(main())" in source


def test_wrong_usage_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "--unknown"]) == 2
    assert main(["unknown"]) == 2
    assert main([]) == 2
    assert "No such command 'unknown'" in capsys.readouterr().err


def test_the_version_is_that_of_the_bug_report(capsys: pytest.CaptureFixture[str]) -> None:
    from ge.versions import describe

    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == describe()


def test_completion_offers_commands_and_options_of_commands() -> None:
    def completed(*words: str) -> str:
        done = run_command(
            _TF_ADAPTER_COMPLETE="complete_bash", COMP_WORDS=" ".join(words), COMP_CWORD=str(len(words) - 1)
        )
        return done.stdout

    assert "env" in completed("tf-adapter", "en").split()
    assert "--json" in completed("tf-adapter", "env", "--j").split()


def test_the_environment_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    main(["env", "--json"])
    data = json.loads(capsys.readouterr().out)
    assert {"tf-adapter", "python", "target", "devices", "memory", "fast types", "cache folder"} <= set(
        data["facts"]
    )


def test_misspelt_variables_are_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NPU_NUM_THREAD", "2")
    assert main(["env"]) == 1
    shown = capsys.readouterr().out
    assert "warning: NPU_NUM_THREAD has no effect" in shown and "did you mean NPU_NUM_THREADS?" in shown


def test_a_runtime_that_cannot_be_loaded_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "npu_runtime", None)
    assert main(["env", "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["severity"] == "error" and "npu_runtime" in finding["text"]


def test_old_frameworks_are_errors_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"tensorflow-cpu": "2.9.3", "torch": "2.13.0"}
    monkeypatch.setattr(env, "installed", lambda package: versions.get(package, ""))
    found = [finding for finding in env.findings() if finding.severity == "error"]
    assert [finding.text for finding in found] == ["tensorflow 2.9.3 is too old"]
    assert "tensorflow-cpu>=2.15" in found[0].remedy


def test_more_threads_than_cores_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    monkeypatch.setattr("npu_runtime.num_threads", lambda: 8)
    assert any("8 threads on 1 cores" in finding.text for finding in env.findings())
