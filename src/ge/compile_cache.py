"""The compile cache: finds models on disk that an earlier process compiled from the same graph or file.

The key is made of everything a compile depends on: the graph with its names, facts and constants (or the bytes of the
file), donated memory, options and target, operators of users, versions and sources of the compiler, and the settings of
the process. What has no stable text is not kept. NPU_CACHE_DIR moves the folder, NPU_CACHE_DIR=off ends it.

This module loads neither the operator library nor the kernel generator, so that a model that is found starts fast.
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
    """What this process has compiled, and what it found compiled."""

    compiled: int = 0  # plans that the compiler made
    loaded: int = 0  # plans read from disk


counters = Counters()


def keeps(options: CompileOptions) -> bool:
    """True if models compiled with these options are kept on disk."""
    dumps = options.dump_stages or environment.names("NPU_DUMP")
    return environment.compile_cache() is not None and not dumps


def find(key: str, adapt: Callable[[Plan], Plan] = lambda plan: plan) -> Model | None:
    """The model of a key, its plan adapted to the caller; None where there is none that runs here."""
    package = _store().read(key)
    if package is None:
        return None
    try:
        model = Model(adapt(package.plans[0]))
    except UnsupportedTask:
        return None  # another machine wrote it under the same names
    counters.loaded += 1
    return model


def keep(key: str, plan: Plan) -> None:
    """Keep a plan for later processes."""
    _store().write(key, om.Package([plan]))


def _store() -> ModelStore:
    folder = environment.compile_cache()
    assert folder is not None, "nothing is kept without a folder"
    return ModelStore(folder)
