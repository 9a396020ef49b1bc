"""docs/custom_operators.md, run as it is printed: files are written, commands run, their output compared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "custom_operators.md"
_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FRAMEWORKS = {"train_torch.py": "torch", "train_tensorflow.py": "tensorflow"}


@dataclass(frozen=True)
class Step:
    """A file to write, or a command with the output it is to have (`...` stands for anything)."""

    file: str = ""
    text: str = ""
    command: str = ""
    output: str = ""


def steps() -> list[Step]:
    found: list[Step] = []
    for language, title, body in _BLOCK.findall(TUTORIAL.read_text()):
        if title:
            found.append(Step(file=title, text=body))
        elif language == "console":
            for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                found.append(Step(command=command, output=output))
    return found


def matches(output: str, expected: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("..."))
    return re.fullmatch(pattern, output.strip(), re.DOTALL) is not None


def test_the_tutorial_has_its_parts() -> None:
    assert [s.file for s in steps() if s.file] == [
        "operators/swoosh.py",
        "test_swoosh.py",
        "operators/plugins.py",
        "use_onnx.py",
        "operators/swoosh.py",
        "train_torch.py",
        "train_tensorflow.py",
        "operators/relu.py",
        "operators/broken.py",
        "use_package.py",
    ]
    assert sum(bool(s.command) for s in steps()) == 17


def test_output_is_compared() -> None:
    assert matches("loss 0.0000, weight 1.109", "loss 0.0000, weight 1.1...")
    assert not matches("loss 0.1000, weight 1.109", "loss 0.0000, weight 1.1...")


@pytest.mark.slow
def test_the_tutorial_works_as_printed(tmp_path: Path) -> None:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment.pop("NPU_OPP_PATH", None)
    for step in steps():
        if step.file:
            path = tmp_path / step.file
            path.parent.mkdir(exist_ok=True)
            path.write_text(step.text)
            continue
        if any(name in step.command and not _has(package) for name, package in _FRAMEWORKS.items()):
            continue
        if step.command.startswith("export "):
            name, _, value = step.command.removeprefix("export ").partition("=")
            environment[name] = value.replace("$PWD", str(tmp_path))
            continue
        done = subprocess.run(
            ["bash", "-c", step.command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        output = done.stdout if done.returncode == 0 else done.stdout + done.stderr
        assert matches(output, step.output), (
            f"$ {step.command}\n{done.stdout}{done.stderr}\nexpected:\n{step.output}"
        )


def _has(package: str) -> bool:
    try:
        __import__(package)
    except ImportError:
        return False
    return True
