"""The cache in memory: values by key, bounded, the least recently used dropped first, for several threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

__all__ = ["BoundedCache"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """At most `limit` values by key. A key of None is never found and never kept.

    >>> cache = BoundedCache[str, int](2)
    >>> for name in ("a", "b", "a", "c"):
    ...     _ = cache.put(name, len(cache))
    >>> sorted(cache)
    ['a', 'c']
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K | None) -> V | None:
        """The value of a key, which becomes the most recently used one."""
        with self._lock:
            if key is None or key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, key: K | None, value: V) -> V:
        """Keep a value, and drop those unused for longest beyond the limit; returns it."""
        with self._lock:
            if key is not None:
                self._values[key] = value
                self._values.move_to_end(key)
                while len(self._values) > self.limit:
                    self._values.popitem(last=False)
        return value

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()

    def values(self) -> list[V]:
        """The values kept now, least recently used first."""
        with self._lock:
            return list(self._values.values())

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[K]:
        with self._lock:
            return iter(list(self._values))

    def __len__(self) -> int:
        return len(self._values)
