"""The subject of a check: a script with its framework, or a model file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from npu_tools.outcome import Failure, Misuse
from npu_tools.scripts import FRAMEWORKS as RUNNABLE
from npu_tools.scripts import framework_of

__all__ = ["FRAMEWORKS", "Subject", "subject_of"]

FRAMEWORKS = tuple(name for name in RUNNABLE if name != "none")
_FILES = {".onnx": "onnx", ".pb": "pb", ".om": "om", ".air": "air"}


@dataclass(frozen=True)
class Subject:
    """A script with its arguments, or a model file."""

    path: Path
    kind: str  # "script" | "onnx" | "pb" | "saved_model" | "om" | "air"
    framework: str = ""  # of a script
    arguments: tuple[str, ...] = ()

    @property
    def is_script(self) -> bool:
        return self.kind == "script"


def subject_of(path: Path, arguments: tuple[str, ...] = (), framework: str = "") -> Subject:
    """Identify the subject; raises Failure if it is neither."""
    if not path.exists():
        raise Failure(
            f"there is no file '{path}'",
            "give a Python script, an .onnx, .pb or .om file, or a SavedModel folder",
        )
    if path.is_dir():
        if not (path / "saved_model.pb").is_file():
            raise Failure(
                f"'{path}' is a folder without a saved_model.pb",
                "give the folder of a SavedModel, or a script",
            )
        return Subject(path, "saved_model")
    if path.suffix in _FILES:
        kind = "saved_model" if path.name == "saved_model.pb" else _FILES[path.suffix]
        return Subject(path.parent if kind == "saved_model" else path, kind)
    if path.suffix != ".py":
        raise Failure(
            f"'{path}' is neither a script nor a model file", f"known endings: .py, {', '.join(_FILES)}"
        )
    if framework and framework not in FRAMEWORKS:
        raise Misuse(f"there is no framework '{framework}'", f"use one of {', '.join(FRAMEWORKS)}")
    return Subject(path, "script", framework or _framework(path), arguments)


def _framework(path: Path) -> str:
    found = framework_of(path)
    if found not in FRAMEWORKS:
        raise Failure(
            f"'{path}' imports neither TensorFlow nor PyTorch",
            "name the framework with --framework if the script imports it indirectly",
        )
    return found
