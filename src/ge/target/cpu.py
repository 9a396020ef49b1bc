"""CPU targets: the machine at hand, and named ones."""

from __future__ import annotations

import functools
from pathlib import Path

import npu_runtime
from ge.errors import GeError
from ge.target.target import Target
from npu_runtime import environment

__all__ = ["host", "named"]

_CACHE_BYTES = 32 << 20  # where the system does not tell
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_NAMED = {"portable": "sse41", "avx2": "avx2"}


def host() -> Target:
    """This machine, with the cores that the first device has now.

    >>> host().kind
    'cpu'
    """
    cache = int(environment.number("NPU_CACHE_BYTES", _last_level_cache()))
    return Target("host", "host", _isa(), npu_runtime.num_threads(), cache)


def named(name: str) -> Target:
    """The target of a name: "host" (this machine), "portable" (any x86-64) or "avx2".

    >>> named("portable").isa
    'sse41'
    """
    if name == "host":
        return host()
    if name not in _NAMED:
        raise GeError(
            "E10010", f"target '{name}' is unknown", remedy=f"use one of {', '.join(['host', *_NAMED])}"
        )
    return Target(name, name, _NAMED[name], 2, _CACHE_BYTES)


@functools.lru_cache(maxsize=1)
def _isa() -> str:
    return str(npu_runtime.version()["isa"])


@functools.lru_cache(maxsize=1)
def _last_level_cache() -> int:
    return max((_size(path) for path in _CACHES.glob("index*/size")), default=_CACHE_BYTES)


def _size(path: Path) -> int:
    text = path.read_text().strip()
    units = {"K": 1 << 10, "M": 1 << 20}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)
