"""Implementations of products with 4- or 8-bit weights: unpacked in registers, in tiles, or widened."""

from __future__ import annotations

from ge.implementations.base import Candidate, Operation
from ge.implementations.decomposed import Decomposed

__all__ = ["CANDIDATES"]

_LANE_BITS, _LANES = 32, 16  # of the kernel, native/product/packed.inc
_FEW_ROWS = 64


class Rows(Candidate):
    """Few rows: weights are unpacked in registers as they are loaded."""

    name = "rows"
    needs_bf16 = "avx512_bf16"

    def unfit(self, op: Operation) -> str:
        bits, group = int(op.attrs["bits"]), int(op.attrs["group"])
        per_lane = _LANE_BITS // bits
        block = per_lane * _LANES
        if op.inputs[0].shape[0] > _FEW_ROWS:
            return f"it has more than {_FEW_ROWS} rows"
        if (
            group >= op.inputs[0].shape[1]
            or group % block == 0
            or (block % group == 0 and group % per_lane == 0)
        ):
            return ""
        return f"groups of {group} do not match blocks of {block} weights"


class Tiles(Candidate):
    """Many rows: tiles of weights are unpacked into the caches and multiplied by the library."""

    name = "tiles"
    needs_bf16 = "avx512_bf16"

    def unfit(self, op: Operation) -> str:
        bits, group = int(op.attrs["bits"]), int(op.attrs["group"])
        whole = group >= op.inputs[0].shape[1] or group * bits % 8 == 0
        return "" if whole else f"groups of {group} begin within a byte"


CANDIDATES: tuple[Candidate, ...] = (Rows(), Tiles(), Decomposed())
