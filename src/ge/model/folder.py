"""Size-bounded cache folders of sealed container files: kernels, models and graphs.

Files are written to a temporary name and renamed, so that several processes may share a folder; foreign or damaged code
is never run but regenerated. Least recently used files are evicted when a folder exceeds its limit.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from ge.errors import GeError
from ge.model import keys
from ge.model.container import Section, read_sections, write_sections
from npu_runtime import environment

__all__ = ["CacheFolder", "reason"]


class _NoKeyError(Exception):
    """There is no key to seal a file with."""


class CacheFolder:
    """The files of a folder whose relative paths match a pattern, and their limit in bytes."""

    def __init__(self, path: Path, limit_bytes: int, *patterns: str) -> None:
        self.path = path
        self._limit = limit_bytes
        self._patterns = patterns

    def read(self, name: str, largest: int) -> dict[str, bytes] | None:
        """The sections of a file that this user sealed under this name, None if there is none."""
        path = self.path / name
        try:
            if path.stat().st_size > largest:
                return None
            contents = read_sections(memoryview(path.read_bytes()), name)
        except (OSError, GeError):
            return None
        sections = {label: bytes(view) for label, view in contents.sections.items()}
        if not keys.verify(contents.signed, contents.seal) or sections.pop("name", b"") != name.encode():
            return None
        self.use(path)
        return sections

    def write(self, name: str, sections: Mapping[str, bytes]) -> None:
        """Store a file; an unwritable folder is one warning. Nothing is stored without a key."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            pieces = {label: Section([data]) for label, data in {**sections, "name": name.encode()}.items()}
            write_sections(self.path / name, pieces, _seal)
        except _NoKeyError:  # keys.sign has said so
            return
        except OSError as error:
            environment.unwritable(self.path, reason(error))
            return
        self.bound()

    @staticmethod
    def use(path: Path) -> None:
        """Mark a file as used."""
        with contextlib.suppress(OSError):
            os.utime(path)

    def bound(self) -> None:
        """Evict least recently used files until half of the limit is left."""
        with contextlib.suppress(OSError):
            files = [(path.stat(), path) for form in self._patterns for path in self.path.glob(form)]
            total = sum(status.st_size for status, _ in files)
            if total <= self._limit:
                return
            for status, path in sorted(files, key=lambda file: file[0].st_mtime):
                if total <= self._limit // 2:
                    break
                path.unlink(missing_ok=True)
                total -= status.st_size


def _seal(content: bytes) -> bytes:
    seal = keys.sign(content)
    if not any(seal):
        raise _NoKeyError
    return seal


def reason(error: Exception) -> str:
    """Why a file cannot be written, as the operating system says it."""
    found = error.__cause__ if isinstance(error, GeError) else error
    return getattr(found, "strerror", None) or str(error)
