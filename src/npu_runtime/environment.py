"""The environment variables of the Graph Engine and of what is below it: their names, and how each is read.

A value that makes no sense is not used, and a warning says so once, with the choices.
"""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path

__all__ = [
    "OF_OPTIONS",
    "VARIABLES",
    "InvalidVariableWarning",
    "UnknownVariableWarning",
    "UnwritableCacheWarning",
    "cache_folder",
    "check_names",
    "check_native",
    "check_spelling",
    "choice",
    "compile_cache",
    "names",
    "number",
    "text",
    "unknown",
    "unwritable",
    "warn",
]

VARIABLES = {
    "ASCEND_RT_VISIBLE_DEVICES": "numbers of the devices that this process sees, such as 0,2",
    "NPU_CACHE_BYTES": "bytes of the last-level cache that batches are cut to",
    "NPU_CACHE_DIR": "folder of compiled models, tuned choices and measured costs; off: no compiled models are kept",
    "NPU_COMPILE_GC": "paused: Python collects no garbage while a model is compiled",
    "NPU_CONFORMANCE_RECORDER": "settings of the recorder of conformance runs, given to its process",
    "NPU_CUDA_DRIVER": "simulated: GPUs are simulated on the host",
    "NPU_DEVICE": "cuda: models are compiled for the GPU of this machine unless they name a target",
    "NPU_DEVICE_CORES": "cores of each device, such as 0-3;4-7: one device a set; sets may share cores",
    "NPU_DEVICE_COUNT": "devices that share this machine",
    "NPU_DISABLE_PASSES": "passes that do not run",
    "NPU_DUMP": "stages whose graphs are written, or all",
    "NPU_DUMP_DIR": "folder of written graphs",
    "NPU_INTERNAL_ERRORS": "raise: internal errors are not absorbed",
    "NPU_KEY_FILE": "the key that seals model files",
    "NPU_MAX_ISA": "the newest instruction set that is used",
    "NPU_MINDSPORE_FALLBACK": "raise: a MindSpore graph that the engine refuses is an error",
    "NPU_NUM_THREADS": "threads of a device",
    "NPU_ONEDNN": "off: products, convolutions and their kin are generated kernels, as where there is no oneDNN",
    "NPU_OPP_PATH": "folders of custom operators",
    "NPU_OPP_TIMEOUT": "seconds that a custom operator's code may take",
    "NPU_PROFILE": "1: the time of each task is printed; a path: the trace is written there, too",
    "NPU_PYTHON": "the interpreter that compiles models for C and C++ applications",
    "NPU_TOP": "0: no counters are published for tf-adapter top",
}
OFF = "off"  # of NPU_CACHE_DIR
INSTRUCTION_SETS = ("sse4", "avx2", "avx512")
# Variables of options, which a layer above declares, but for those in VARIABLES.
OF_OPTIONS = (
    "NPU_ALLOW_HOST_FALLBACK",
    "NPU_AS_DEFAULT",
    "NPU_DETERMINISTIC",
    "NPU_EAGER_THRESHOLD",
    "NPU_EXPLAIN",
    "NPU_FUSION_SWITCH_FILE",
    "NPU_LOOP_SIZE",
    "NPU_MEMORY_LIMIT",
    "NPU_MODIFY_MIXLIST",
    "NPU_OPTYPELIST_FOR_IMPLMODE",
    "NPU_OP_PRECISION",
    "NPU_OP_SELECT_IMPLMODE",
    "NPU_PRECISION_MODE",
    "NPU_PREFETCH",
    "NPU_PROFILING",
    "NPU_PROFILING_DIR",
    "NPU_QUANTISE_ACTIVATIONS",
    "NPU_RECOMPUTE",
    "NPU_TARGET",
)
_READ_ELSEWHERE = ("NPU_OPP_LOG",)  # by the code of custom operators
_ALIKE = 0.8  # what difflib calls a misspelling; other software has variables that start with NPU_, too
_COUNTS = ("NPU_DEVICE_COUNT", "NPU_NUM_THREADS")  # read by native code

_VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
_NONE = "NoDevFiles"  # what schedulers write for a process that asked for no device

_told: set[tuple[str, str]] = set()
_unwritable: set[Path] = set()  # folders that were warned of


class InvalidVariableWarning(RuntimeWarning):
    """An environment variable has a value that is not used."""


class UnknownVariableWarning(RuntimeWarning):
    """An environment variable looks like a misspelt name of ours."""


class UnwritableCacheWarning(RuntimeWarning):
    """What was compiled or measured cannot be stored for later processes."""


def cache_folder() -> Path:
    """The folder of what was measured on this machine: NPU_CACHE_DIR, else one in the user's cache folder."""
    folder = text("NPU_CACHE_DIR")
    if folder and folder != OFF:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tf-adapter"


