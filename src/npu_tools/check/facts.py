"""Facts about the machine and its settings, for the report."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["facts"]


def facts() -> dict[str, Any]:
    """Versions, processor, threads, memory, cache and settings."""
    from npu_tools.env import environment

    return {**environment(), "working directory": os.path.basename(os.getcwd())}
