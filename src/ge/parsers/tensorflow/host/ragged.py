"""Ragged and sparse tensors: their structure in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ge.errors import GeError
from ge.parsers.tensorflow.host.operators import HostNode, host, integer

__all__: list[str] = []


def _splits_of(kind: str, partition: np.ndarray, parent: int) -> np.ndarray:
    if kind == "ROW_SPLITS":
        return partition
    if kind == "VALUE_ROWIDS":
        return np.concatenate([[0], np.cumsum(np.bincount(partition, minlength=parent)[:parent])])
    raise GeError("E10005", f"unsupported encoding of ragged tensors: {kind}", remedy="use row splits")


@host("RaggedTensorToTensor")
def _to_tensor(
    n: HostNode, shape: np.ndarray, values: np.ndarray, default: np.ndarray, *partitions: np.ndarray
) -> np.ndarray:
    """Rows one after another, cut or padded to the given shape; -1 is the longest row."""
    kinds = [k.decode() if isinstance(k, bytes) else k for k in n.attr("row_partition_types")]
    given = list(partitions)
    rows = -1
    if kinds[0] == "FIRST_DIM_SIZE":
        rows, given, kinds = int(given[0]), given[1:], kinds[1:]
    levels: list[np.ndarray] = []
    for kind, partition in zip(kinds, given, strict=True):
        parent = rows if rows >= 0 else len(partition) - 1
        splits = _splits_of(kind, partition, parent)
        levels.append(splits)
        rows = int(splits[-1])
    wanted = [int(s) for s in shape.reshape(-1)] if shape.size and shape.ndim else []
    sizes = [len(levels[0]) - 1, *(int(np.diff(s).max(initial=0)) for s in levels)]
    for place, size in enumerate(wanted[: len(sizes)]):
        sizes[place] = size if size >= 0 else sizes[place]
    made = np.empty((*sizes, *values.shape[1:]), values.dtype)
    made[...] = default
    _spread(made, levels, values, 0, 0)
    return made


def _spread(made: np.ndarray, levels: Sequence[np.ndarray], values: np.ndarray, row: int, depth: int) -> None:
    """Fill a dense block from the ragged rows that begin at `row`."""
    splits = levels[depth]
    for place in range(min(len(made), len(splits) - 1 - row)):
        begin, end = int(splits[row + place]), int(splits[row + place + 1])
        if depth + 1 == len(levels):
            count = min(end - begin, made.shape[1])
            made[place, :count] = values[begin : begin + count]
        else:
            _spread_rows(made[place], levels, values, begin, end, depth + 1)


def _spread_rows(
    made: np.ndarray, levels: Sequence[np.ndarray], values: np.ndarray, begin: int, end: int, depth: int
) -> None:
    count = min(end - begin, len(made))
    cut = [*levels]
    cut[depth] = levels[depth][: begin + count + 1]
    _spread(made[:count], cut, values, begin, depth)


@host("RaggedTensorToSparse")
def _to_sparse(n: HostNode, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
    *levels, values = inputs
    places = np.arange(len(levels[0]) - 1).reshape(-1, 1)
    for splits in levels:
        counts = np.diff(splits)
        inner = np.concatenate([np.arange(c) for c in counts] or [np.zeros(0, int)]).astype(np.int64)
        places = np.concatenate([np.repeat(places, counts, 0), inner.reshape(-1, 1)], 1)
    sizes = [len(levels[0]) - 1, *(int(np.diff(s).max(initial=0)) for s in levels), *values.shape[1:]]
    return places.astype(np.int64), values, np.array(sizes, np.int64)


@host("RaggedRange")
def _range(
    n: HostNode, starts: np.ndarray, limits: np.ndarray, steps: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    size = max(np.size(a) for a in (starts, limits, steps))
    spread = [np.broadcast_to(a, (size,)) for a in (starts, limits, steps)]
    rows = [np.arange(s, e, d, dtype=starts.dtype) for s, e, d in zip(*spread, strict=True)]
    return np.cumsum([0, *map(len, rows)]), np.concatenate(rows or [np.zeros(0, starts.dtype)])


@host("RaggedGather")
def _gather(n: HostNode, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
    *levels, values, places = inputs
    rows = places.reshape(-1)
    made = []
    for splits in levels:
        begins, counts = splits[rows], splits[rows + 1] - splits[rows]
        made.append(np.concatenate([[0], np.cumsum(counts)]).astype(splits.dtype))
        rows = np.concatenate(
            [np.arange(b, b + c) for b, c in zip(begins, counts, strict=True)] or [rows[:0]]
        )
    return (*made, values[rows])


@integer("SparseToDense")
def _to_dense(
    n: HostNode, places: np.ndarray, shape: np.ndarray, values: np.ndarray, default: np.ndarray
) -> np.ndarray:
    made = np.empty([int(s) for s in shape], values.dtype)
    made[...] = default
    made[tuple(places.reshape(-1, made.ndim).T)] = values
    return made


@host("SparseReorder")
def _reorder(
    n: HostNode, places: np.ndarray, values: np.ndarray, shape: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    order = np.lexsort(tuple(reversed(places.T)))
    return places[order], values[order]


@host("SparseReshape")
def _reshape(
    n: HostNode, places: np.ndarray, shape: np.ndarray, wanted: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    sizes = [int(s) for s in wanted]
    if -1 in sizes:
        known = int(np.prod([s for s in sizes if s >= 0]))
        sizes[sizes.index(-1)] = int(np.prod(shape)) // max(known, 1)
    flat = (
        np.ravel_multi_index(tuple(places.T), tuple(int(s) for s in shape))
        if len(places)
        else np.zeros(0, int)
    )
    return np.stack(np.unravel_index(flat, sizes), 1).astype(np.int64).reshape(-1, len(sizes)), np.array(
        sizes, np.int64
    )


@host("SparseFillEmptyRows")
def _fill_rows(
    n: HostNode, places: np.ndarray, values: np.ndarray, shape: np.ndarray, default: np.ndarray
) -> tuple[np.ndarray, ...]:
    rows = int(shape[0])
    empty = np.bincount(places[:, 0], minlength=rows)[:rows] == 0
    added = np.zeros((int(empty.sum()), places.shape[1]), np.int64)
    added[:, 0] = np.flatnonzero(empty)
    whole = np.concatenate([places, added])
    filled = np.empty(len(whole), values.dtype)
    filled[: len(values)], filled[len(values) :] = values, default.reshape(-1)[0]
    order = np.argsort(whole[:, 0], kind="stable")
    back = np.empty(len(whole), np.int64)
    back[order] = np.arange(len(whole))
    return whole[order], filled[order], empty, back[: len(values)]


@host("SparseSlice")
def _slice(
    n: HostNode,
    places: np.ndarray,
    values: np.ndarray,
    shape: np.ndarray,
    start: np.ndarray,
    size: np.ndarray,
) -> tuple[np.ndarray, ...]:
    end = np.minimum(start + size, shape)
    kept = np.all((places >= start) & (places < end), axis=1)
    return places[kept] - start, values[kept], np.maximum(end - start, 0)


@host("SparseConcat")
def _concat(n: HostNode, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
    count = len(inputs) // 3
    parts, values, shapes = inputs[:count], inputs[count : 2 * count], inputs[2 * count :]
    axis = int(n.attr("concat_dim")) % len(shapes[0])
    moved, offset = [], 0
    for part, shape in zip(parts, shapes, strict=True):
        part = part.copy()
        part[:, axis] += offset
        offset += int(shape[axis])
        moved.append(part)
    whole, kept = np.concatenate(moved), np.concatenate(values)
    order = np.lexsort(tuple(reversed(whole.T)))
    shape = shapes[0].copy()
    shape[axis] = offset
    return whole[order], kept[order], shape
