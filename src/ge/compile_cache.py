"""The compile cache: finds models on disk that an earlier process compiled from the same graph or file.

The key covers everything a compile depends on: the graph with its names, facts and constants (or the bytes of the
file), donated memory, options and target, custom operators, versions and sources of the compiler, and the settings of
the process. Models without a stable key are not cached. NPU_CACHE_DIR moves the folder; NPU_CACHE_DIR=off disables the
cache.

This module loads neither the operator library nor the kernel generator, so that a cached model starts fast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ge.model import om
from ge.model.model import Model
from ge.model.store import ModelStore
from ge.options import CompileOptions
from ge.plan import Plan
from npu_runtime import UnsupportedTask, environment

__all__ = ["Counters", "counters", "find", "keep", "keeps"]


@dataclass
class Counters:
    """What this process has compiled, and what it loaded from the cache."""

    compiled: int = 0  # plans that were compiled
    loaded: int = 0  # plans read from disk


counters = Counters()


def keeps(options: CompileOptions) -> bool:
    """True if models compiled with these options are cached on disk."""
    dumps = options.dump_stages or environment.names("NPU_DUMP")
    return environment.compile_cache() is not None and not dumps


def find(key: str, adapt: Callable[[Plan], Plan] = lambda plan: plan) -> Model | None:
    """The cached model of a key, its plan adapted to the caller; None if there is none that runs here."""
    package = _store().read(key)
    if package is None:
        return None
    try:
        model = Model(adapt(package.plans[0]))
    except UnsupportedTask:
        return None  # written by another machine under the same key
    counters.loaded += 1
    return model


def keep(key: str, plan: Plan) -> None:
    """Cache a plan for later processes."""
    _store().write(key, om.Package([plan]))


def _store() -> ModelStore:
    folder = environment.compile_cache()
    assert folder is not None, "nothing is kept without a folder"
    return ModelStore(folder)
