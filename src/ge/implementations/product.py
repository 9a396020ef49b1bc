"""Implementations of matrix products: Strassen's algorithm, few rows or terms, the library."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ge.implementations.base import Candidate, Library, Operation
from ge.plan import View
from ge.target import CostTable, Target

__all__ = ["CANDIDATES", "predicted_gain", "takes_late_sum"]

# -- operands ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Matrix:
    """An operand with as few dimensions as its strides allow."""

    dims: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, view: View, rank: int) -> _Matrix:
        dims, strides = (view.shape, view.strides) if view.shape else ((1,), (1,))
        while len(dims) < rank:
            dims, strides = (1, *dims), (max(dims[0] * strides[0], 1), *strides)
        return cls(dims, strides)

    def joins_next(self, i: int) -> bool:
        """True if dimension i and the next can be collapsed: they are dense, or of size one."""
        return self.dims[i] == 1 or self.strides[i] == self.dims[i + 1] * self.strides[i + 1]

    def joined(self, i: int) -> _Matrix:
        dims = (*self.dims[:i], self.dims[i] * self.dims[i + 1], *self.dims[i + 2 :])
        return _Matrix(dims, self.strides[:i] + self.strides[i + 1 :])

    def without(self, i: int) -> _Matrix:
        return _Matrix(self.dims[:i] + self.dims[i + 1 :], self.strides[:i] + self.strides[i + 1 :])

    def is_one(self, i: int) -> bool:
        return self.dims[i] == 1 and self.dims[i + 1] == 1

    def fits(self, i: int, like: _Matrix) -> bool:
        """True if dimension i and the next can be collapsed when those of another operand are."""
        full = self.dims[i] == like.dims[i] and self.dims[i + 1] == like.dims[i + 1]
        return self.is_one(i) or (full and self.joins_next(i))

    @property
    def has_unit_stride(self) -> bool:
        return len(self.dims) == 2 and 1 in self.strides


@dataclass(frozen=True)
class _Operands:
    """A product with collapsed leading dimensions: into the rows if b has none of them, else with each other."""

    a: _Matrix
    b: _Matrix
    y: _Matrix
    posts: tuple[_Matrix, ...]

    @classmethod
    def of(cls, op: Operation) -> _Operands:
        rank = len(op.outputs[0].shape)
        first = 2 + op.flag("has_bias") + op.flag("has_weight_scales")
        a, b, y = (_Matrix.of(v, rank) for v in (op.inputs[0], op.inputs[1], op.outputs[0]))
        found = cls(a, b, y, tuple(_Matrix.of(v, rank) for v in op.inputs[first:]))
        while len(found.y.dims) > 2:
            smaller = found._join_rows() or found._join_batches()
            if smaller is None:
                break
            found = smaller
        return found

    def _join_rows(self) -> _Operands | None:
        i, a, b, y = len(self.y.dims) - 3, self.a, self.b, self.y
        if b.dims[i] != 1 or a.dims[i] != y.dims[i] or not a.joins_next(i) or not y.joins_next(i):
            return None
        if not all(post.fits(i, y) for post in self.posts):
            return None
        return _Operands(a.joined(i), b.without(i), y.joined(i), tuple(p.joined(i) for p in self.posts))

    def _join_batches(self) -> _Operands | None:
        for i in range(len(self.y.dims) - 3):
            if all(m.fits(i, self.y) for m in (self.a, self.b, self.y, *self.posts)):
                a, b, y = (m.joined(i) for m in (self.a, self.b, self.y))
                return _Operands(a, b, y, tuple(p.joined(i) for p in self.posts))
        return None


# -- Strassen ----------------------------------------------------------------------------------------------------

_ROW_UNIT, _TILE_ROWS, _TILE_COLUMNS, _PRODUCTS = 2, 8, 48, 7  # of the kernel, native/product/product.h


def _round_up(value: int, to: int) -> int:
    return -(-value // to) * to


@dataclass(frozen=True)
class _Grid:
    """A product split among threads: a grid of independent parts; `part` is the largest."""

    rows: int
    columns: int
    row_unit: int
    down: int
    across: int

    @property
    def part(self) -> tuple[int, int]:
        rows = _round_up(-(-self.rows // self.down), 2 * self.row_unit)
        columns = _round_up(-(-self.columns // self.across), 2 * _TILE_COLUMNS)
        return min(rows, self.rows), min(columns, self.columns)

    def gain(self, handling: float) -> float:
        """Time of eight plain products divided by that of seven, with this many multiplications per packed number."""
        rows, columns = self.part
        if not rows or not columns:
            return 0.0
        half_rows = _round_up(-(-rows // 2), _ROW_UNIT)
        half_columns = _round_up(-(-columns // 2), _TILE_COLUMNS)
        padded = self.down * self.across * 4 * half_rows * half_columns / (self.rows * self.columns)
        return 8 / _PRODUCTS / padded / (1 + handling * (rows + columns) / (rows * columns))


def _best_grid(rows: int, columns: int, target: Target, row_unit: int) -> _Grid:
    """The best split of a result among cores; rather into rows, since packing the first operand takes longer."""
    cores, handling = target.cores, target.measured.strassen_handling
    grids = [_Grid(rows, columns, row_unit, n, cores // n) for n in range(1, cores + 1) if cores % n == 0]
    return max(reversed(grids), key=lambda grid: grid.gain(handling))


def predicted_gain(rows: int, columns: int, target: Target, row_unit: int = _ROW_UNIT) -> float:
    """The gain of Strassen's algorithm over plain products."""
    return _best_grid(rows, columns, target, row_unit).gain(target.measured.strassen_handling)


