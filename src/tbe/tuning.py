"""Measured choices of loops, cached between processes.

The generator chooses unrolling, pieces and stores by rules. `tbe.bench --tune` measures other choices; faster ones are
stored in `tuning.json` in the folder NPU_CACHE_DIR (or the user's cache folder), by the structure of the expression and
the processor, and every later build of the same expression uses them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_runtime import environment
from tbe.target import machine_for

__all__ = ["Tuning", "forget", "remember", "tuning_file", "tuning_of"]

MAX_ENTRIES = 10_000
_LIMITS = {"unroll": 16, "chunk": 1 << 20, "tile": 128, "pairs": 1, "streams": 1}


@dataclass(frozen=True)
class Tuning:
    """Choices for one kernel; None leaves a choice to the rules.

    >>> Tuning(unroll=4).given()
    {'unroll': 4}
    """

    unroll: int | None = None  # vectors per loop body
    chunk: int | None = None  # elements per unit of parallel work, without reductions
    tile: int | None = None  # elements read at a time in a transpose
    pairs: bool | None = None  # whether two rows are interleaved, with reductions along the row
    streams: bool | None = None  # whether outputs use non-temporal stores

    def given(self) -> dict[str, int]:
        """The choices that are set."""
        return {k: int(v) for k, v in dataclasses.asdict(self).items() if v is not None}


_lock = threading.Lock()
_loaded: dict[Path, dict[str, dict[str, int]]] = {}


def tuning_file() -> Path:
    """The file of stored choices."""
    return environment.cache_folder() / "tuning.json"


def tuning_of(structure: str, target: str = "host") -> Tuning | None:
    """The stored choices for an expression, None if it was not tuned on this kind of processor."""
    table = _table(tuning_file())
    if not table:
        return None
    found = table.get(_key(structure, target))
    return Tuning(**_checked(found)) if found else None


def remember(structure: str, tuning: Tuning, target: str = "host") -> None:
    """Store choices for an expression."""
    _change(lambda table: table.__setitem__(_key(structure, target), tuning.given()))


def forget(structure: str, target: str = "host") -> None:
    """Return an expression to the rules."""
    _change(lambda table: table.pop(_key(structure, target), None))


def _key(structure: str, target: str) -> str:
    machine = machine_for(target)
    return f"{machine.cpu}:{structure}"


def _table(path: Path) -> dict[str, dict[str, int]]:
    with _lock:
        if path not in _loaded:
            _loaded[path] = _read(path)
        return _loaded[path]


def _read(path: Path) -> dict[str, dict[str, int]]:
    """The file's entries; a damaged file counts as empty."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict) or len(content) > MAX_ENTRIES:
        return {}
    return {k: v for k, v in content.items() if isinstance(k, str) and isinstance(v, dict)}


def _checked(entry: dict[str, Any]) -> dict[str, Any]:
    """The entries that exist and have valid values."""
    found: dict[str, Any] = {}
    for name, most in _LIMITS.items():
        value = entry.get(name)
        if isinstance(value, int) and 0 <= value <= most:
            found[name] = bool(value) if name in ("pairs", "streams") else max(int(value), 1)
    return found


def _change(change: Any) -> None:
    path = tuning_file()
    with _lock:
        table = _read(path)
        change(table)
        _loaded[path] = table
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
        try:
            temporary.write_text(json.dumps(table, indent=0))
            temporary.replace(path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
