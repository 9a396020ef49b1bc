"""CPU targets: the current machine, and named targets with fixed values."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from pathlib import Path

import npu_runtime
from ge.errors import GeError
from ge.target import cuda
from ge.target.costs import CostTable, shipped
from ge.target.target import Target
from npu_runtime import environment

__all__ = ["NAMES", "costs_file", "fallback", "host", "named"]

# Defaults for named targets, like the cache sizes in Target.
_ONEDNN = "3.2.0"
_NAMED_CORES = 2
_CACHE_BYTES = 32 << 20
# The library's instruction set of each name.
_NAMED = {
    "portable": "sse41",
    "avx2": "avx2",
    "avx512": "avx512_core_vnni",
    "avx512_bf16": "avx512_core_bf16",
    "amx": "avx512_core_amx",
}
NAMES = ("host", *_NAMED, *cuda.NAMES)


def host() -> Target:
    """This machine, with the current core count of the first device.

    >>> host().kind
    'cpu'
    """
    first, second, last = npu_runtime.caches()
    version = _version()
    return Target(
        "host",
        "host",
        version["isa"],
        npu_runtime.num_threads(),
        int(environment.number("NPU_CACHE_BYTES", last)),
        l1_bytes=first,
        l2_bytes=second,
        memory_bytes=_memory_bytes(),
        onednn=version["onednn"],
        library=bool(version["onednn"]) and environment.choice("NPU_ONEDNN", ("off",)) != "off",
        costs=_tuned(version["isa"]) or shipped(version["isa"]),
    )


def named(name: str) -> Target:
    """The target of a name: "host" (this machine, or its GPU with NPU_DEVICE=cuda), "portable" (any x86-64), "avx2",
    "avx512", "avx512_bf16", "amx", or the architecture of a GPU ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100").

    Everything about a target other than "host" is fixed: its plans are the same on every machine.

    >>> named("portable").isa
    'sse41'
    """
    if name == "host":
        return cuda.present() if environment.choice("NPU_DEVICE", ("cpu", "cuda")) == "cuda" else host()
    if name in cuda.NAMES:
        return cuda.named(name)
    if name not in _NAMED:
        raise GeError("E10010", f"target '{name}' is unknown", remedy=f"use one of {', '.join(NAMES)}")
    isa = _NAMED[name]
    library = bool(_version()["onednn"])  # every x86-64 has it
    return Target(
        name, name, isa, _NAMED_CORES, _CACHE_BYTES, onednn=_ONEDNN, library=library, costs=shipped(isa)
    )


def fallback() -> Target:
    """The host processor of a GPU, which is unknown at compile time."""
    return named("portable")


def costs_file(isa: str) -> Path:
    """The file of this machine's measured costs: in NPU_CACHE_DIR, else the user's cache folder."""
    return environment.cache_folder() / f"costs-{isa}.json"


def _tuned(isa: str) -> CostTable | None:
    """The table that `python -m ge.tune` measured on this machine."""
    path = costs_file(isa)
    if not path.is_file():
        return None
    try:
        values = dict(json.loads(path.read_text()))
        known = {field.name for field in dataclasses.fields(CostTable)}
        # The folder is shared: another version of this package may have written entries that this one lacks.
        return CostTable.of({name: value for name, value in values.items() if name in known})
    except (OSError, ValueError, TypeError) as error:
        raise GeError(
            "E10010",
            f"the costs in {path} cannot be read: {error}",
            remedy="remove the file, or measure again with python -m ge.tune",
        ) from error


@functools.lru_cache(maxsize=1)
def _version() -> dict[str, str]:
    return {name: str(value) for name, value in npu_runtime.version().items()}


@functools.lru_cache(maxsize=1)
def _memory_bytes() -> int:
    """Physical memory, or the limit of the container's control group."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *(limit for path in _MEMORY_LIMITS if (limit := _limit(path)))])


# For the whole container; "max" is no limit.
_MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def _limit(path: str) -> int:
    try:
        text = Path(path).read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 0
