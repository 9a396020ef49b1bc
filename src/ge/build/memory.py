"""Memory planning: assigns arena offsets to buffers by lifetime; tries several orders and keeps the smallest arena.

Pieces that are live at the same time never overlap (`check` proves it). Some may have fixed offsets: values that
another program left in the same memory. The lower bound is the peak of live memory; a plan that reaches it is optimal
for the given task order.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["ALIGNMENT", "MemoryPlan", "Piece", "check", "lower_bound", "plan_memory"]

ALIGNMENT = 64
GOOD_ENOUGH = 1.001  # over the lower bound: searching further costs more than it saves


@dataclass(frozen=True, slots=True)
class Piece:
    """Memory of some size that is live from the first to the last moment, inclusive."""

    nbytes: int
    first: int
    last: int

    @property
    def span(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True)
class MemoryPlan:
    """An offset for each piece, and the quality of the plan."""

    offsets: tuple[int, ...]
    nbytes: int
    lower_bound: int
    strategy: str

    @property
    def ratio(self) -> float:
        """Size over the lower bound; 1.0 is optimal."""
        return self.nbytes / self.lower_bound if self.lower_bound else 1.0


# Placement orders, best for most models first.
_STRATEGIES: dict[str, Callable[[Piece], tuple[int, ...]]] = {
    "size": lambda p: (-p.nbytes, p.first),
    "area": lambda p: (-p.nbytes * p.span, p.first),
    "lifetime": lambda p: (-p.span, -p.nbytes),
    "time": lambda p: (p.first, -p.nbytes),
}


def plan_memory(pieces: Sequence[Piece], fixed: Mapping[int, int] | None = None) -> MemoryPlan:
    """The smallest plan of all strategies; a strategy that (nearly) reaches the lower bound ends the search.

    `fixed` are the offsets of pieces that are already placed.
    """
    aligned = [Piece(_aligned(p.nbytes), p.first, p.last) for p in pieces]
    bound = lower_bound(aligned)
    best: MemoryPlan | None = None
    for name, key in _STRATEGIES.items():
        order = sorted(range(len(aligned)), key=lambda i: key(aligned[i]))
        for fit in (_first_fit, _best_fit):
            offsets = _place(aligned, order, fit, fixed or {})
            total = max((o + p.nbytes for o, p in zip(offsets, aligned, strict=True)), default=0)
            if best is None or total < best.nbytes:
                best = MemoryPlan(tuple(offsets), total, bound, f"{name}/{fit.__name__[1:]}")
            if best.nbytes <= bound * GOOD_ENOUGH:
                return best
    assert best is not None
    return best


def lower_bound(pieces: Sequence[Piece]) -> int:
    """The peak of live memory."""
    changes: dict[int, int] = {}
    for piece in pieces:
        changes[piece.first] = changes.get(piece.first, 0) + piece.nbytes
        changes[piece.last + 1] = changes.get(piece.last + 1, 0) - piece.nbytes
    live = most = 0
    for time in sorted(changes):
        live += changes[time]
        most = max(most, live)
    return most


def check(pieces: Sequence[Piece], offsets: Sequence[int]) -> None:
    """Raise AssertionError if two pieces that are live at the same time overlap."""
    events: list[tuple[int, int, int]] = []
    for index, piece in enumerate(pieces):
        if piece.nbytes:
            events += [(piece.first, 1, index), (piece.last + 1, 0, index)]
    live: list[tuple[int, int, int]] = []  # offset, end, index; never overlapping, hence sorted by end too
    for _, starts, index in sorted(events):
        entry = (offsets[index], offsets[index] + pieces[index].nbytes, index)
        place = bisect.bisect_left(live, entry)
        if not starts:
            live.pop(place)
            continue
        before, after = live[place - 1 : place], live[place : place + 1]
        clash = [n for n in (*before, *after) if n[0] < entry[1] and entry[0] < n[1]]
        assert not clash, f"pieces {index} and {clash[0][2]} are in use at the same time and overlap"
        live.insert(place, entry)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _place(
    pieces: Sequence[Piece],
    order: Sequence[int],
    fit: Callable[[list[tuple[int, int]], int], int],
    fixed: Mapping[int, int],
) -> list[int]:
    """Place each piece, in order, in a gap among the placed pieces that are live at the same time."""
    offsets = [fixed.get(index, 0) for index in range(len(pieces))]
    placed = _Timeline(pieces)
    for index in fixed:
        placed.add(index)
    for index in order:
        piece = pieces[index]
        if piece.nbytes and index not in fixed:
            taken = sorted((offsets[i], offsets[i] + pieces[i].nbytes) for i in placed.overlapping(piece))
            offsets[index] = fit(taken, piece.nbytes)
            placed.add(index)
    return offsets


def _gaps(taken: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    end = 0
    for start, stop in taken:
        if start > end:
            yield end, start - end
        end = max(end, stop)
    yield end, 1 << 62


def _first_fit(taken: list[tuple[int, int]], nbytes: int) -> int:
    return next(start for start, room in _gaps(taken) if room >= nbytes)


def _best_fit(taken: list[tuple[int, int]], nbytes: int) -> int:
    return min((room, start) for start, room in _gaps(taken) if room >= nbytes)[1]


class _Timeline:
    """The placed pieces by time: a segment tree of live pieces, and a list of starting points."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces
        self._moments = sorted({p.first for p in pieces})
        self._size = 1 << max(len(self._moments) - 1, 0).bit_length()
        self._alive: list[list[int]] = [[] for _ in range(2 * self._size)]
        self._starting: list[list[int]] = [[] for _ in self._moments]

    def add(self, index: int) -> None:
        """Insert a piece: it is live from its first to its last moment."""
        piece = self._pieces[index]
        begin = bisect.bisect_left(self._moments, piece.first)
        end = bisect.bisect_right(self._moments, piece.last)
        self._starting[begin].append(index)
        low, high = begin + self._size, end + self._size
        while low < high:
            if low & 1:
                self._alive[low].append(index)
                low += 1
            if high & 1:
                high -= 1
                self._alive[high].append(index)
            low >>= 1
            high >>= 1

    def overlapping(self, piece: Piece) -> list[int]:
        """The pieces whose live ranges overlap that of another piece."""
        begin = bisect.bisect_left(self._moments, piece.first)
        end = bisect.bisect_right(self._moments, piece.last)
        found: list[int] = []
        slot = begin + self._size
        while slot:
            found += self._alive[slot]
            slot >>= 1
        for moment in range(begin + 1, end):
            found += self._starting[moment]
        return found
