"""GPU targets, by architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ge.target.target import Target

__all__ = ["NAMES", "architecture_of", "named"]

# Multiprocessors and bytes of the second-level cache of the largest part of each architecture.
_ARCHITECTURES = {
    "sm_80": (108, 40 << 20),
    "sm_86": (84, 6 << 20),
    "sm_89": (142, 96 << 20),
    "sm_90": (132, 50 << 20),
    "sm_100": (148, 126 << 20),
}
NAMES = tuple(_ARCHITECTURES)


def named(name: str) -> Target:
    """The target of an architecture.

    >>> sorted(named("sm_90").narrow_floats)
    ['bfloat16', 'float16']
    """
    cores, cache = _ARCHITECTURES[name]
    return Target(name, name, "cuda", cores, cache, kind="cuda")


def architecture_of(report: Mapping[str, Any]) -> str:
    """The architecture of the GPU that a plan with this report was made for; "" for a plan of the CPU.

    >>> architecture_of({"target": {"name": "sm_90"}})
    'sm_90'
    """
    target = report.get("target")
    name = target.get("name") if isinstance(target, Mapping) else None
    return name if isinstance(name, str) and name in _ARCHITECTURES else ""
