"""What is built inside a block is collected."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["Collected"]

T = TypeVar("T")


class Collected(Generic[T]):
    """A list that code inside a block adds to, for each thread and context."""

    def __init__(self, name: str) -> None:
        self._found: contextvars.ContextVar[list[T] | None] = contextvars.ContextVar(name, default=None)

    @property
    def found(self) -> list[T] | None:
        """The list of the innermost block, None outside of all."""
        return self._found.get()

    @contextlib.contextmanager
    def inside(self, found: list[T]) -> Iterator[list[T]]:
        """A block whose code adds to a list."""
        token = self._found.set(found)
        try:
            yield found
        finally:
            self._found.reset(token)
