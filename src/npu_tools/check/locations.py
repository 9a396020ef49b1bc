"""Locates user code: the innermost frame that belongs to the script or a module beside it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import FrameType

__all__ = ["Roots"]


@dataclass(frozen=True)
class Roots:
    """The user's folders: as the process sees them (a copy) and as the user knows them."""

    folders: tuple[
        tuple[str, str], ...
    ]  # (as the process sees it, as the user knows it), with a slash at the end

    def frame(self, start: FrameType | None = None, skip: int = 1) -> FrameType | None:
        """The innermost frame of user code, starting at a frame or at the caller."""
        frame = sys._getframe(skip + 1) if start is None else start
        while frame is not None:
            if self.owns(frame.f_code.co_filename):
                return frame
            frame = frame.f_back  # type: ignore[assignment]
        return None

    def here(self) -> str:
        """The line of user code that led here, such as `train.py:12`; "" if there is none."""
        frame = self.frame(skip=2)
        return "" if frame is None else f"{self.name(frame.f_code.co_filename)}:{frame.f_lineno}"

    def owns(self, file: str) -> bool:
        """True if a file is the user's."""
        return any(file.startswith(seen) for seen, _ in self.folders) and "/site-packages/" not in file

    def name(self, file: str) -> str:
        """A file's path as the user knows it, relative to its folder.

        >>> Roots((("/scratch/a/", "/project/"),)).name("/scratch/a/data/load.py")
        'data/load.py'
        """
        for seen, _ in self.folders:
            if file.startswith(seen):
                return file[len(seen) :]
        return file
