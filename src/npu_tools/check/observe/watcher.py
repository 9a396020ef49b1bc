"""What the observers of scripts of all frameworks share."""

from __future__ import annotations

import abc
from typing import Any

from npu_tools.check.observe.batch_sizes import Repeatable, throughput
from npu_tools.check.recorder import Recorder
from npu_tools.check.request import Request

__all__ = ["Watcher"]


class Watcher(abc.ABC):
    """Sets up a framework for one side, runs the script and collects the NPU's work."""

    def __init__(self, request: Request, recorder: Recorder) -> None:
        self.request, self.recorder = request, recorder
        self.captured: Any = None

    @abc.abstractmethod
    def run(self, path: str) -> None:
        """Run the script."""

    @abc.abstractmethod
    def location(self, node: str) -> str:
        """The user's line of a node."""

    @abc.abstractmethod
    def repeatable(self) -> Repeatable | None:
        """The step in a form that can be repeated with another batch."""

    @abc.abstractmethod
    def seen(self) -> dict[str, Any]:
        """The NPU's work so far."""

    @abc.abstractmethod
    def line(self, node: str) -> str:
        """The user's line of a node of captured work, from its name or its trace."""

    def finish(self, found: dict[str, Any]) -> None:
        """Add results after the script has ended, the longest measurements last."""
        if self.request.side == "npu":
            found |= self.seen() | {"asked": self.captured.asked}
            self.captured.end()
        self.measure(found)
        if self.captured is not None:
            found |= self.captured.analyse(self.line, self.recorder.tell)

    def measure(self, found: dict[str, Any]) -> None:
        """Add measurements that run steps again."""
        found["batches"] = throughput(self.repeatable(), self.request, self.recorder.tell)