def _row_unit(operands: _Operands) -> int:
    return _ROW_UNIT if operands.a.strides[1] == 1 else _TILE_ROWS


def _best_gain(operands: _Operands, target: Target) -> float:
    rows, columns = operands.y.dims
    return predicted_gain(rows, columns, target, _row_unit(operands))


def _is_plain(op: Operation) -> bool:
    own = op.inputs[: 3 if op.flag("has_bias") else 2]
    types = {v.dtype for v in (*own, op.outputs[0])}
    return types == {"float32"} and not op.quantised and (len(own) < 3 or own[2].contiguous)


def _strassen_epilogue(op: Operation, operands: _Operands) -> str:
    """Why Strassen's kernel cannot apply the post-ops: it adds a row and a matrix, and multiplies by one matrix."""
    first = 3 if op.flag("has_bias") else 2
    bias, summed, factor, activation, at = first == 3, False, False, False, 0
    y = operands.y
    for text in op.post_ops:
        kind = text.partition(",")[0]
        if activation:
            return f"{kind} follows an activation"
        reads = at < len(operands.posts) and op.inputs[first + at].dtype == "float32"
        post = operands.posts[at] if at < len(operands.posts) else None
        row = post is not None and post.dims == (1, y.dims[1]) and post.strides[1] == 1
        adds = text == "add" and reads and not factor
        if text == "sum" and not summed and not factor:
            summed = True
        elif adds and not bias and row:
            bias, at = True, at + 1
        elif adds and not summed and post == y:
            summed, at = True, at + 1
        elif text == "mul" and reads and not factor and post == y:
            factor, at = True, at + 1
        elif text in ("relu", "gelu_erf", "gelu_tanh") or (kind == "clip" and text.count(",") == 2):
            activation = True
        else:
            return f"it has no epilogue {kind} here"
    return "" if at == len(operands.posts) else "it has operands that no post-operation takes"


