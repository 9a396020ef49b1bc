"""Implementations of products with 4- or 8-bit weights: in panels, unpacked in registers, in tiles, or widened."""

from __future__ import annotations

from ge.implementations.base import Candidate, Operation
from ge.implementations.decomposed import Decomposed
from ge.target import CostTable, Target

__all__ = ["CANDIDATES"]

_LANE_BITS, _LANES = 32, 16  # of the kernel, native/product/packed.inc
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
        if (
            group >= op.inputs[0].shape[1]
            or group % block == 0
            or (block % group == 0 and group % per_lane == 0)
        ):
            return ""
        return f"groups of {group} do not match blocks of {block} weights"

    def measured_gain(self, op: Operation, target: Target, costs: CostTable) -> float:
        return costs.packed_rows / max(op.inputs[0].shape[0], 1)

    def modelled_gain(self, op: Operation, target: Target) -> float:
        """The weights are unpacked again for each block of rows."""
        return self.measured_gain(op, target, target.measured)


class Tiles(Candidate):
    """Many rows: tiles of weights are unpacked into the caches and multiplied by the library."""

    name = "tiles"
    needs_bf16 = "avx512_bf16"

    def unfit(self, op: Operation) -> str:
        bits, group = int(op.attrs["bits"]), int(op.attrs["group"])
        whole = group >= op.inputs[0].shape[1] or group * bits % 8 == 0
        return "" if whole else f"groups of {group} begin within a byte"


CANDIDATES: tuple[Candidate, ...] = (Panels(), Rows(), Tiles(), Decomposed())
