"""A writable mirror of the user's folder, so that a script does not change the folder itself.

Small files are copied, large ones are links; a script that writes to an absolute path writes there, as it always does.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Scratch"]

COPIED = 4 << 20  # files up to this size are copied
MOST_FILES = 5000
_SKIPPED = frozenset(
    {"__pycache__", ".git", ".hg", ".venv", "venv", "node_modules", ".mypy_cache", ".pytest_cache"}
)


@dataclass(frozen=True)
class Scratch:
    """The folder in which a script runs, and the user's folders that it mirrors."""

    folder: Path
    script: Path
    roots: tuple[tuple[str, str], ...]

    @classmethod
    def mirror(cls, base: Path, current: Path, script: Path) -> Scratch:
        """Mirror the current folder, and the script's own folder if it is another one, below `base`."""
        current, script = current.resolve(), script.resolve()
        folder = base / "work"
        pairs = [(folder, current)]
        if not script.is_relative_to(current) or _huge(current):
            pairs = [(folder, script.parent)]
            if current not in (script.parent, *script.parent.parents):
                folder.mkdir(parents=True)
        for copy, original in pairs:
            _copy(original, copy)
        seen = pairs[-1][0] / script.relative_to(pairs[-1][1])
        return cls(folder, seen, tuple((f"{a}/", f"{b}/") for a, b in pairs))

    @classmethod
    def in_place(cls, current: Path, script: Path) -> Scratch:
        """The user's folders themselves."""
        script = script.resolve()
        return cls(current, script, ((f"{script.parent}/", f"{script.parent}/"),))


def _huge(folder: Path) -> bool:
    """True if a folder has too many files for a mirror (a home folder, for example)."""
    count = 0
    for _, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if f not in _SKIPPED and not f.startswith(".venv")]
        count += len(files)
        if count > MOST_FILES:
            return True
    return False


def _copy(original: Path, copy: Path) -> None:
    count = 0
    for place, folders, files in os.walk(original):
        folders[:] = [f for f in folders if f not in _SKIPPED and not f.startswith(".venv")]
        below = copy / Path(place).relative_to(original)
        below.mkdir(parents=True, exist_ok=True)
        for name in files:
            count += 1
            if count > MOST_FILES:
                return
            _bring(Path(place) / name, below / name)


def _bring(source: Path, target: Path) -> None:
    try:
        if source.stat().st_size <= COPIED:
            shutil.copy2(source, target)
        else:
            target.symlink_to(source)
    except OSError:  # a socket, a dangling link, a file that nobody may read: the script cannot use it either
        return
