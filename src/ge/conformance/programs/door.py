"""What a front door supplies."""

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
    """Where a value may be another one in another implementation."""

    RESULT = 1  # rounded
    TERM = 2  # of a sum
    ARGUMENT = 3  # denormal numbers alone, which may be flushed


@dataclass(frozen=True)
class Rounding:
    """What one noisy run does: factors for the elements of a floating-point array."""

    factors: Callable[[np.ndarray, Place], np.ndarray]
    # for what is not finite in a window; infinity is a number near the largest one; None: as it is
    stand_in: float | None = 1.0
    seed: int = 0  # of choices that implementations make otherwise

    def stand_in_below(self, largest: float) -> float:
        """The stand-in among numbers up to `largest`."""
        assert self.stand_in is not None
        return max(-largest / 16, min(self.stand_in, largest / 16))

    def __call__(self, array: np.ndarray, place: Place) -> np.ndarray:
        return self.factors(array, place)


class Refused(Exception):
    """The door says plainly that it does not take the program: neither right nor wrong."""


@dataclass(frozen=True)
class Call:
    """A statement that a maker proposes; the framework decides whether it is valid and what comes of it."""

    text: str
    arguments: Sequence[Value] = ()
    blocks: Sequence[Block] = ()
    results: int = 1
    noise: Noise = Noise.RESULT
    effect: bool = False


Maker = Callable[["Draw"], Call | None]
Adder = Callable[..., Callable[[Callable[..., Call]], Callable[..., Call]]]


def adder(operators: dict[str, tuple[float, Maker]]) -> Adder:
    """The decorator that declares, for some names and with a weight, how an operator is made.

    A function for several names takes the name first.
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
    modes: Mapping[str, float]  # weights of the ways to run; a program has one
    statements = 12  # of a program, at most
    options: Mapping[str, float] = {}
    roles: Mapping[str, float] = {"fed": 1.0}

    @abstractmethod
    def tensor(self, array: np.ndarray, role: str) -> Any:
        """A tensor of the framework, on the host."""

    @abstractmethod
    def array(self, tensor: Any) -> np.ndarray | None:
        """The elements of a tensor, None for anything else."""

    @abstractmethod
    def evaluate(self, statement: Statement, scope: Mapping[str, Any]) -> list[Any]:
        """The results of one statement, by the framework on the host. Raises what the framework raises."""

    def accepts(self, statement: Statement, scope: Mapping[str, Value], tensors: Mapping[str, Any]) -> bool:
        """False for what the door declares unsupported, so that programs are not made of refusals."""
        return True

    def accepts_all(self, program: Program) -> bool:
        """False if one of the statements outside of blocks may be unsupported: then each of them is asked about."""
        return True

    @abstractmethod
    def reference(self, program: Program, runs: Runs, rounding: Rounding | None) -> list[list[np.ndarray]]:
        """The results of each run by the framework; `rounding` disturbs what is rounded on the way."""

    def same_reference(self, program: Program) -> bool:
        """True if all modes have one reference: nothing is random by the way it is called."""
        return True

    def contradicts(self, program: Program, arrays: list[np.ndarray], results: list[np.ndarray]) -> bool:
        """True if the framework contradicts itself in this run, so that its results say nothing."""
        return False

    def has_state(self, program: Program) -> bool:
        """True if a run may change what the next run reads."""
        return any(i.role is Role.STATE for i in program.inputs)

    def measurable(self, program: Program) -> bool:
        """False if `rounding` would change more than what is rounded."""
        return True

    @abstractmethod
    def run(self, program: Program, runs: Runs) -> list[list[np.ndarray]]:
        """The results of each run through the door."""

    def second_opinion(self, program: Program, runs: Runs) -> list[list[np.ndarray]] | None:
        """What another implementation of the framework answers, where there is one."""
        return None

    @abstractmethod
    def standalone(self, program: Program, runs: Runs, comparison: str) -> str:
        """A test file that needs nothing of the generator; `comparison` is its body after both results are there."""
