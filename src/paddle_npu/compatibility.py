"""All patches of PaddlePaddle, in one table."""

from __future__ import annotations

from ge.compatibility import Patch, PatchTable
from paddle_npu import door

__all__ = ["PATCHES"]

_LAYER = "paddle.jit.dy2static.pir_partial_program:PartialProgramLayer"
_FUNCTION = "paddle.jit.dy2static.program_translator:SymbolicStaticFunction"

PATCHES = PatchTable(
    "PaddlePaddle",
    ("3.3.1",),
    (
        Patch(
            f"{_LAYER}.HOOKED_RUN_IMPL",
            lambda _: door.run_hooked,
            needs=(f"{_LAYER}.program", "paddle.framework:_current_expected_place_"),
            named=False,
        ),
        Patch(
            f"{_FUNCTION}._perform_call",
            door.captured_call,
            without="functions of which PaddlePaddle makes no program run without a warning",
        ),
    ),
)
