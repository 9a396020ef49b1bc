"""The candidate that is no task: the operator's own decomposition into smaller operators."""

from __future__ import annotations

from ge.implementations.base import Candidate

__all__ = ["DECOMPOSED", "Decomposed"]

DECOMPOSED = "decomposed"


class Decomposed(Candidate):
    """Smaller operators in place of one task; possible for whatever operands."""

    name = DECOMPOSED