def compile_cache() -> Path | None:
    """The folder of compiled models and kernels, None when NPU_CACHE_DIR is "off"."""
    return None if text("NPU_CACHE_DIR") == OFF else cache_folder()


def text(name: str) -> str:
    """The value of a variable, "" when it is not set."""
    assert name in VARIABLES, f"{name} is not in the table of environment variables"
    return os.environ.get(name, "")


def warn(name: str, value: str, choices: str) -> None:
    """Say once that a value of a variable is not used.

    >>> with warnings.catch_warnings(record=True) as seen:
    ...     warnings.simplefilter("always")
    ...     warn("NPU_DUMP", "bogus", "all, parse")
    >>> print(seen[0].message)
    NPU_DUMP: 'bogus' is not used; choices are all, parse
    """
    if (name, value) not in _told:
        _told.add((name, value))
        warnings.warn(
            f"{name}: {value!r} is not used; choices are {choices}", InvalidVariableWarning, stacklevel=3
        )


def unwritable(folder: Path, why: str) -> None:
    """Say once that nothing can be stored in a cache folder (or a folder in it); the process goes on without it.

    >>> with warnings.catch_warnings(record=True) as seen:
    ...     warnings.simplefilter("always")
    ...     unwritable(Path("/proc/models"), "No such file or directory")
    >>> print(seen[0].message)
    the cache folder /proc/models cannot be written (No such file or directory), so that each process compiles anew; \
set NPU_CACHE_DIR to a folder that can be written and has space, or to off
    """
    if not any(folder.is_relative_to(told) or told.is_relative_to(folder) for told in _unwritable):
        _unwritable.add(folder)
        warnings.warn(
            f"the cache folder {folder} cannot be written ({why}), so that each process compiles anew; set "
            f"NPU_CACHE_DIR to a folder that can be written and has space, or to {OFF}",
            UnwritableCacheWarning,
            stacklevel=3,
        )


def choice(name: str, choices: Collection[str]) -> str:
    """A value that is one of several, "" for any other."""
    value = text(name)
    if not value or value in choices:
        return value
    warn(name, value, ", ".join(choices))
    return ""


def names(name: str) -> frozenset[str]:
    """The values of a list separated by commas."""
    return frozenset(filter(None, (part.strip() for part in text(name).split(","))))


def check_names(name: str, choices: Collection[str]) -> None:
    """Warn of each value of a list that is not among the choices."""
    for unknown in sorted(names(name) - frozenset(choices)):
        warn(name, unknown, ", ".join(sorted(choices)))


def number(name: str, otherwise: float, *, zero: bool = False) -> float:
    """A positive number (or zero, where that means something), or the default."""
    value = text(name)
    try:
        found = float(value) if value else otherwise
    except ValueError:
        found = -1.0
    if 0 < found < float("inf") or (zero and found == 0):
        return found
    warn(name, value, f"positive numbers (the default is {otherwise:g})")
    return otherwise


def unknown(alike: float = 0.6) -> Iterator[tuple[str, str]]:
    """The variables that start with NPU_ and that nothing reads, each with the nearest name, "" if none is near."""
    known = {*VARIABLES, *OF_OPTIONS, *_READ_ELSEWHERE}
    for name in sorted(os.environ):
        if name.startswith("NPU_") and name not in known and not name.startswith("NPU_CONFORMANCE_"):
            yield name, next(iter(difflib.get_close_matches(name, known, 1, alike)), "")


def check_spelling() -> None:
    """Warn of each variable that looks like a misspelt name of ours."""
    for name, near in unknown(_ALIKE):
        if near:
            warnings.warn(f"{name} has no effect; did you mean {near}?", UnknownVariableWarning, stacklevel=3)


def check_native() -> None:
    """Warn of values that native code does not understand; it takes its defaults instead."""
    from npu_runtime._native import parse_cores, parse_devices

    choice("NPU_MAX_ISA", INSTRUCTION_SETS)
    for name in _COUNTS:
        value = text(name).strip()
        if value and not value.isdecimal():
            warn(name, value, "whole numbers")
    cores = text("NPU_DEVICE_CORES")
    if cores and not parse_cores(cores):
        warn("NPU_DEVICE_CORES", cores, "sets of cores that this process may use, such as 0-3;4-7")
    visible, count = text(_VISIBLE).strip(), text("NPU_DEVICE_COUNT").strip()
    known = len(parse_cores(cores)) or (max(int(count), 1) if count.isdecimal() else 1)
    if visible not in ("", _NONE) and not parse_devices(visible, known):
        warn(_VISIBLE, visible, f"numbers of devices, each once, below {known} (NPU_DEVICE_COUNT)")
