"""Sums rows by index, in row order: a scatter, which no tensor expression can describe.

Rows of one index form a chain: the first of them sums all, so that the same inputs give the same bits.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tbe import convert
from tbe import expr as e
from tbe.cuda.architectures import architecture_of, compile_to_ptx
from tbe.cuda.platforms import Nvptx, Platform, Simulated
from tbe.dtypes import DTYPES
from tbe.ir import Builder, Value
from tbe.target import compile_ir

__all__ = ["RowSums", "build_row_sums", "chains"]

_THREADS = 128
_COLUMNS = 4  # of a thread
_SYMBOL = "tbe_row_sums"


@dataclass(frozen=True)
class RowSums:
    """A kernel with parameters indices, rows, first and next of each chain, and the result, zero where no row goes."""

    symbol: str
    code: bytes
    blocks: int
    threads: int
    ir: str


def chains(indices: e.Tensor) -> list[e.Tensor]:
    """For each row the first row of its index and the next row after it (the number of rows if there is none)."""
    (count,) = indices.shape

    def equal(t: e.Scalar, s: e.Scalar) -> e.Scalar:
        return e.binary("eq", indices[(t,)], indices[(s,)])

    first = e.compute((count, count), lambda t, s: e.select(equal(t, s), e.cast(s, "int32"), count))
    later = e.compute((count, count), lambda t, s: e.select(equal(t, s) & (s > t), e.cast(s, "int32"), count))
    return [e.reduce("min", pairs, 1) for pairs in (first, later)]


@functools.lru_cache(256)
def build_row_sums(
    dtype: str,
    index_dtype: str,
    rows: int,
    width: int,
    results: int,
    architecture: str,
    *,
    simulated: bool = False,
) -> RowSums:
    """The kernel for `rows` rows of `width` elements; indices outside the results are ignored, sums round once."""
    platform: Platform = Simulated() if simulated else Nvptx(architecture_of(architecture))
    pieces = -(-width // (_THREADS * _COLUMNS))
    text = _Writer(Builder(platform.machine), platform, dtype, index_dtype, rows, width).render(
        pieces, results
    )
    code = (
        compile_ir(text, platform.machine) if simulated else compile_to_ptx(text, platform.machine).encode()
    )
    return RowSums(_SYMBOL, code, rows * pieces, _THREADS, text)


class _Writer:
    """The work of one thread: a few columns of all rows of a chain."""

    def __init__(
        self, b: Builder, platform: Platform, dtype: str, index_dtype: str, rows: int, width: int
    ) -> None:
        self.b, self.platform = b, platform
        self.dtype, self.index_dtype = dtype, index_dtype
        self.rows, self.width = rows, width
        self.indices, self.updates, self.first, self.next, self.result = platform.begin(b, 5)

    def render(self, pieces: int, results: int) -> str:
        b = self.b
        thread, block = self.platform.thread(b), self.platform.block(b)
        row = b.op("udiv", block, b.like(block, pieces))
        piece = b.op("urem", block, b.like(block, pieces))
        index = self._load(self.indices, self.index_dtype, self._wide(row))
        index = b.convert("sext", index, "i64") if index.elem == "i32" else index
        leads = b.icmp("eq", self._load(self.first, "int32", self._wide(row)), row)
        counts = b.icmp("ult", index, b.like(index, results))
        begin = b.op("add", b.op("mul", piece, b.like(piece, _THREADS * _COLUMNS)), thread)
        b.when(b.op("and", leads, counts), lambda: self._sum(row, index, begin))
        b.line("ret void")
        kinds = ["noalias readonly"] * 4 + ["noalias writeonly"]
        return self.platform.module(b, _SYMBOL, _THREADS, 0, kinds)

    def _sum(self, row: Value, index: Value, begin: Value) -> None:
        b = self.b
        columns = [b.op("add", begin, b.like(begin, k * _THREADS)) for k in range(_COLUMNS)]
        inside = [b.icmp("ult", c, b.like(c, self.width)) for c in columns]
        places = [self._wide(b.select(i, c, b.like(c, 0))) for i, c in zip(inside, columns, strict=True)]
        before, head, body, done = b.block, b.label("head"), b.label("body"), b.label("end")
        sums = [self._row(self._wide(row), place) for place in places]
        following = self._load(self.next, "int32", self._wide(row))
        b.line(f"br label %{head}")
        b.start_block(head)
        now = Value(b.fresh(), "i32", 1)
        totals = [Value(b.fresh(), sums[0].elem, 1) for _ in sums]
        after = [b.fresh() for _ in sums]
        step = b.fresh()
        b.line(f"{now.name} = phi i32 [ {following.name}, %{before} ], [ {step}, %{body} ]")
        for total, start, later in zip(totals, sums, after, strict=True):
            b.line(f"{total.name} = phi {total.elem} [ {start.name}, %{before} ], [ {later}, %{body} ]")
        more = b.icmp("slt", now, b.like(now, self.rows))
        b.line(f"br i1 {more.name}, label %{body}, label %{done}")
        b.start_block(body)
        add = "fadd" if totals[0].elem in ("float", "double") else "add"
        for total, place, later in zip(totals, places, after, strict=True):
            row_value = self._row(self._wide(now), place)
            b.line(f"{later} = {add} {total.elem} {total.name}, {row_value.name}")
        loaded = self._load(self.next, "int32", self._wide(now))
        b.line(f"{step} = add i32 {loaded.name}, 0")
        b.line(f"br label %{head}")
        b.start_block(done)
        base = b.op("mul", index, b.like(index, self.width))
        for total, place, is_inside in zip(totals, places, inside, strict=True):
            b.when(is_inside, lambda total=total, place=place: self._store(total, b.op("add", base, place)))  # type: ignore[misc]

    def _wide(self, x: Value) -> Value:
        return self.b.convert("zext", x, "i64")

    def _row(self, row: Value, column: Value) -> Value:
        """An element of the rows."""
        b = self.b
        at = b.op("add", b.op("mul", row, b.like(row, self.width)), column)
        return self._load(self.updates, self.dtype, at)

    def _load(self, base: Value, dtype: str, at: Value) -> Value:
        b, elem = self.b, convert.memory_type(self.b, dtype)
        return convert.from_memory(b, b.load(elem, 1, b.gep(elem, base, at), DTYPES[dtype].bits // 8), dtype)

    def _store(self, x: Value, at: Value) -> None:
        b, elem = self.b, convert.memory_type(self.b, self.dtype)
        value = convert.to_memory(b, convert.rounded(b, x, self.dtype), self.dtype)
        b.store(value, b.gep(elem, self.result, at), DTYPES[self.dtype].bits // 8)
