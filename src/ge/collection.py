"""Memory of compiles: Python's collector is held back while they run, and what they leave is given back after."""

from __future__ import annotations

import gc
import threading
from contextlib import ContextDecorator

import npu_runtime

__all__ = ["collection_paused"]

_MANY = 10_000  # objects made inside, from which there is memory to give back to the system

_lock = threading.Lock()
_depth = 0
_was_enabled = False


class collection_paused(ContextDecorator):
    """No cycles are collected inside; blocks may be nested and run in several threads at once.

    A graph is some hundred thousand objects in cycles: the collector would look at all of them again and again (a
    fifth of the time of compiling a transformer) and find nothing to free. When the last block ends, what was made
    inside and is in use no more is freed, while it is young: later it would wait for a collection of all objects of
    the process. So the block belongs around the whole compile, parsing included.

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
            if _depth or not _was_enabled:
                return
            gc.enable()
        _free_what_was_left()


def _free_what_was_left() -> None:
    """Free the cycles among young objects; after many of them, give memory back to the system."""
    many = gc.get_count()[0] >= _MANY
    gc.collect(0)
    if many:
        npu_runtime.reclaim()
