"""The store of compiled models on disk: sealed `.om` files named by content key.

1. A file that is damaged, or not sealed with the user's key, is recompiled; a warning names it.
2. Files are written to a temporary name and renamed, so that several processes may share a folder.
3. Least recently used files are evicted when the folder exceeds its limit; a model larger than a tenth of the free disk
   space is not stored.
4. An unwritable folder or a full disk is one warning: the next process compiles again.
"""

from __future__ import annotations

import contextlib
import shutil
import warnings
from pathlib import Path

from ge.errors import GeError
from ge.model import om
from ge.model.folder import CacheFolder, reason
from npu_runtime import environment

__all__ = ["LIMIT_BYTES", "ModelStore"]

LIMIT_BYTES = 4 << 30
LARGEST_MODEL = 1 << 30  # bytes of a stored model's constants
_CHECKED_EVERY = 64 << 20  # bytes written by this process between checks of the folder's size

_written: dict[Path, int] = {}  # bytes since the last check of a folder's size


class ModelStore:
    """A folder of compiled models by key, a string of hexadecimal digits."""

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = folder
        self._limit = limit_bytes

    def path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.om"

    def read(self, key: str) -> om.Package | None:
        """The package of a key; marks it as used."""
        path = self.path(key)
        if not path.is_file():
            return None
        try:
            package = om.read(path)
        except (GeError, KeyError, TypeError, ValueError) as error:
            _warn(path, str(error))
            return None
        if not package.trusted:
            _warn(path, "it is not sealed with the key of this user")
            return None
        CacheFolder.use(path)
        return package

    def write(self, key: str, package: om.Package) -> None:
        """Store a package, unless its constants are too large."""
        nbytes = sum(array.nbytes for plan in package.plans for array in plan.constants)
        if nbytes > min(LARGEST_MODEL, self._limit // 2):
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            free = shutil.disk_usage(self.folder).free
            if nbytes > free // 10:
                environment.unwritable(
                    self.folder, f"{nbytes:,} bytes are more than a tenth of the free {free:,}"
                )
                return
            path = om.write(package, self.path(key), portable=False)
        except (GeError, OSError) as error:
            environment.unwritable(self.folder, reason(error))
            return
        self._count(path)

    def _count(self, path: Path) -> None:
        """Bound the folder once many bytes have been written."""
        with contextlib.suppress(OSError):  # another process has removed the file
            size = path.stat().st_size
            before = _written.get(self.folder)
            _written[self.folder] = (before or 0) + size
            if before is None or before + size > min(_CHECKED_EVERY, self._limit // 8):
                _written[self.folder] = 0
                CacheFolder(self.folder, self._limit, "??/*.om").bound()


def _warn(path: Path, why: str) -> None:
    warnings.warn(
        f"the compiled model {path} is not used and compiled anew: {why}", RuntimeWarning, stacklevel=4
    )
