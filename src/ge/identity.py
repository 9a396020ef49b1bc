"""What decides the outcome of a compile besides the graph: the part that the keys of all caches share."""

from __future__ import annotations

import hashlib

import npu_runtime
from ge import ops, versions
from ge.model import kernels
from ge.options import CompileOptions
from ge.options.table import raw_environment
from npu_runtime import environment

__all__ = ["compile_identity", "process_identity"]


def compile_identity(options: CompileOptions) -> str:
    """A digest of options and target, of the operators of users in force, of versions and of this machine.

    >>> compile_identity(CompileOptions()) == compile_identity(CompileOptions(recompute="off"))
    False
    """
    facts = (options.fingerprint(), ops.fingerprint(), sorted(versions.versions().items()), kernels.machine())
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def process_identity() -> tuple[object, ...]:
    """What may change within a process and decides a compile with the environment's options; cheap to find."""
    device = environment.text("NPU_DEVICE")
    return (raw_environment(), device, ops.fingerprint(), npu_runtime.num_threads())
