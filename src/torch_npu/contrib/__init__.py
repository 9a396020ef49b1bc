"""Modules imported by scripts for other devices or for the device's own modules."""

from __future__ import annotations

from torch_npu.contrib import function, module
from torch_npu.contrib.function import *  # noqa: F403
from torch_npu.contrib.module import *  # noqa: F403

__all__ = [*function.__all__, *module.__all__]
