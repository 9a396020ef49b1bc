"""A program as data: typed statements over named values, with nested blocks for control flow.

The text of a statement is an expression of the door's language in which `{0}`, `{1}` stand for arguments and `{b0}`,
`{b1}` for blocks, so that a failing program can be written as self-contained source.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np

__all__ = [
    "Block",
    "Input",
    "Noise",
    "Program",
    "Role",
    "Statement",
    "Value",
    "live",
    "numpy_dtype",
    "only",
    "walk",
]


class Role(str, Enum):
    """How an input reaches the program."""

    FED = "fed"
    CONSTANT = "constant"  # part of the program
    STATE = "state"  # one tensor for all runs, which the program may write


class Noise(str, Enum):
    """Where correct implementations may round differently."""

    NONE = "none"  # exact: data movement, integers
    FLUSH = "flush"  # exact except for denormals, which may be flushed
    RESULT = "result"
    ARGUMENTS = "arguments"  # sums: relative to the terms, not to the result
    WINDOW = "window"  # sums that may skip padding, where infinity would give NaN
    UNIT = "unit"  # via a sum with one, such as log(1 + x)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy type of this name, bfloat16 included."""
    return np.dtype(getattr(ml_dtypes, name) if name == "bfloat16" else name)


@dataclass(frozen=True)
class Value:
    """A named tensor with its type and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def like(self, other: Value) -> bool:
        """True if both have one type and shape."""
        return (self.dtype, self.shape) == (other.dtype, other.shape)


@dataclass(frozen=True)
class Block:
    """The body of a branch or loop. It sees all values made before it."""

    parameters: tuple[Value, ...]
    statements: tuple[Statement, ...]
    results: tuple[Value, ...]


@dataclass(frozen=True)
class Statement:
    """One call of the framework."""

    operator: str
    text: str
    arguments: tuple[str, ...]
    results: tuple[Value, ...]
    blocks: tuple[Block, ...] = ()
    noise: Noise = Noise.RESULT
    effect: bool = False  # writes to its first argument, which is also its first result

    def reads(self) -> set[str]:
        """All names it reads, including those read in its blocks."""
        return {*self.arguments}.union(
            *(
                (set[str]().union(*(s.reads() for s in b.statements)) | {v.name for v in b.results})
                for b in self.blocks
            )
        )

    def renamed(self, names: Callable[[str], str]) -> Statement:
        """A copy that reads other names."""
        blocks = tuple(
            replace(
                b,
                statements=tuple(s.renamed(names) for s in b.statements),
                results=tuple(replace(v, name=names(v.name)) for v in b.results),
            )
            for b in self.blocks
        )
        return replace(self, arguments=tuple(names(a) for a in self.arguments), blocks=blocks)


@dataclass(frozen=True)
class Input:
    """A tensor the program starts from; its elements follow from `fill` and `seed`, or are `data`."""

    value: Value
    role: Role = Role.FED
    fill: str = "ordinary"
    seed: int = 0
    open: bool = False  # the first dimension may differ between runs
    data: str = ""  # base64, with fill "given"

    @staticmethod
    def given(name: str, array: np.ndarray, role: Role = Role.FED) -> Input:
        """An input with the given elements."""
        data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
        return Input(Value(name, array.dtype.name, array.shape), role, "given", 0, False, data)


@dataclass(frozen=True)
class Program:
    """What one test runs."""

    inputs: tuple[Input, ...]
    statements: tuple[Statement, ...]
    results: tuple[Value, ...]
    mode: str = ""  # how the door runs it
    options: tuple[str, ...] = ()  # for example "gradient"

    def as_json(self) -> str:
        """Serialise for another process."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Program:
        """Parse the output of `as_json`."""
        data = json.loads(text)
        return Program(
            tuple(
                Input(**{**i, "value": _value(i["value"]), "role": Role(i["role"])}) for i in data["inputs"]
            ),
            tuple(_statement(s) for s in data["statements"]),
            tuple(_value(v) for v in data["results"]),
            data["mode"],
            tuple(data["options"]),
        )

    def operators(self) -> list[str]:
        """The operators of all statements, nested ones included."""
        return [s.operator for s in walk(self.statements)]


def _value(data: dict[str, Any]) -> Value:
    return Value(data["name"], data["dtype"], tuple(data["shape"]))


def _statement(data: dict[str, Any]) -> Statement:
    blocks = tuple(
        Block(
            tuple(_value(v) for v in b["parameters"]),
            tuple(_statement(s) for s in b["statements"]),
            tuple(_value(v) for v in b["results"]),
        )
        for b in data["blocks"]
    )
    results = tuple(_value(v) for v in data["results"])
    known = {"arguments": tuple(data["arguments"]), "results": results, "blocks": blocks}
    return Statement(**{**data, **known, "noise": Noise(data["noise"])})


def walk(statements: Iterable[Statement]) -> Iterator[Statement]:
    """All statements, pre-order."""
    for statement in statements:
        yield statement
        for block in statement.blocks:
            yield from walk(block.statements)


def live(statements: Sequence[Statement], wanted: set[str]) -> tuple[Statement, ...]:
    """The statements that the wanted values or an effect need."""
    kept: list[Statement] = []
    needed = set(wanted)
    for statement in reversed(statements):
        if statement.effect or any(v.name in needed for v in statement.results):
            blocks = tuple(
                replace(b, statements=live(b.statements, {v.name for v in b.results}))
                for b in statement.blocks
            )
            statement = replace(statement, blocks=blocks)
            needed |= statement.reads()
            kept.append(statement)
    return tuple(reversed(kept))


def only(program: Program, position: int) -> Program:
    """The program reduced to one of its results; keeps all inputs."""
    wanted = program.results[position]
    return replace(program, statements=live(program.statements, {wanted.name}), results=(wanted,))
