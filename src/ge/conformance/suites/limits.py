"""Test selection and time limits of a suite, and the outcome of a test."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Limits", "Outcome"]


@dataclass(frozen=True)
class Outcome:
    """How one test ended."""

    status: str  # passed, failed, skipped, xfailed, crash, hang
    message: str = ""

    @property
    def bad(self) -> bool:
        return self.status in ("failed", "crash", "hang")


@dataclass(frozen=True)
class Limits:
    """Test selection and time limits."""

    select: str = ""  # FILE or FILE::TEST, two regular expressions
    sample: int = 1  # run one test in `sample`,
    residue: int = 0  # the ones whose checksum has this residue
    seconds: float = 120.0  # per test
    minutes: float = 0.0  # for the whole suite; 0: no limit
    jobs: int = 1
    parts: int = 1  # processes that share the tests of a file
    part: int = 0

    def wants(self, name: str) -> bool:
        """True if the test is selected."""
        file, _, test = name.partition("::")
        return (
            self.wants_file(file)
            and bool(re.search(self.select.partition("::")[2], test))
            and zlib.crc32(name.encode()) % self.sample == self.residue
        )

    def mine(self, name: str) -> bool:
        """True if the test belongs to this process's share of its file."""
        return zlib.crc32(name.encode()) // self.sample % self.parts == self.part

    def wants_file(self, file: str) -> bool:
        """True if the file may contain selected tests."""
        return bool(re.search(self.select.partition("::")[0], file))

    def chosen(self, outcomes: Mapping[str, Outcome]) -> dict[str, Outcome]:
        """The outcomes of the selected tests; drops those of an earlier, larger selection."""
        return {n: o for n, o in outcomes.items() if (self.wants(n) if "::" in n else self.wants_file(n))}
