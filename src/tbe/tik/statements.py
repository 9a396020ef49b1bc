"""The statements of a recorded TIK program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tbe.tik.expression import Variable
from tbe.tik.tensor import Tensor

__all__ = ["Assign", "Branch", "Call", "End", "Loop", "Statement", "Store"]


@dataclass
class Assign:
    """Assign a scalar."""

    scalar: Variable
    value: Any
    line: str


@dataclass
class Store:
    """Assign an element of a tensor."""

    place: Tensor
    value: Any
    line: str


@dataclass
class Loop:
    """A loop over a range."""

    step: Variable
    begin: Any
    end: Any
    body: list[Statement]
    line: str


@dataclass
class Branch:
    """Run the statements of the first condition that holds."""

    parts: list[tuple[Any, list[Statement]]]
    line: str
    closed: bool = False


@dataclass
class Call:
    """An instruction call."""

    name: str
    instruction: Callable[..., None]
    arguments: tuple[tuple[str, Any], ...]
    line: str


@dataclass
class End:
    """Leave a loop, an iteration or the program."""

    how: str


Statement = Assign | Store | Loop | Branch | Call | End
