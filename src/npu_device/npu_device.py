"""Names available as `npu_device.npu_device.…`."""

from __future__ import annotations

from npu_device import gen_npu_ops
from npu_device.configs import global_options
from npu_device.devices import NpuDevice, npu_run_context, open, set_npu_loop_size

__all__ = ["NpuDevice", "gen_npu_ops", "global_options", "npu_run_context", "open", "set_npu_loop_size"]
