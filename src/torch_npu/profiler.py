"""PyTorch's profiler under the device's names; the device's work runs in this process."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any

import torch
from torch.profiler import ProfilerAction, schedule, tensorboard_trace_handler

__all__ = [
    "AiCMetrics",
    "ExportType",
    "ProfilerAction",
    "ProfilerActivity",
    "ProfilerLevel",
    "_ExperimentalConfig",
    "profile",
    "schedule",
    "supported_activities",
    "tensorboard_trace_handler",
]


class ProfilerActivity(enum.Enum):
    """What is recorded: the NPU's work is the CPU's."""

    CPU = "cpu"
    NPU = "npu"


class ProfilerLevel(enum.Enum):
    """How much other devices record; without meaning here."""

    Level_none = "none"
    Level0 = "0"
    Level1 = "1"
    Level2 = "2"


class AiCMetrics(enum.Enum):
    """Counters of other devices' cores; without meaning here."""

    AiCoreNone = "none"
    PipeUtilization = "pipe"
    ArithmeticUtilization = "arithmetic"
    Memory = "memory"
    MemoryL0 = "memory_l0"
    MemoryUB = "memory_ub"
    ResourceConflictRatio = "conflicts"
    L2Cache = "l2"


class ExportType(enum.Enum):
    """Files that other devices' tools read; here it is always PyTorch's trace."""

    Text = "text"
    Db = "db"


class _ExperimentalConfig:
    """Settings of other devices' recorders: accepted, without effect."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings


def supported_activities() -> set[ProfilerActivity]:
    """All activities."""
    return set(ProfilerActivity)


class profile(torch.profiler.profile):
    """`torch.profiler.profile` over this device's activities."""

    def __init__(
        self,
        *,
        activities: Iterable[Any] | None = None,
        experimental_config: Any = None,
        **options: Any,
    ) -> None:
        del activities, experimental_config
        super().__init__(activities=[torch.profiler.ProfilerActivity.CPU], **options)
