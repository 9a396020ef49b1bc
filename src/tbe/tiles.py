"""Square tiles of vectors transposed in registers."""

from __future__ import annotations

from tbe.ir import Builder, Value

__all__ = ["transposed"]


def transposed(b: Builder, rows: list[Value], size: int) -> list[Value]:
    """The columns of a square of vectors: unpacking within 16-byte parts, then exchanging the parts."""
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
    columns: list[Value] = []
    for at in range(parts):
        for j in range(part):
            columns.append(_gathered(b, [rows[group * part + j] for group in range(parts)], at, part))
    return columns


def _gathered(b: Builder, rows: list[Value], at: int, part: int) -> Value:
    """Part `at` of every row, one after another."""
    parts = len(rows)
    if parts == 1:
        return rows[0]
    lanes = rows[0].lanes
    if parts == 2:
        choice = [*range(at * part, (at + 1) * part), *range(lanes + at * part, lanes + (at + 1) * part)]
        return b.shuffle(rows[0], rows[1], choice)
    # two rows into one: parts at, at+2 of each; then the wanted halves of two such
    key = at % 2
    assert parts == 4
    order = [key, key + 2]

    def pick(first: Value, second: Value, which: list[int]) -> Value:
        choice = [p * part + k for p in which for k in range(part)]
        return b.shuffle(first, second, choice + [lanes + c for c in choice])

    first, second = pick(rows[0], rows[1], order), pick(rows[2], rows[3], order)
    return pick(first, second, [0, 2] if at < 2 else [1, 3])
