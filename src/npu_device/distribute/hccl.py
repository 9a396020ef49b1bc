"""Collectives of tensors and variables over `hccl`; the identity for one process.

RANK_SIZE and RANK_ID (or the launcher's own variables) give the number of processes and this process's rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from hccl import collectives
from hccl.manage.api import get_rank_id, get_rank_size

__all__ = ["all_reduce", "broadcast", "npu_distributed_keras_optimizer_wrapper", "shard_and_rebatch_dataset"]

_REDUCTIONS = ("mean", "sum", "max", "min", "prod")


def all_reduce(values: Any, reduction: str = "mean", **without_effect: Any) -> Any:
    """Reduce a tensor or a list of tensors over all processes; keeps None entries.

    >>> float(all_reduce([tf.constant(2.0), None])[0])
    2.0
    """
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction {reduction!r} is unknown: use one of {', '.join(_REDUCTIONS)}")
    if get_rank_size() == 1:
        return values
    if isinstance(values, (list, tuple)):
        return type(values)([None if v is None else _reduced(v, reduction) for v in values])
    return _reduced(values, reduction)


def _reduced(value: Any, reduction: str) -> tf.Tensor:
    tensor = tf.convert_to_tensor(value)  # sparse gradients become dense
    summed = "sum" if reduction == "mean" else reduction
    result = tf.numpy_function(lambda a: collectives.all_reduce(a, summed), [tensor], tensor.dtype)
    result.set_shape(tensor.shape)
    return result / tf.cast(get_rank_size(), tensor.dtype) if reduction == "mean" else result


def broadcast(values: Any, root_rank: int = 0, **without_effect: Any) -> None:
    """Broadcast variables from one process."""
    size = get_rank_size()
    if not 0 <= root_rank < size:
        raise ValueError(f"root_rank must be between 0 and {size - 1}, not {root_rank}")
    if size == 1:
        return
    for variable in values if isinstance(values, (list, tuple)) else [values]:
        variable.assign(collectives.broadcast(variable.numpy(), root_rank))


def shard_and_rebatch_dataset(dataset: tf.data.Dataset, global_batch: int) -> tuple[tf.data.Dataset, int]:
    """Shard a dataset and divide its batch size by the number of processes.

    >>> shard_and_rebatch_dataset(tf.data.Dataset.range(4), 8)[1]
    8
    """
    size = get_rank_size()
    if global_batch % size:
        raise ValueError(f"the batch of {global_batch} cannot be shared evenly by {size} processes")
    return (dataset if size == 1 else dataset.shard(size, get_rank_id())), global_batch // size


def npu_distributed_keras_optimizer_wrapper(
    optimizer: Any, reduce_reduction: str = "mean", **without_effect: Any
) -> Any:
    """Wrap a Keras optimizer to reduce gradients over all processes before applying them."""
    if reduce_reduction not in _REDUCTIONS:
        raise ValueError(f"reduction {reduce_reduction!r} is unknown: use one of {', '.join(_REDUCTIONS)}")
    if get_rank_size() == 1:
        return optimizer
    name = "apply" if hasattr(optimizer, "apply") else "apply_gradients"
    original = getattr(optimizer, name)

    def reduced(given: Iterable[Any], *rest: Any, **named: Any) -> Any:
        items = list(given)
        if name == "apply":
            return original(all_reduce(items, reduce_reduction), *rest, **named)
        grads = all_reduce([g for g, _ in items], reduce_reduction)
        return original(list(zip(grads, (v for _, v in items), strict=True)), *rest, **named)

    setattr(optimizer, name, reduced)
    return optimizer
