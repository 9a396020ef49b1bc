"""Lines of the user's own files: the innermost frame that belongs to the script or a module beside it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import FrameType

__all__ = ["Roots"]


@dataclass(frozen=True)
class Roots:
    """Folders whose files are the user's, by the folder that a process sees and the one the user knows."""

    folders: tuple[
        tuple[str, str], ...
    ]  # (as the process sees it, as the user knows it), with a slash at the end

    def frame(self, start: FrameType | None = None, skip: int = 1) -> FrameType | None:
        """The innermost frame of the user's code, from a frame or from the caller outward."""
        frame = sys._getframe(skip + 1) if start is None else start
        while frame is not None:
            if self.owns(frame.f_code.co_filename):
                return frame
            frame = frame.f_back  # type: ignore[assignment]
        return None

    def here(self, skip: int = 1) -> str:
        """The line of the user's code that led here: `train.py:12`, "" where there is none."""
        frame = self.frame(skip=skip + 1)
        return "" if frame is None else f"{self.name(frame.f_code.co_filename)}:{frame.f_lineno}"

    def owns(self, file: str) -> bool:
        """Whether a file is the user's."""
        return any(file.startswith(seen) for seen, _ in self.folders) and "/site-packages/" not in file

    def name(self, file: str) -> str:
        """A file as the user knows it, relative to its folder.

        >>> Roots((("/scratch/a/", "/project/"),)).name("/scratch/a/data/load.py")
        'data/load.py'
        """
        for seen, _ in self.folders:
            if file.startswith(seen):
                return file[len(seen) :]
        return file
