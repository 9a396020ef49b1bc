"""Python's garbage collector, held back while a compile makes many objects that live on."""

from __future__ import annotations

import gc
import threading
from contextlib import ContextDecorator

__all__ = ["collection_paused"]

_lock = threading.Lock()
_depth = 0
_was_enabled = False


class collection_paused(ContextDecorator):
    """No cycles are collected inside; blocks may be nested and run in several threads at once.

    A graph is some hundred thousand objects in cycles: the collector would look at all of them again and again (a
    fifth of the time of compiling a transformer) and find nothing to free.

    >>> with collection_paused():
    ...     gc.isenabled()
    False
    """

    def __enter__(self) -> collection_paused:
        global _depth, _was_enabled
        with _lock:
            if _depth == 0:
                _was_enabled = gc.isenabled()
                gc.disable()
            _depth += 1
        return self

    def __exit__(self, *error: object) -> None:
        global _depth
        with _lock:
            _depth -= 1
            if _depth == 0 and _was_enabled:
                gc.enable()