class Strassen(Candidate):
    """Large float32 products with seven products of half-size blocks instead of eight."""

    name = "strassen"
    needs = "avx512"
    rounds_more = True

    def unfit(self, op: Operation) -> str:
        operands = _Operands.of(op)
        if not _is_plain(op):
            return "it multiplies float32 without quantisation"
        if len(operands.y.dims) != 2 or len(operands.a.dims) != 2 or not operands.a.dims[1]:
            return "it multiplies one matrix by another"
        if not operands.a.has_unit_stride or not operands.b.has_unit_stride or operands.y.strides[1] != 1:
            return "rows or columns of an operand are not dense"
        return _strassen_epilogue(op, operands)

    def measured_gain(self, op: Operation, target: Target, costs: CostTable) -> float:
        operands = _Operands.of(op)
        least = costs.strassen_gain_packed if op.packs_once(1) else costs.strassen_gain
        gain = _best_gain(operands, target) / least
        depth = operands.a.dims[1] / costs.strassen_depth
        return gain if depth >= 1 else min(gain, depth)

    def modelled_gain(self, op: Operation, target: Target) -> float:
        """Saves one eighth of the arithmetic; writes and reads seven sums of quarters of both operands."""
        operands = _Operands.of(op)
        sums = 2 * 7 / 4 * sum(v.nbytes for v in op.inputs[:2])
        plain = target.seconds(op.flops, op.nbytes)
        return plain / target.seconds(op.flops / _best_gain(operands, target), op.nbytes + sums)

    def settings(self, op: Operation, target: Target) -> dict[str, Any]:
        operands = _Operands.of(op)
        rows, columns = operands.y.dims
        grid = _best_grid(rows, columns, target, _row_unit(operands))
        return {"down": grid.down, "across": grid.across}


# -- few rows or terms -------------------------------------------------------------------------------------------

_NARROW = 8  # rows, or terms of a sum: as in the kernel, native/product/narrow.h


class Narrow(Candidate):
    """Products with few rows, or of few columns by few rows, whose second operand is not packed."""

    name = "narrow"
    needs = "avx2"
    needs_bf16 = "avx512_bf16"

    def unfit(self, op: Operation) -> str:
        operands = _Operands.of(op)
        a, b, y = operands.a, operands.b, operands.y
        types = {v.dtype for v in (*op.inputs, op.outputs[0])}
        if types not in ({"float32"}, {"bfloat16"}) or op.quantised:
            return "it multiplies operands of one type, float32 or bfloat16"
        bias = op.flag("has_bias")
        if op.post_ops not in ((), ("relu",)) or len(op.inputs) != (3 if bias else 2):
            return "it has no epilogue but a bias and relu"
        if len(y.dims) != 2 or 0 in (*a.dims, *b.dims) or y.strides[1] != 1:
            return "it multiplies one matrix by another into dense rows"
        if bias and not op.inputs[2].contiguous:
            return "the bias is not dense"
        if op.packs_once(1):
            return "the second operand is packed once"
        few_rows = y.dims[0] <= _NARROW
        dots = few_rows and b.strides[0] == 1 and a.strides[1] == 1
        return (
            ""
            if dots or (b.strides[1] == 1 and (few_rows or a.dims[1] <= _NARROW))
            else (f"it has more than {_NARROW} rows and terms, or columns that are not dense")
        )

    @staticmethod
    def _has_few_rows(operands: _Operands) -> bool:
        """True for a product that streams the second operand once; otherwise a sum of few terms streams the result."""
        b = operands.b
        return operands.y.dims[0] <= _NARROW and (
            b.strides[1] == 1 or (b.strides[0] == 1 and operands.a.strides[1] == 1)
        )

    def measured_gain(self, op: Operation, target: Target, costs: CostTable) -> float:
        operands = _Operands.of(op)
        if self._has_few_rows(operands):
            return math.prod(operands.b.dims) / costs.narrow_elements
        return self._outer_gain(op, costs, costs.outer_bytes)

    def modelled_gain(self, op: Operation, target: Target) -> float:
        """The library packs the second operand first: it is written and read once more."""
        if not self._has_few_rows(_Operands.of(op)):
            return self._outer_gain(op, target.measured, target.cache_bytes // 4)
        packing = 2 * op.inputs[1].nbytes
        return target.seconds(op.flops, op.nbytes + packing) / target.seconds(op.flops, op.nbytes)

    @staticmethod
    def _outer_gain(op: Operation, costs: CostTable, least: int) -> float:
        """Stores past the caches pay off if the result is too large for them; the library is faster in bfloat16."""
        result = op.outputs[0]
        return result.nbytes / least if result.dtype == "float32" else costs.outer_gain_bf16


def takes_late_sum(op: Operation, target: Target) -> bool:
    """True if the library's fast products can add to their result after other post-ops."""
    return "avx512" in target.features


CANDIDATES: tuple[Candidate, ...] = (Strassen(), Narrow(), Library())
