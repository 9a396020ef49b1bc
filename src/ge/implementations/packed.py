"""Implementations of products with 4- or 8-bit weights: in panels, unpacked in registers, in tiles, or widened."""

from __future__ import annotations

from ge.implementations.base import Candidate, Operation
from ge.implementations.decomposed import Decomposed

__all__ = ["CANDIDATES"]

_LANE_BITS, _LANES = 32, 16  # of the kernel, native/product/packed.inc
_FEW_ROWS = 64
_LEAST_BLOCK = 8  # weights that share a factor of x, native/product/panels.cc


class Panels(Candidate):
    """Constant weights, in panels of columns for dot products of bytes with x in fixed-point numbers."""

    name = "panels"
    needs = "avx512_vnni"

    def unfit(self, op: Operation) -> str:
        group, count = int(op.attrs["group"]), 3 + op.flag("has_zeros")
        if not op.constant.issuperset(range(1, count)):
            return "weights, factors or zero points are not constant"
        whole = group >= op.inputs[0].shape[1] or group % _LEAST_BLOCK == 0
        return "" if whole else f"groups of {group} have no whole blocks of {_LEAST_BLOCK} weights"


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


CANDIDATES: tuple[Candidate, ...] = (Panels(), Rows(), Tiles(), Decomposed())
