"""Counts calls on the NPU and calls that PaddlePaddle ran itself, with reasons."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

__all__ = ["STATE", "Counts", "counts", "reset_counts"]


@dataclass
class Counts:
    """Calls of programs on the NPU and with PaddlePaddle, of eager operators on the NPU, and the reasons.

    `mixed` counts programs on the NPU with parts that PaddlePaddle ran.
    """

    npu: int = 0
    mixed: int = 0
    paddle: int = 0
    compiled: int = 0
    eager: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


@dataclass
class State:
    """Process-wide state of the front door."""

    counts: Counts = field(default_factory=Counts)
    enabled: bool = False  # programs run on the NPU
    strict: bool = False
    handed: int = 0  # programs that PaddlePaddle handed over, whoever ran them
    sides: list[Any] = field(default_factory=list)  # of the last program, forward and backward
    lock: threading.RLock = field(default_factory=threading.RLock)

    def refused(self, what: str, reason: str) -> None:
        """Count a reason; warn on its first occurrence."""
        if reason not in self.counts.reasons:
            warnings.warn(f"PaddlePaddle runs {what} itself: {reason}", stacklevel=3)
        self.counts.reasons[reason] += 1


STATE = State()


def counts() -> Counts:
    """The calls so far."""
    return STATE.counts


def reset_counts() -> None:
    """Reset the counters."""
    STATE.counts = Counts()
