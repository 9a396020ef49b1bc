"""All patches of PyTorch by the compiler, in one table, with the tested versions."""

from __future__ import annotations

import functools

from ge.compatibility import Patch, PatchTable
from torchair import early_decompositions, sizes

__all__ = ["PATCHES", "apply"]

_VARIABLES = "torch._dynamo.variables"
_DECOMPOSITIONS = "torch._decomp.decompositions"
_ATEN = "torch:ops.aten"

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
        Patch(
            f"{_DECOMPOSITIONS}:_compute_upsample_nearest_indices",
            early_decompositions.nearest_places,
            "compiled nearest neighbours differ from eager mode's where a size does not follow from its scale",
        ),
        Patch(
            f"{_DECOMPOSITIONS}:_upsample_linear",
            early_decompositions.resized_linearly,
            "compiled linear interpolation is NaN between infinities",
        ),
        Patch(
            f"{_ATEN}.multi_margin_loss.default.py_kernels",
            early_decompositions.multi_margin_loss,
            "the compiled multi_margin_loss is NaN where eager mode's is not",
        ),
        Patch(
            f"{_ATEN}.multilabel_margin_loss_forward.default.py_kernels",
            early_decompositions.multilabel_margin_loss,
            "the compiled multilabel_margin_loss counts labels after the first -1",
        ),
    ),
)


@functools.cache
def apply() -> None:
    """Apply the patches, once per process."""
    PATCHES.apply()
