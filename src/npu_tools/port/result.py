"""Result of porting a file: the new text, a reason for each change, and the changes left to the user."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field

__all__ = ["Change", "Leftover", "Ported"]


@dataclass(frozen=True, order=True)
class Change:
    """A change and its reason; the line is that of the original file."""

    line: int
    reason: str


@dataclass(frozen=True, order=True)
class Leftover:
    """A place that could not be ported, and the remedy."""

    line: int
    text: str
    remedy: str


@dataclass
class Ported:
    """A file before and after."""

    path: str
    before: str
    after: str
    changes: list[Change] = field(default_factory=list)
    leftovers: list[Leftover] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        return self.before != self.after

    def diff(self) -> str:
        """A unified diff that `patch -p1` and `git apply` take."""
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            f"a/{self.path.lstrip('/')}",
            f"b/{self.path.lstrip('/')}",
        )
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
        )
