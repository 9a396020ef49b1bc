"""Hooks of version-1 sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow.compat.v1 as tf

from hccl.manage.api import get_rank_size
from npu_bridge.hccl import hccl_ops

__all__ = [
    "NPUBroadcastGlobalVariablesHook",
    "NPUCheckpointSaverHook",
    "NPUOutputTensorHook",
    "broadcast_global_variables",
]


def broadcast_global_variables(root_rank: int = 0, variables: Iterable[Any] | None = None) -> Any:
    """An operation that broadcasts the root's variables."""
    chosen = list(tf.global_variables() if variables is None else variables)
    if get_rank_size() == 1:
        return tf.no_op()
    values = hccl_ops.broadcast([v.value() for v in chosen], root_rank)
    return tf.group(*[tf.assign(variable, value) for variable, value in zip(chosen, values, strict=True)])


class NPUBroadcastGlobalVariablesHook(tf.train.SessionRunHook):
    """Broadcasts the root's variables after a session is created."""

    def __init__(self, root_rank: int = 0, index: int = 0) -> None:
        self._root_rank = root_rank
        self._index = index
        self._broadcast: Any = None

    def begin(self) -> None:
        """Add the operation to the graph."""
        self._broadcast = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run it once."""
        del coord
        session.run(self._broadcast)


class NPUCheckpointSaverHook(tf.train.CheckpointSaverHook):
    """TensorFlow's own checkpoint hook: variables are always current on the host."""


class NPUOutputTensorHook(tf.train.LoggingTensorHook):
    """Collects tensors at every step and passes their values to a function every `output_every_n_steps` steps."""

    def __init__(
        self,
        tensors: dict[str, Any] | None = None,
        dependencies: Any = None,
        output_every_n_steps: int = 0,
        output_fn: Callable[[list[Any]], None] | None = None,
    ) -> None:
        super().__init__(tensors or {}, every_n_iter=max(1, output_every_n_steps))
        self._dependencies = dependencies
        self._output_fn = output_fn
        self._output_every = output_every_n_steps
        self._collected: list[Any] = []

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Store the values; call the function when enough steps have passed."""
        del run_context
        if run_values.results is None:
            return
        self._collected.append(dict(run_values.results))
        if self._output_every and len(self._collected) % self._output_every == 0:
            self._flush()

    def before_run(self, run_context: Any) -> Any:
        """Fetch the tensors."""
        del run_context
        return tf.train.SessionRunArgs(self._current_tensors)

    def end(self, session: Any) -> None:
        """Call the function with the remaining values."""
        del session
        self._flush()

    def _flush(self) -> None:
        if self._output_fn is not None and self._collected:
            self._output_fn(self._collected)
        self._collected = []
