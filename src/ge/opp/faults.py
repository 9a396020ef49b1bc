"""Collects the errors in parts of an operator project, so that the other parts are still built."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ge.errors import GeError

__all__ = ["Faults"]


class Faults:
    """Errors of parts, in the order in which they were found; a strict list raises the first one.

    >>> faults = Faults()
    >>> with faults.part():
    ...     raise GeError("E10612", "a part is wrong")
    >>> [error.cause for error in faults.found]
    ['a part is wrong']
    """

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self.found: list[GeError] = []

    @contextlib.contextmanager
    def part(self) -> Iterator[None]:
        """A part of a project: records its error and continues."""
        try:
            yield
        except GeError as error:
            if self.strict:
                raise
            self.found.append(error)
