"""All patches of PyTorch by the compiler, in one table, with the tested versions."""

from __future__ import annotations

import functools

from ge.compatibility import Patch, PatchTable
from torchair import sizes

__all__ = ["PATCHES", "apply"]

_VARIABLES = "torch._dynamo.variables"

PATCHES = PatchTable(
    "PyTorch",
    ("2.13.0",),
    (
        Patch(
            f"{_VARIABLES}:TorchInGraphFunctionVariable._get_handlers",
            sizes.with_causality,
            "attention whose is_causal follows from an open size ends a graph",
            needs=(f"{_VARIABLES}:ConstantVariable.create", f"{_VARIABLES}:SymNodeVariable.evaluate_expr"),
        ),
        Patch(
            "torch._dynamo.convert_frame:_compile",
            sizes.traced_again,
            "an open size that becomes one and broadcasts is an error",
        ),
    ),
)


@functools.cache
def apply() -> None:
    """Apply the patches, once a process."""
    PATCHES.apply()
