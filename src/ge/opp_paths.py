"""The directories searched for custom operators.

They are those of NPU_OPP_PATH, those of the option `opp_path`, and the directory into which `python -m ge.opp build`
installs.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from npu_runtime import environment

__all__ = ["MANIFEST", "add_paths", "entries", "home", "roots"]

MANIFEST = "package.json"  # the file that marks a directory as a package

_lock = threading.Lock()
_given: list[Path] = []


def home() -> Path:
    """The installation directory of packages: the first of NPU_OPP_PATH, else the user's data directory."""
    named = _environment()
    if named:
        return named[0]
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "tf_adapter" / "opp"


def _environment() -> list[Path]:
    return [Path(p) for p in environment.text("NPU_OPP_PATH").split(os.pathsep) if p]


def add_paths(paths: Iterable[str | os.PathLike[str]]) -> None:
    """Add directories to the search path."""
    with _lock:
        for path in paths:
            if Path(path) not in _given:
                _given.append(Path(path))


def roots() -> list[Path]:
    """The search path, in order."""
    for path in _environment():
        if not path.is_dir():
            environment.warn("NPU_OPP_PATH", str(path), "folders that exist")
    found = dict.fromkeys(p.absolute() for p in (*_environment(), *_given))
    if not _environment():
        with contextlib.suppress(RuntimeError):  # a user without a home directory
            found.setdefault(home().absolute())
    return list(found)


def entries(root: Path) -> list[Path]:
    """The operator files and packages of a directory."""
    if (root / MANIFEST).is_file():
        return [root]
    try:
        names = sorted(os.listdir(root))
    except OSError:
        return []
    files = [root / n for n in names if n.endswith(".py") and not n.startswith(("_", "."))]
    folders = [root / n for n in names if not n.startswith(".") and (root / n / MANIFEST).is_file()]
    return files + folders
