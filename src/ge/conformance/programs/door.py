"""Interface that a front door implements for random programs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ge.conformance.programs.record import Block, Noise, Program, Role, Statement, Value

if TYPE_CHECKING:
    from ge.conformance.programs.generate import Draw

__all__ = ["Call", "Door", "Maker", "Place", "Refused", "Rounding", "Runs", "adder"]

Runs = list[list[np.ndarray]]


class Place(Enum):
    """Place where correct implementations may disagree on a value."""

    RESULT = 1  # rounded
    TERM = 2  # of a sum
    ARGUMENT = 3  # only denormals, which may be flushed to zero


@dataclass(frozen=True)
class Rounding:
    """Perturbation of one noisy run: factors for the elements of a floating-point array."""

    factors: Callable[[np.ndarray, Place], np.ndarray]
    # replaces non-finite elements in a window; None: keep them
    replacement: float | None = 1.0
    # replaces non-finite results of a window; None: keep them
    outcome: float | None = None
    seed: int = 0  # seed of choices that differ between implementations

    def replacement_below(self, largest: float) -> float:
        """The replacement value, at most `largest`."""
        assert self.replacement is not None
        return max(-largest / 16, min(self.replacement, largest / 16))

    def __call__(self, array: np.ndarray, place: Place) -> np.ndarray:
        return self.factors(array, place)


class Refused(Exception):
    """The door rejects the program explicitly; neither a pass nor a failure."""


@dataclass(frozen=True)
class Call:
    """A statement proposed by a maker; the framework decides whether it is valid and computes its results."""

    text: str
    arguments: Sequence[Value] = ()
    blocks: Sequence[Block] = ()
    results: int = 1
    noise: Noise = Noise.RESULT
    effect: bool = False


Maker = Callable[["Draw"], Call | None]
Adder = Callable[..., Callable[[Callable[..., Call]], Callable[..., Call]]]


def adder(operators: dict[str, tuple[float, Maker]]) -> Adder:
    """Decorator that registers the maker of one or several operators with a weight.

    A maker of several operators takes the name as its first argument.
    """

    def declare(names: str, weight: float = 1.0) -> Callable[[Callable[..., Call]], Callable[..., Call]]:
        def add(make: Callable[..., Call]) -> Callable[..., Call]:
            several = names.split()
            for name in several:
                operators[name] = (weight, partial(make, name) if len(several) > 1 else make)
            return make

        return add

    return declare


class Door(ABC):
    """Runs programs through one front door, and on the framework without it."""

    name: str
    operators: Mapping[str, tuple[float, Maker]]  # weight and maker by name
    dtypes: Mapping[str, float]  # weights of the element types of inputs
    modes: Mapping[str, float]  # weights of the modes; each program runs in one
    statements = 12  # of a program, at most
    options: Mapping[str, float] = {}
    roles: Mapping[str, float] = {"fed": 1.0}
    flushes = False  # whether the framework's kernels take denormal numbers for zeros

    @abstractmethod
    def tensor(self, array: np.ndarray, role: str) -> Any:
        """Create a tensor of the framework on the host."""

    @abstractmethod
    def array(self, tensor: Any) -> np.ndarray | None:
        """The elements of a tensor; None for other values."""

    @abstractmethod
    def evaluate(self, statement: Statement, scope: Mapping[str, Any]) -> list[Any]:
        """Evaluate one statement with the framework on the host; propagates the framework's exceptions."""

    def accepts(self, statement: Statement, scope: Mapping[str, Value], tensors: Mapping[str, Any]) -> bool:
        """False for calls that the door declares unsupported; the generator skips them."""
        return True

    def accepts_all(self, program: Program) -> bool:
        """False if a top-level statement may be unsupported; the caller then checks them one by one."""
        return True

    @abstractmethod
    def reference(self, program: Program, runs: Runs, rounding: Rounding | None) -> list[list[np.ndarray]]:
        """The framework's results of each run; `rounding` perturbs rounded intermediate values."""

    def same_reference(self, program: Program) -> bool:
        """True if all modes share one reference (random numbers do not depend on the mode)."""
        return True

    def contradicts(self, program: Program, arrays: list[np.ndarray], results: list[np.ndarray]) -> bool:
        """True if the framework contradicts itself in this run; its results are then not used."""
        return False

    def has_state(self, program: Program) -> bool:
        """True if a run may change what the next run reads."""
        return any(i.role is Role.STATE for i in program.inputs)

    def measurable(self, program: Program) -> bool:
        """False if `rounding` would change more than rounded values."""
        return True

    @abstractmethod
    def run(self, program: Program, runs: Runs) -> list[list[np.ndarray]]:
        """The results of each run through the door."""

    def second_opinion(self, program: Program, runs: Runs) -> list[list[np.ndarray]] | None:
        """Results of another implementation of the framework, if there is one."""
        return None

    @abstractmethod
    def standalone(self, program: Program, runs: Runs, comparison: str) -> str:
        """Source of a self-contained test file; `comparison` is the code that compares the results."""
