"""Detects the framework of a user's script and runs it on the NPU in a child process.

    python -m npu_tools.scripts FRAMEWORK TASK RESULT SCRIPT ARGUMENTS...

runs a script on the NPU as `python SCRIPT ARGUMENTS` would, observed by a task of `_TASKS`, which writes RESULT when
the script ends, successfully or not. The exit status is the script's own.
"""

from __future__ import annotations

import ast
import importlib
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ge.distributions import ascend
from npu_tools.outcome import Failure, Misuse

__all__ = ["FRAMEWORKS", "Outcome", "framework_of", "framework_of_tree", "imported_modules", "run_watched"]

FRAMEWORKS = ("tensorflow", "tensorflow1", "torch", "none")
_MOST_FILES = 64
_TASKS = {"explain": "npu_tools.explaining", "profile": "npu_tools.recording"}
_VERSION1_MODULES = (
    *("tensorflow.compat.v1", "tensorflow.contrib", "tensorflow.estimator", "tensorflow_estimator"),
    *("npu_bridge", "tf_slim"),
)
_VERSION1_NAMES = frozenset(
    {
        *("Session", "InteractiveSession", "placeholder", "global_variables_initializer", "get_variable"),
        *("ConfigProto", "disable_v2_behavior", "disable_eager_execution", "contrib", "estimator", "layers"),
        *("train.MonitoredTrainingSession", "train.MonitoredSession", "train.SingularMonitoredSession"),
        *("train.Supervisor", "train.SessionManager"),
    }
)


# -- the caller's side --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """Outcome of an observed script; `result` is the task's output, None if it failed."""

    status: int
    result: bytes | None


def framework_of(script: Path) -> str:
    """Framework imported by a script and the modules beside it; "none" if there is none.

    TensorFlow takes precedence; a script counts as version 1 if it uses sessions, placeholders or estimators.
    """
    used = {framework_of_tree(tree) for tree in _sources(script)}
    return next((name for name in ("tensorflow1", "tensorflow", "torch") if name in used), "none")


def _sources(script: Path) -> Iterator[ast.Module]:
    """The syntax trees of a script and of the modules beside it that it imports."""
    waiting, seen = [script], {script}
    while waiting and len(seen) <= _MOST_FILES:
        current = waiting.pop()
        try:
            tree = ast.parse(current.read_bytes())
        except SyntaxError as error:
            raise Failure(f"{current}:{error.lineno} is not Python: {error.msg}") from error
        yield tree
        for name in imported_modules(tree):
            beside = script.parent.joinpath(*name.split("."))
            for file in (beside.with_suffix(".py"), beside / "__init__.py"):
                if file.is_file() and file not in seen:
                    seen.add(file)
                    waiting.append(file)


def imported_modules(tree: ast.Module) -> frozenset[str]:
    """The modules that a file imports, and the names it imports from modules as if they were modules."""
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(modules)


def framework_of_tree(tree: ast.Module) -> str:
    """The same for a file that has been parsed."""
    modules = imported_modules(tree)
    if any(name == known or name.startswith(f"{known}.") for name in modules for known in _VERSION1_MODULES):
        return "tensorflow1"
    top = {name.partition(".")[0] for name in modules}
    if top & {"tensorflow", "keras", "tf_keras", "tf_adapter", "npu_device"}:
        return "tensorflow1" if _uses_version1(tree) else "tensorflow"
    return "torch" if top & {"torch", "torch_npu", "torchair"} else "none"


def _uses_version1(tree: ast.Module) -> bool:
    names = {"tf", "tensorflow", "tf1"}  # names for TensorFlow
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname for alias in node.names if alias.asname and alias.name == "tensorflow"}
    return any(
        _member_of(names, node) in _VERSION1_NAMES
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
    )


def _member_of(owners: set[str], node: ast.Attribute) -> str:
    """The name of a member of TensorFlow, without `compat.v1`; "" for other expressions.

    >>> _member_of({"tf"}, ast.parse("tf.compat.v1.train.Saver", mode="eval").body)
    'train.Saver'
    """
    owner, _, name = ast.unparse(node).partition(".")
    return name.removeprefix("compat.v1.") if owner in owners else ""


def run_watched(
    script: Path, arguments: Sequence[str], task: str, framework: str = "", *, quiet: bool = False
) -> Outcome:
    """Run a script on the NPU in a child process, with the caller's stdin and stdout.

    quiet: redirect the script's output to stderr.
    """
    if not script.is_file():
        raise Failure(f"there is no script '{script}'")
    chosen = framework or framework_of(script)
    if chosen not in FRAMEWORKS:
        raise Misuse(f"there is no framework '{chosen}'", f"choices are {', '.join(FRAMEWORKS)}")
    with tempfile.TemporaryDirectory(prefix="tf-adapter-") as folder:
        result = Path(folder) / "result"
        command = [
            sys.executable,
            "-m",
            "npu_tools.scripts",
            chosen,
            task,
            str(result),
            str(script),
            *arguments,
        ]
        done = subprocess.run(command, stdout=sys.stderr if quiet else None, check=False)
        return Outcome(done.returncode, result.read_bytes() if result.is_file() else None)


# -- the script's side --------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    """Run the script; returns the exit status unless the script ends the process."""
    framework, task, result, script, *rest = arguments
    watch: AbstractContextManager[Any] = importlib.import_module(_TASKS[task]).watch(framework, Path(result))
    with watch:
        _RUNNERS[framework](script, rest)
    return 0


def _run(script: str, arguments: Sequence[str]) -> None:
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


def _run_tensorflow(script: str, arguments: Sequence[str]) -> None:
    importlib.import_module("tf_adapter")
    _run(script, arguments)


def _run_version1(script: str, arguments: Sequence[str]) -> None:
    ascend("npu_bridge.version1").run_script(script, list(arguments))


def _run_torch(script: str, arguments: Sequence[str]) -> None:
    """What the script calls `cuda` is the NPU; `npu` and `torch.compile(backend="npu")` work as they are."""
    ascend("torch_npu.contrib.transfer_to_npu")
    _run(script, arguments)


_RUNNERS = {"tensorflow": _run_tensorflow, "tensorflow1": _run_version1, "torch": _run_torch, "none": _run}


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.exit(main(sys.argv[1:]))
