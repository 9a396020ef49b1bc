"""Training with several processes: `npu_device.distribute`."""

from __future__ import annotations

from npu_device.distribute.hccl import (
    all_reduce,
    broadcast,
    npu_distributed_keras_optimizer_wrapper,
    shard_and_rebatch_dataset,
)

__all__ = ["all_reduce", "broadcast", "npu_distributed_keras_optimizer_wrapper", "shard_and_rebatch_dataset"]
