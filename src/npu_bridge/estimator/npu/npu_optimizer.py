"""Optimizers that average their gradients over all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from hccl.manage.api import get_rank_size
from npu_bridge.hccl import hccl_ops

__all__ = [
    "KerasDistributeOptimizer",
    "NPUDistributedOptimizer",
    "NPUOptimizer",
    "npu_distributed_optimizer_wrapper",
    "npu_keras_optimizer",
    "npu_tf_optimizer",
    "reduced_pairs",
]


def _reduced(gradients: Sequence[Any]) -> list[Any]:
    """Average gradients over all ranks; keeps None entries."""
    found = list(gradients)
    sparse = [i for i, g in enumerate(found) if isinstance(g, tf.IndexedSlices)]
    dense = [i for i, g in enumerate(found) if g is not None and i not in sparse]
    means, slices = hccl_ops.averaged(
        [found[i] for i in dense], [(found[i].values, found[i].indices) for i in sparse]
    )
    for i, mean in zip(dense, means, strict=True):
        found[i] = mean
    for i, (values, rows) in zip(sparse, slices, strict=True):
        found[i] = tf.IndexedSlices(values, rows, found[i].dense_shape)
    return found


def reduced_pairs(pairs: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Pairs of averaged gradients and variables."""
    listed = list(pairs)
    means = _reduced([gradient for gradient, _ in listed])
    return [(mean, variable) for mean, (_, variable) in zip(means, listed, strict=True)]


class NPUDistributedOptimizer(tf.train.Optimizer):
    """A version-1 optimizer that averages gradients over all ranks."""

    def __init__(
        self, optimizer: Any, is_weight_update_sharding: bool = False, name: str | None = None
    ) -> None:
        if is_weight_update_sharding and get_rank_size() > 1:
            raise NotImplementedError("is_weight_update_sharding is not supported: leave it False")
        super().__init__(False, name or f"Distributed{type(optimizer).__name__}")
        self._optimizer = optimizer

    def compute_gradients(self, *arguments: Any, **named: Any) -> list[tuple[Any, Any]]:
        """Gradients, averaged over all ranks."""
        return reduced_pairs(self._optimizer.compute_gradients(*arguments, **named))

    def apply_gradients(self, *arguments: Any, **named: Any) -> Any:
        """Apply gradients with the wrapped optimizer."""
        return self._optimizer.apply_gradients(*arguments, **named)

    def get_slot(self, *arguments: Any, **named: Any) -> Any:
        """A slot of the wrapped optimizer."""
        return self._optimizer.get_slot(*arguments, **named)

    def get_slot_names(self, *arguments: Any, **named: Any) -> Any:
        """Names of the slots of the wrapped optimizer."""
        return self._optimizer.get_slot_names(*arguments, **named)

    def variables(self, *arguments: Any, **named: Any) -> Any:
        """Variables of the wrapped optimizer."""
        return self._optimizer.variables(*arguments, **named)


class NPUOptimizer(NPUDistributedOptimizer):
    """A distributed optimizer with optional loss scaling."""

    def __init__(
        self,
        opt: Any,
        loss_scale_manager: Any = None,
        is_distributed: bool = False,
        is_loss_scale: bool = False,
        is_tailing_optimization: bool = False,
        name: str | None = None,
    ) -> None:
        del is_tailing_optimization  # controls the overlap of collectives, which does not apply here
        if is_loss_scale:
            from npu_bridge.estimator.npu.npu_loss_scale_optimizer import NPULossScaleOptimizer

            if loss_scale_manager is None:
                raise ValueError("is_loss_scale needs a loss_scale_manager")
            opt = NPULossScaleOptimizer(opt, loss_scale_manager, is_distributed=is_distributed)
        super().__init__(opt, name=name)
        self._averages = is_distributed and not is_loss_scale

    def compute_gradients(self, *arguments: Any, **named: Any) -> list[tuple[Any, Any]]:
        """Gradients, averaged over all ranks when distributed."""
        if self._averages:
            return super().compute_gradients(*arguments, **named)
        return self._optimizer.compute_gradients(*arguments, **named)


def npu_tf_optimizer(opt: Any) -> Any:
    """Wrap a version-1 optimizer for several ranks."""
    return npu_distributed_optimizer_wrapper(opt)


def npu_distributed_optimizer_wrapper(optimizer: Any) -> Any:
    """Wrap a tf.train or Keras optimizer for several ranks."""
    if isinstance(optimizer, str):
        optimizer = tf.keras.optimizers.get(optimizer)
    if isinstance(optimizer, tf.train.Optimizer):
        return NPUDistributedOptimizer(optimizer)
    return npu_keras_optimizer(optimizer)


def npu_keras_optimizer(opt: Any) -> Any:
    """Wrap a Keras optimizer for several ranks."""
    if get_rank_size() == 1:
        return opt
    apply = opt.apply_gradients

    def apply_gradients(grads_and_vars: Any, *arguments: Any, **named: Any) -> Any:
        return apply(reduced_pairs(grads_and_vars), *arguments, **named)

    opt.apply_gradients = apply_gradients
    return opt


def KerasDistributeOptimizer(optimizer: Any, name: str | None = None) -> Any:
    """Wrap a Keras optimizer for several ranks."""
    del name
    return npu_keras_optimizer(optimizer)
