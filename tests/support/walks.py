"""The walks of docs/architecture.md, and the files of ours that a call really enters."""

from __future__ import annotations

import gc
import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCES = f"{ROOT / 'src'}/"


def documented(title: str) -> list[str]:
    """The Python files of a walk, in order; a native file must exist."""
    text = (ROOT / "docs/architecture.md").read_text()
    start = text.index(f"**{title}**")
    steps = re.findall(r"^\d+\. (.*)$", text[start : text.index("\n\n", start)], re.MULTILINE)
    files = [name for step in steps for name in re.findall(r"`([\w/]+/\w+\.(?:py|cc))`", step)]
    for name in files:
        assert (ROOT / name).exists() or (ROOT / "src" / name).exists(), f"{title}: {name} does not exist"
    return [name for name in files if name.endswith(".py")]


def _in_import(frame: FrameType | None) -> bool:
    """Whether a module of ours is being imported."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(SOURCES):
            return True
        frame = frame.f_back
    return False


class Entered:
    """Inside of it, the files below src/ are noted in the order in which a function of each is first called."""

    def __init__(self) -> None:
        self.files: list[str] = []

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(SOURCES):
            return
        name = name.removeprefix(SOURCES)
        if name not in self.files and not _in_import(frame):
            self.files.append(name)

    def __enter__(self) -> Entered:
        gc.collect()  # what other tests left behind ends before
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def check_walk(title: str, entered: Entered) -> None:
    """Compare a documented walk with the files that were entered."""
    wanted = documented(title)
    missing = [name for name in wanted if name not in entered.files]
    assert not missing, f"{title}: {missing} were not entered"
    order = sorted(wanted, key=entered.files.index)
    assert wanted == order, f"docs/architecture.md should name the files of {title!r} in this order: {order}"
