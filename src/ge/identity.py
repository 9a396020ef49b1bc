"""The compile inputs besides the graph (options, versions, sources, machine): the common part of all cache keys."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import sys

import npu_runtime
from ge import versions
from ge.model import kernels
from ge.options import CompileOptions
from ge.options.table import raw_environment
from npu_runtime import environment

__all__ = ["compile_identity", "process_identity", "sources"]


def compile_identity(options: CompileOptions) -> str:
    """A digest of options and target, of the loaded custom operators, of versions and of this machine.

    >>> compile_identity(CompileOptions()) == compile_identity(CompileOptions(recompute="off"))
    False
    """
    known = sorted(versions.versions().items())
    facts = (
        options.fingerprint(),
        _operators(),
        known,
        sources("ge", "tbe", "npu_runtime"),
        kernels.machine(),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()


@functools.cache
def sources(*packages: str) -> str:
    """A digest of the sizes and times of packages' files: an edited source tree counts as another version.

    >>> sources("ge") == sources("tbe")
    False
    """
    found = []
    for package in packages:
        spec = importlib.util.find_spec(package)  # not loaded for this
        for root in (spec and spec.submodule_search_locations) or ():
            for folder, _, names in os.walk(root):
                for name in names:
                    if name.endswith((".py", ".so")):
                        status = os.stat(os.path.join(folder, name))
                        found.append((folder[len(root) :], name, status.st_size, status.st_mtime_ns))
    return hashlib.sha256(repr(sorted(found)).encode()).hexdigest()


def _operators() -> str:
    """The loaded custom operators; there are none before the operator library is loaded."""
    library = sys.modules.get("ge.ops.base")
    return library.fingerprint() if library is not None else ""


def process_identity() -> tuple[object, ...]:
    """The process state that affects a compile with the environment's options and may change; cheap to compute."""
    device = environment.text("NPU_DEVICE")
    return (raw_environment(), device, _operators(), npu_runtime.num_threads())
