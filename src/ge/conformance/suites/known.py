"""The list of tests that are known to fail on the NPU, each with its reason."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings it
    import tomli as tomllib  # type: ignore[import-not-found,no-redef]

__all__ = ["Known", "known_file", "read_known"]


@dataclass(frozen=True)
class Known:
    """Tests whose full name matches one of the expressions, and the reason why they fail."""

    tests: tuple[str, ...]
    reason: str

    def matches(self, name: str) -> bool:
        return any(re.fullmatch(test, name) for test in self.tests)


def known_file(suite: str) -> Path:
    """Path of a suite's list in this package."""
    return Path(__file__).parents[1] / "known" / f"{suite}.toml"


def read_known(path: Path) -> tuple[Known, ...]:
    """Read the entries of a list; a missing file is an empty list."""
    if not path.exists():
        return ()
    entries = tomllib.loads(path.read_text()).get("known", [])
    return tuple(Known(tuple(entry["tests"]), entry["reason"]) for entry in entries)
