"""TensorFlow's operators on bands and diagonals of matrices, composed of gathers and selections."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ge.ir.types import numpy_dtype
from ge.ops.plugins import Node, Results, plugin


@plugin(tensorflow="MatrixBandPart")
def _matrix_band_part(n: Node) -> Results:
    """Diagonals from -num_lower to num_upper; a negative number keeps all of that side."""
    rows, columns = n.desc().shape[-2:]
    lower, upper = n.ints(1, "num_lower")[0], n.ints(2, "num_upper")[0]
    y: Any = n.inputs[0]
    if 0 <= lower < rows - 1:
        y = n.op("Trilu", y, upper=True, k=-lower)
    if 0 <= upper < columns - 1:
        y = n.op("Trilu", y, upper=False, k=upper)
    return y


@plugin(tensorflow="Diag")
def _diag(n: Node) -> Results:
    """A tensor's elements on the diagonal of one of twice its rank."""
    shape, size = list(n.desc().shape), n.desc().size
    eye, zero = np.eye(size, dtype=bool), np.zeros((), numpy_dtype(n.desc().dtype))
    row = n.op("Reshape", n.inputs[0], shape=[size])
    return n.op("Reshape", n.op("Select", n.builder.constant(eye), row, zero), shape=[*shape, *shape])


@plugin(tensorflow="DiagPart")
def _diag_part(n: Node) -> Results:
    shape = list(n.desc().shape[: n.desc().rank // 2])
    size = math.prod(shape)
    flat = n.op("Reshape", n.inputs[0], shape=[size * size])
    return n.op("Reshape", n.op("Slice", flat, starts=[0], ends=[size * size], steps=[size + 1]), shape=shape)


def _diagonal_range(n: Node, index: int) -> tuple[int, int]:
    """The lowest and highest diagonal that the newer operators take."""
    given = n.ints(index, "the diagonals") if n.input(index) is not None else [0]
    return given[0], given[-1]


def _diagonal_grid(
    shape: tuple[int, int], low: int, high: int, align: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each diagonal (highest first) and position in it: row, column, and whether the element exists."""
    rows, columns = shape
    longest = min(rows + min(high, 0), columns - max(low, 0))
    row, column = (
        np.zeros((high - low + 1, max(longest, 0)), np.int64),
        np.zeros((high - low + 1, max(longest, 0)), np.int64),
    )
    there = np.zeros(row.shape, bool)
    for i, k in enumerate(range(high, low - 1, -1)):
        length = min(rows + min(k, 0), columns - max(k, 0))
        right = align.split("_")[0 if k >= 0 else 1] == "RIGHT"
        where = np.arange(max(length, 0)) + (longest - length if right else 0)
        row[i, where] = np.arange(max(length, 0)) + max(-k, 0)
        column[i, where] = np.arange(max(length, 0)) + max(k, 0)
        there[i, where] = True
    return row, column, there


@plugin(tensorflow=["MatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3", "BatchMatrixDiagPart"])
def _matrix_diag_part(n: Node) -> Results:
    """Gather diagonals of matrices; positions that a shorter diagonal lacks hold the padding value."""
    *batch, rows, columns = n.desc().shape
    newer = n.type.endswith(("V2", "V3"))
    low, high = _diagonal_range(n, 1) if newer else (0, 0)
    row, column, there = _diagonal_grid((rows, columns), low, high, str(n.attr("align", "LEFT_LEFT")))
    flat = n.op("Reshape", n.inputs[0], shape=[*batch, rows * columns])
    y = n.op("Gather", flat, n.builder.constant(row * columns + column), axis=len(batch))
    if newer and not there.all():
        y = n.op("Select", n.builder.constant(there), y, n.inputs[2])
    return n.op("Reshape", y, shape=[*batch, row.shape[1]]) if low == high else y


def _spread(
    n: Node, diagonals: Any, batch: Sequence[int], shape: tuple[int, int], span: tuple[int, int]
) -> tuple[np.ndarray, Any]:
    """A mask of the diagonals of matrices, and matrices with the diagonals' values there (anything elsewhere)."""
    row, column, there = _diagonal_grid(shape, *span, str(n.attr("align", "LEFT_LEFT")))
    source, hit = np.zeros(shape, np.int64), np.zeros(shape, bool)
    source[row[there], column[there]] = np.flatnonzero(there)
    hit[row[there], column[there]] = True
    flat = n.op("Reshape", diagonals, shape=[*batch, row.size])
    return hit, n.op("Gather", flat, n.builder.constant(source), axis=len(batch))


@plugin(tensorflow=["MatrixDiag", "MatrixDiagV2", "MatrixDiagV3", "BatchMatrixDiag"])
def _matrix_diag(n: Node) -> Results:
    """Matrices with given diagonals, the padding value elsewhere."""
    shape = n.desc().shape
    newer = n.type.endswith(("V2", "V3"))
    low, high = _diagonal_range(n, 1) if newer else (0, 0)
    batch = shape[:-1] if low == high else shape[:-2]
    rows, columns = _matrix_size(n, shape[-1], low, high) if newer else (shape[-1], shape[-1])
    hit, y = _spread(n, n.inputs[0], batch, (rows, columns), (low, high))
    padding = n.inputs[4] if newer else n.builder.constant(np.zeros((), numpy_dtype(n.desc().dtype)))
    return n.op("Select", n.builder.constant(hit), y, padding)


def _matrix_size(n: Node, longest: int, low: int, high: int) -> tuple[int, int]:
    """Rows and columns as given; a missing one is the smallest that holds the diagonals."""
    rows, columns = n.ints(2, "num_rows")[0], n.ints(3, "num_cols")[0]
    least_rows, least_columns = longest - min(high, 0), longest + max(low, 0)
    if rows == -1 and columns == -1:
        rows = columns = max(least_rows, least_columns)
    elif rows == -1:
        rows = least_rows
    elif columns == -1:
        columns = least_columns
    return rows, columns


@plugin(tensorflow=["MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3", "BatchMatrixSetDiag"])
def _matrix_set_diag(n: Node) -> Results:
    *batch, rows, columns = n.desc().shape
    newer = n.type.endswith(("V2", "V3"))
    low, high = _diagonal_range(n, 2) if newer else (0, 0)
    hit, y = _spread(n, n.inputs[1], batch, (rows, columns), (low, high))
    return n.op("Select", n.builder.constant(hit), y, n.inputs[0])
