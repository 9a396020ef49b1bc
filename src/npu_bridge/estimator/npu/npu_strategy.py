"""A distribution strategy for one device per process; ranks communicate through the optimizers."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

__all__ = ["NPUStrategy"]


class NPUStrategy(tf.distribute.OneDeviceStrategy):
    """Places everything on the NPU of this process."""

    def __init__(self, device: str = "/cpu:0") -> None:
        super().__init__(device)

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of ranks."""
        from hccl.manage.api import get_rank_size

        return get_rank_size()

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """Each rank reads its own data."""
        del options
        return dataset
