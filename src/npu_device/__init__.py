"""The module names that ported TensorFlow 2 scripts import; a thin layer over `tf_adapter`.

import npu_device
npu_device.global_options().precision_mode = "allow_mix_precision"
npu_device.open().as_default()
"""

from __future__ import annotations

import tf_adapter  # noqa: F401 (before any module here imports TensorFlow)
from npu_device import compat, distribute, gen_npu_ops, npu_device, ops, train
from npu_device.configs import global_options
from npu_device.devices import NpuDevice, npu_run_context, open, set_npu_loop_size

__all__ = [
    "NpuDevice",
    "compat",
    "distribute",
    "gen_npu_ops",
    "global_options",
    "npu_device",
    "npu_run_context",
    "open",
    "ops",
    "set_npu_loop_size",
    "train",
]
