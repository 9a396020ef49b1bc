"""Candidates without a runtime task: a generated kernel of the operator's expression, and its decomposition."""

from __future__ import annotations

from ge.implementations.base import Candidate

__all__ = ["DECOMPOSED", "GENERATED", "Decomposed", "Generated"]

DECOMPOSED = "decomposed"
GENERATED = "generated"


class Decomposed(Candidate):
    """Smaller operators in place of one task; accepts all operands."""

    name = DECOMPOSED


class Generated(Candidate):
    """A kernel generated from the operator's tensor expression, tiled into registers; for all targets."""

    name = GENERATED
