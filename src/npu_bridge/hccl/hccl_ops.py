"""Collectives as operations of a graph: the identity for one process, host operations for several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from hccl import collectives
from hccl.ranks import WORLD, HcclError, group_of

__all__ = [
    "allgather",
    "allreduce",
    "alltoallv",
    "alltoallvc",
    "averaged",
    "broadcast",
    "receive",
    "reduce",
    "reduce_scatter",
    "send",
]


def allreduce(tensor: Any, reduction: str, fusion: int = 1, fusion_id: int = -1, group: str = WORLD) -> Any:
    """All-reduce; bundling (fusion, fusion_id) has no effect here."""
    del fusion, fusion_id
    name = _name(tensor)
    return _collective(
        tensor, lambda array: collectives.all_reduce(array, reduction, group, name=name), group, tensor.shape
    )


def allgather(tensor: Any, rank_size: int, group: str = WORLD, fusion: int = 0, fusion_id: int = -1) -> Any:
    """Concatenate the tensors of all ranks along the first axis."""
    del fusion, fusion_id
    shape = tf.TensorShape([None]).concatenate(tensor.shape[1:])
    if tensor.shape[0] is not None:
        shape = tf.TensorShape([int(tensor.shape[0]) * rank_size]).concatenate(tensor.shape[1:])
    name = _name(tensor)
    return _collective(tensor, lambda array: collectives.all_gather(array, group, name=name), group, shape)


def broadcast(
    tensor: Sequence[Any], root_rank: int, fusion: int = 0, fusion_id: int = -1, group: str = WORLD
) -> Any:
    """The root's tensors, on every rank."""
    del fusion, fusion_id
    many = isinstance(tensor, (list, tuple))
    tensors = [tf.convert_to_tensor(t) for t in (tensor if many else [tensor])]
    names = [_name(t) for t in tensors]

    def call(*arrays: np.ndarray) -> list[np.ndarray]:
        return [
            collectives.broadcast(array, root_rank, group, name=name)
            for array, name in zip(arrays, names, strict=True)
        ]

    results = _together(tensors, call, group, [t.shape for t in tensors])
    return results if many else results[0]


def reduce_scatter(tensor: Any, reduction: str, rank_size: int, group: str = WORLD) -> Any:
    """This rank's share, along the first axis, of the reduced tensors."""
    rows = None if tensor.shape[0] is None else int(tensor.shape[0]) // rank_size
    shape = tf.TensorShape([rows]).concatenate(tensor.shape[1:])
    name = _name(tensor)
    return _collective(
        tensor, lambda array: collectives.reduce_scatter(array, reduction, group, name=name), group, shape
    )


def reduce(
    tensor: Any, reduction: str, root_rank: int, fusion: int = 0, fusion_id: int = -1, group: str = WORLD
) -> Any:
    """Reduce the tensors of all ranks to the root; the other ranks keep their own tensor."""
    del fusion, fusion_id
    name = _name(tensor)

    def call(array: np.ndarray) -> np.ndarray:
        found = collectives.all_reduce(array, reduction, group, name=name)
        return found if group_of(group).rank == root_rank else array

    return _collective(tensor, call, group, tensor.shape)


def send(tensor: Any, sr_tag: int, dest_rank: int, group: str = WORLD) -> Any:
    """An operation that sends a tensor to a rank of the group."""

    def call(array: np.ndarray) -> np.ndarray:
        collectives.send(array, dest_rank, sr_tag, group)
        return np.array(array.size, np.int64)

    return tf.numpy_function(call, [tensor], tf.int64).op


def receive(shape: Sequence[int], data_type: Any, sr_tag: int, src_rank: int, group: str = WORLD) -> Any:
    """Receive a tensor that a rank of the group sends under the same tag."""
    kind = tf.as_dtype(data_type)
    result = tf.numpy_function(
        lambda: collectives.receive(shape, kind.as_numpy_dtype, src_rank, sr_tag, group), [], kind
    )
    result.set_shape(shape)
    return result


