"""Transposes square tiles of vectors in registers."""

from __future__ import annotations

from collections.abc import Sequence

from tbe.ir import Builder, Value

__all__ = ["transposed"]


def transposed(b: Builder, rows: list[Value], size: int) -> list[Value]:
    """The columns of a square of vectors: unpack within 16-byte parts, then exchange the parts."""
    side = len(rows)
    part = min(side, 16 // size)
    for step in range(part.bit_length() - 1):
        half = 1 << step
        mixed = list(rows)
        low: list[int] = []
        high: list[int] = []
        for start in range(0, side, part):  # one 16-byte part of the lanes
            units = part // half
            for unit in range(units // 2):
                for source, place in ((0, low), (units // 2, high)):
                    at = start + (source + unit) * half
                    place.extend(range(at, at + half))
                    place.extend(range(side + at, side + at + half))
        for block in range(0, side, 2 * half):
            for j in range(half):
                pair = rows[block + j], rows[block + half + j]
                mixed[block + 2 * j] = b.shuffle(*pair, low)
                mixed[block + 2 * j + 1] = b.shuffle(*pair, high)
        rows = mixed
    parts = side // part
    groups = [_exchanged(b, [rows[group * part + j] for group in range(parts)], part) for j in range(part)]
    return [groups[j][at] for at in range(parts) for j in range(part)]


def _exchanged(b: Builder, rows: list[Value], part: int) -> list[Value]:
    """For each part: that part of every row, concatenated."""
    lanes = rows[0].lanes

    def pick(pair: Sequence[Value], which: Sequence[int]) -> Value:
        choice = [p * part + k for p in which for k in range(part)]
        return b.shuffle(pair[0], pair[1], choice + [lanes + c for c in choice])

    if len(rows) == 1:
        return rows
    if len(rows) == 2:
        return [pick(rows, [at]) for at in range(2)]
    assert len(rows) == 4
    even, odd = ([pick(rows[n : n + 2], which) for n in (0, 2)] for which in ((0, 2), (1, 3)))
    return [pick(halves, which) for which in ((0, 2), (1, 3)) for halves in (even, odd)]
