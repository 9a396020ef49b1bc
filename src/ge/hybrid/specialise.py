"""Specialisation: compiles programs of one graph for the signatures (sizes, choices, values) it is called with.

1. A signature has one program, created at its first call by one thread.
2. At most `most` programs are kept; the oldest is dropped first. If programs `weigh` more than `MOST_BYTES` in total,
   only the last two are kept.
3. If the graph also has a dynamic-shape form, a signature gets its own program after `HOT_CALLS` calls. Each program
   beyond the first `free` ones doubles that number.
4. Parameters are constants of a program until one of them changes. Then they are inputs, until they have been unchanged
   for as many calls as `Patience` says; every change doubles that number.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

__all__ = ["HOT_CALLS", "Patience", "Specialiser"]

HOT_CALLS = 4
MOST_BYTES = 2 << 30
MOST_COUNTED = 4096  # signatures whose calls are counted
MOST_PATIENCE = 1 << 20

K = TypeVar("K", bound=Hashable)
P = TypeVar("P")


class Specialiser(Generic[K, P]):
    """The programs of one graph by signature.

    >>> squares = Specialiser[int, int](most=2)
    >>> [squares.program(n, lambda n=n: n * n) for n in (1, 2, 3, 1)], squares.made, list(squares)
    ([1, 4, 9, 1], 4, [3, 1])
    """

    def __init__(self, most: int, free: int = 0, weigh: Callable[[P], int] = lambda program: 0) -> None:
        self.most, self.free, self.weigh = most, free, weigh
        self.made = 0
        self.lock = threading.RLock()
        self._programs: dict[K, P] = {}
        self._calls: dict[K, int] = {}  # of signatures without a program
        self.find = self._programs.get  # the program of a signature, None before it is created; takes no lock

    def program(self, key: K, make: Callable[[], P]) -> P:
        """The program of a signature, created at the first call."""
        with self.lock:
            if key not in self._programs:
                self.made += 1
                made = make()
                while len(self._programs) >= self.most or self._too_heavy(made):
                    del self._programs[next(iter(self._programs))]
                self._programs[key] = made
            return self._programs[key]

    def _too_heavy(self, made: P) -> bool:
        """True if a new program and more than one other would take too much memory."""
        return len(self._programs) > 1 and sum(map(self.weigh, [made, *self._programs.values()])) > MOST_BYTES

    def is_hot(self, key: K) -> bool:
        """Count this call; True if the signature has been called often enough for its own program."""
        with self.lock:
            calls = self._calls.pop(key, 0) + 1
            if calls > HOT_CALLS << max(self.made - self.free, 0):
                return True
            if len(self._calls) >= MOST_COUNTED:
                del self._calls[next(iter(self._calls))]
            self._calls[key] = calls
            return False

    def forget(self, which: Callable[[K], bool] = lambda key: True) -> None:
        """Drop the programs of some signatures."""
        with self.lock:
            for key in [key for key in self._programs if which(key)]:
                del self._programs[key]

    def values(self) -> list[P]:
        """The cached programs."""
        return list(self._programs.values())

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._programs))

    def __len__(self) -> int:
        return len(self._programs)


class Patience(Generic[K]):
    """The number of calls for which parameters must be unchanged, by signature.

    >>> patience = Patience[str](first=16)
    >>> [patience.lengthen(key) for key in ("a", "a", "b")]
    [16, 32, 16]
    """

    def __init__(self, first: int) -> None:
        self.first = first
        self._calls: dict[K, int] = {}

    def lengthen(self, key: K) -> int:
        """The number of calls after one more change."""
        self._calls[key] = min(2 * self._calls.get(key, 0) or self.first, MOST_PATIENCE)
        return self._calls[key]
