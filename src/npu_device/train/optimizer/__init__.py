"""Optimizers: `npu_device.train.optimizer`."""

from __future__ import annotations

from npu_device.train.optimizer.npu_loss_scale_optimizer import NpuLossScaleOptimizer

__all__ = ["NpuLossScaleOptimizer"]
