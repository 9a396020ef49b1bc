"""Translates failed runs to the errors that PyTorch raises for the same data."""

from __future__ import annotations

from npu_runtime import TaskError

__all__ = ["as_torch_error"]

_RUNTIME = (
    "aten.gather:",
    "aten.scatter",
    "aten.index_add:",
    "aten.index_select: INDICES",
    "aten.masked_scatter:",
    "aten.binary_cross_entropy:",
)  # whose kernels raise RuntimeError


def as_torch_error(error: TaskError) -> Exception:
    """IndexError for an index out of range where PyTorch raises it, RuntimeError else."""
    if error.kind == "index" and not error.cause.startswith(_RUNTIME):
        return IndexError(error.cause)
    return RuntimeError(error.cause) if error.kind else error
