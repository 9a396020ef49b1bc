"""Implementations: one ordered list of candidates per kind of cube task, and the choice among them.

A candidate states which operations it rejects on a target, what it costs there, and which epilogues it supports. The
compiler chooses once and records the name in the task (`attrs["implementation"]`); the runtime runs that one.
"""

from __future__ import annotations

from typing import Any

from ge.implementations import (
    attention,
    convolution,
    cuda,
    normalisation,
    packed,
    product,
    recurrent,
    weight_gradient,
)
from ge.implementations.base import (
    LIBRARY,
    SETTINGS,
    Candidate,
    Choice,
    Library,
    Operation,
    choose_from,
    is_small,
)
from ge.implementations.decomposed import DECOMPOSED, GENERATED, Decomposed, Generated
from ge.target import Target

__all__ = [
    "CANDIDATES",
    "DECOMPOSED",
    "GENERATED",
    "LIBRARY",
    "SETTINGS",
    "Candidate",
    "Choice",
    "Operation",
    "candidates_for",
    "choose",
    "choose_from",
    "fuses_epilogues",
    "is_small",
    "settings",
    "takes_late_sum",
]

_LIBRARY_ONLY = (Library(),)

# By kind of task; the order breaks ties of equal cost.
CANDIDATES: dict[str, tuple[Candidate, ...]] = {
    "matmul": product.CANDIDATES,
    "conv": convolution.CONVOLUTIONS,
    "deconv": convolution.TRANSPOSED,
    "conv_grad_weights": weight_gradient.CANDIDATES,
    "rnn": recurrent.LAYERS,
    "lstm_steps": recurrent.STEPS,
    "lstm_steps_grad": recurrent.STEPS,
    "attention": attention.FORWARD,
    "attention_grad": attention.GRADIENT,
    "layer_norm_grad": normalisation.GRADIENT,
    "packed_matmul": packed.CANDIDATES,
    "pool": _LIBRARY_ONLY,
    "pool_grad": _LIBRARY_ONLY,
    "lrn": normalisation.NEIGHBOURS,
}


# Without the library; with it, our own kernels that exist beside it.
_GENERATED = ("matmul", "conv", "deconv", "conv_grad_weights", "pool", "lrn")
_WITHOUT_LIBRARY: dict[str, tuple[Candidate, ...]] = {
    kind: (Generated() if kind in _GENERATED else Decomposed(),) for kind in CANDIDATES
}


def candidates_for(kind: str, target: Target) -> tuple[Candidate, ...]:
    """The candidates for a kind of task on a target; empty if nothing there runs such tasks."""
    lists = CANDIDATES if target.library else _WITHOUT_LIBRARY
    return (cuda.CANDIDATES if target.kind == "cuda" else lists).get(kind, ())


def choose(op: Operation, target: Target) -> Choice:
    """The implementation of an operation on a target, with the reasons against the others."""
    return choose_from(candidates_for(op.kind, target), op, target)


def settings(op: Operation, choice: Choice, target: Target) -> dict[str, Any]:
    """The attributes with which the runtime runs the chosen implementation."""
    (candidate,) = (c for c in candidates_for(op.kind, target) if c.name == choice.name)
    return candidate.settings(op, target)


def fuses_epilogues(op: Operation, target: Target) -> bool:
    """True if the library applies the epilogue of this operation to sums in registers."""
    return op.kind != "deconv" or convolution.fuses_epilogues(op, target)


def takes_late_sum(op: Operation, target: Target) -> bool:
    """True if the library stays fast when it adds to its result after other post-ops."""
    late = product.takes_late_sum if op.kind == "matmul" else convolution.takes_late_sum
    return late(op, target)
