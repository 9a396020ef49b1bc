"""Handover: values that stay in the arena from one program to the next.

A program leaves results in the arena instead of the caller's memory; the next one finds them there, may write over
them once they are read, and plans its own values around them. Whoever runs the two gives both the same arena.
1. What is left stays untouched until the program ends; its places are in `Plan.left`.
2. What is given lies where the caller says from the beginning on, until its last use.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ge.build.donate import Donation
from ge.errors import GeError
from ge.ops.base import has_dynamic_size

__all__ = ["NOTHING", "Handover", "check_handover"]


@dataclass(frozen=True)
class Handover:
    """Inputs that lie in the arena already, with their places, and outputs that stay there, by position.

    >>> bool(Handover(given={0: 4096})), bool(Handover())
    (True, False)
    """

    given: Mapping[int, int] = field(default_factory=dict)
    left: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.given or self.left)

    def ports(self, donated: Sequence[Donation]) -> tuple[Donation, ...]:
        """Donated pairs by the positions of the ports that are left: what is handed over is none."""

        def port(position: int, handed: Collection[int]) -> int:
            return position - sum(other < position for other in handed)

        return tuple((port(output, self.left), port(source, self.given)) for output, source in donated)


NOTHING = Handover()


def check_handover(graph: ir.Graph, handover: Handover, donated: Sequence[Donation]) -> None:
    """Raise when something cannot be handed over."""
    if any(output in handover.left or source in handover.given for output, source in donated):
        raise GeError("E10504", "what is handed over cannot be donated")
    for position in handover.left:
        if has_dynamic_size(graph.outputs[position]):
            raise GeError(
                "E10504", f"output {position} has no size before the run and cannot be left in the arena"
            )
