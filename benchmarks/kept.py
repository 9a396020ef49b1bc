"""What a benchmark has measured, kept in a file so that a later run goes on with what is missing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["read", "write"]


def read(path: Path | None) -> dict[str, dict[str, Any]]:
    """What an earlier run has kept, by title; nothing when there is no file.

    >>> read(None)
    {}
    """
    return json.loads(path.read_text()) if path is not None and path.exists() else {}


def write(path: Path | None, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Keep what was found, the file never half written; without a file nothing is kept.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder) / "rows.json", {"lstm": {"seconds": 0.25}})
    ...     read(Path(folder) / "rows.json")
    {'lstm': {'seconds': 0.25}}
    """
    if path is not None:
        aside = path.with_suffix(".part")
        aside.write_text(json.dumps(found, indent=1))
        aside.replace(path)
