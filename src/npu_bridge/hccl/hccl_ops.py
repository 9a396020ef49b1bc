"""Collectives as operations of a graph: the identity for one process, host operations for several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from hccl import collectives
from hccl.ranks import WORLD, group_of

__all__ = ["allgather", "allreduce", "broadcast", "reduce_scatter"]


def allreduce(tensor: Any, reduction: str, fusion: int = 1, fusion_id: int = -1, group: str = WORLD) -> Any:
    """The tensors of all ranks reduced into one; bundling (fusion, fusion_id) has no effect here."""
    del fusion, fusion_id
    return _collective(
        tensor, lambda array: collectives.all_reduce(array, reduction, group), group, tensor.shape
    )


def allgather(tensor: Any, rank_size: int, group: str = WORLD, fusion: int = 0, fusion_id: int = -1) -> Any:
    """The tensors of all ranks one after the other along the first axis."""
    del fusion, fusion_id
    shape = tf.TensorShape([None]).concatenate(tensor.shape[1:])
    if tensor.shape[0] is not None:
        shape = tf.TensorShape([int(tensor.shape[0]) * rank_size]).concatenate(tensor.shape[1:])
    return _collective(tensor, lambda array: collectives.all_gather(array, group), group, shape)


def broadcast(
    tensor: Sequence[Any], root_rank: int, fusion: int = 0, fusion_id: int = -1, group: str = WORLD
) -> Any:
    """The root's tensors, on every rank."""
    del fusion, fusion_id
    many = isinstance(tensor, (list, tuple))
    results = [
        _collective(t, lambda array: collectives.broadcast(array, root_rank, group), group, t.shape)
        for t in (map(tf.convert_to_tensor, tensor) if many else [tf.convert_to_tensor(tensor)])
    ]
    return results if many else results[0]


def reduce_scatter(tensor: Any, reduction: str, rank_size: int, group: str = WORLD) -> Any:
    """This rank's share, along the first axis, of the reduced tensors."""
    rows = None if tensor.shape[0] is None else int(tensor.shape[0]) // rank_size
    shape = tf.TensorShape([rows]).concatenate(tensor.shape[1:])
    return _collective(
        tensor, lambda array: collectives.reduce_scatter(array, reduction, group), group, shape
    )


def _collective(tensor: Any, call: Callable[[np.ndarray], np.ndarray], group: str, shape: Any) -> Any:
    if group_of(group).size == 1:
        return tf.identity(tensor)
    result = tf.numpy_function(call, [tensor], tensor.dtype)
    result.set_shape(shape)
    return result
