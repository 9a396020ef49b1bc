"""Facts about the machine and its settings for the report, and problems with them."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

__all__ = ["facts", "faults"]


def facts() -> dict[str, Any]:
    """Versions, processor, threads, memory, cache and settings."""
    from npu_tools.env import environment

    return {**environment(), "working directory": os.path.basename(os.getcwd())}


def faults() -> list[dict[str, str]]:
    """Problems that `tf-adapter env` finds: severity, text and remedy."""
    from npu_tools.env import findings

    return [asdict(finding) for finding in findings()]
