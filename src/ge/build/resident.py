"""Values that stay in the arena between two programs that run in the same arena.

A program leaves outputs in the arena instead of copying them out; the next program reads them there, overwrites them
after their last use, and plans its own values around them. The caller runs both in the same arena.
1. Outputs that are left are live until the program ends; `Plan.left` has their offsets.
2. Given inputs are live from the start until their last use, at offsets that the caller specifies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ge.build.donate import Donation
from ge.errors import GeError
from ge.ops.base import has_dynamic_size

__all__ = ["NOTHING", "ResidentValues", "check_resident"]


@dataclass(frozen=True)
class ResidentValues:
    """Inputs already in the arena (position → offset) and outputs that stay there (positions).

    >>> bool(ResidentValues(given={0: 4096})), bool(ResidentValues())
    (True, False)
    """

    given: Mapping[int, int] = field(default_factory=dict)
    left: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.given or self.left)

    def ports(self, donated: Sequence[Donation]) -> tuple[Donation, ...]:
        """The donated pairs, renumbered: resident values are not ports."""

        def port(position: int, resident: Collection[int]) -> int:
            return position - sum(other < position for other in resident)

        return tuple((port(output, self.left), port(source, self.given)) for output, source in donated)


NOTHING = ResidentValues()


def check_resident(graph: ir.Graph, resident: ResidentValues, donated: Sequence[Donation]) -> None:
    """Raise GeError for values that cannot stay in the arena."""
    if any(output in resident.left or source in resident.given for output, source in donated):
        raise GeError("E10504", "a value that stays in the arena cannot be donated")
    for position in resident.left:
        if has_dynamic_size(graph.outputs[position]):
            raise GeError(
                "E10504", f"output {position} has no size before the run and cannot be left in the arena"
            )
