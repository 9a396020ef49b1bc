"""GPU targets, by architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ge.errors import GeError
from ge.target.target import Target

__all__ = ["NAMES", "architecture_of", "named", "present"]

# Multiprocessors and L2 bytes of the largest part of each architecture.
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


def present(device: int = 0) -> Target:
    """The target of a GPU of this machine; raises a GeError that says why there is none."""
    from npu_runtime import cuda

    try:
        architecture = str(cuda.describe(device)["architecture"])
    except cuda.CudaUnavailable as error:
        raise GeError(
            "E10031", f"a model for a GPU: {error}", remedy="unset NPU_DEVICE to use the CPU"
        ) from error
    if architecture not in _ARCHITECTURES:
        raise GeError("E10010", f"GPU {device} is of {architecture}", remedy=f"use one of {', '.join(NAMES)}")
    return named(architecture)


def architecture_of(report: Mapping[str, Any]) -> str:
    """The GPU architecture that a plan with this report was compiled for; "" for a CPU plan.

    >>> architecture_of({"target": {"name": "sm_90"}})
    'sm_90'
    """
    target = report.get("target")
    name = target.get("name") if isinstance(target, Mapping) else None
    return name if isinstance(name, str) and name in _ARCHITECTURES else ""