def alltoallv(
    send_data: Any,
    send_counts: Any,
    send_displacements: Any,
    recv_counts: Any,
    recv_displacements: Any,
    group: str = WORLD,
) -> Any:
    """Exchange elements between all ranks, with a count and an offset for each."""
    name = _name(send_data)

    def call(data: np.ndarray, *places: np.ndarray) -> np.ndarray:
        counts, begins, theirs, ends = ([int(v) for v in place] for place in places)
        flat = data.reshape(-1)
        sent = [flat[b : b + n] for b, n in zip(begins, counts, strict=True)]
        found = collectives.all_to_all(sent, group, name=name)
        _check_counts([len(f) for f in found], theirs)
        result = np.zeros(max((e + n for e, n in zip(ends, theirs, strict=True)), default=0), data.dtype)
        for part, begin in zip(found, ends, strict=True):
            result[begin : begin + len(part)] = part
        return result

    given = [send_data, send_counts, send_displacements, recv_counts, recv_displacements]
    result = tf.numpy_function(call, given, send_data.dtype)
    result.set_shape([None])
    return result


def alltoallvc(
    send_data: Any,
    send_count_matrix: Any,
    rank: int,
    fusion: int = 0,
    fusion_id: int = -1,
    group: str = WORLD,
) -> Any:
    """Exchange elements between all ranks; row r of the matrix counts those that rank r sends."""
    del fusion, fusion_id
    name = _name(send_data)

    def call(data: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        size = group_of(group).size
        counts = matrix.reshape(size, size)
        sent = np.split(data.reshape(-1)[: counts[rank].sum()], np.cumsum(counts[rank])[:-1])
        found = collectives.all_to_all(sent, group, name=name)
        _check_counts([len(f) for f in found], counts[:, rank].tolist())
        return np.concatenate(found)

    result = tf.numpy_function(call, [send_data, send_count_matrix], send_data.dtype)
    result.set_shape([None])
    return result


def _check_counts(found: list[int], wanted: list[int]) -> None:
    if found != wanted:
        raise HcclError(f"the other ranks sent {found} elements, but {wanted} were expected")


def averaged(
    dense: Sequence[Any], sparse: Sequence[tuple[Any, Any]], group: str = WORLD
) -> tuple[list[Any], list[tuple[Any, Any]]]:
    """Average tensors over all ranks; sparse ones are gathered, with values divided by the number of ranks.

    One operation for all, since sessions run operations in any order but all ranks must call in the same order. Dense
    tensors of one type share a collective.
    """
    size = group_of(group).size
    given = [*dense, *(part for pair in sparse for part in pair)]
    if size == 1 or not given:
        return list(dense), list(sparse)

    def call(*arrays: np.ndarray) -> list[np.ndarray]:
        means = _means(arrays[: len(dense)], size, group)
        for at in range(len(dense), len(arrays), 2):
            values, rows = (collectives.all_gather(a, group) for a in arrays[at : at + 2])
            means += [(values / size).astype(values.dtype), rows]
        return means

    shapes = [t.shape for t in dense] + [[None, *t.shape[1:]] for t in given[len(dense) :]]
    results = _together(given, call, group, shapes)
    pairs = results[len(dense) :]
    return list(results[: len(dense)]), list(zip(pairs[::2], pairs[1::2], strict=True))


def _means(arrays: Sequence[np.ndarray], size: int, group: str) -> list[np.ndarray]:
    """Average arrays over all ranks, with one collective per type."""
    results: list[Any] = [None] * len(arrays)
    for kind in dict.fromkeys(a.dtype for a in arrays):
        chosen = [i for i, a in enumerate(arrays) if a.dtype == kind]
        flat = np.concatenate([arrays[i].reshape(-1) for i in chosen])
        summed = (collectives.all_reduce(flat, "sum", group) / size).astype(kind)
        ends = np.cumsum([arrays[i].size for i in chosen])[:-1]
        for i, part in zip(chosen, np.split(summed, ends), strict=True):
            results[i] = part.reshape(arrays[i].shape)
    return results


def _name(tensor: Any) -> str:
    """Name that identifies a collective of a graph: that of its tensor; eager tensors have none."""
    return "" if tf.executing_eagerly() else str(tensor.name)


def _collective(tensor: Any, call: Callable[[np.ndarray], np.ndarray], group: str, shape: Any) -> Any:
    return _together([tensor], lambda array: [call(array)], group, [shape])[0]


def _together(
    tensors: Sequence[Any], call: Callable[..., list[np.ndarray]], group: str, shapes: Sequence[Any]
) -> list[Any]:
    """Combine several collectives into one operation; a single process returns the tensors."""
    if group_of(group).size == 1:
        return [tf.identity(tensor) for tensor in tensors]
    results = tf.numpy_function(call, tensors, [tensor.dtype for tensor in tensors])
    for result, shape in zip(results, shapes, strict=True):
        result.set_shape(shape)
    return list(results)
