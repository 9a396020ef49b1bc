"""Random programs that are valid by construction: each statement is tried on the framework as it is made."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from ge.conformance.programs.door import Call, Door
from ge.conformance.programs.record import Block, Input, Program, Role, Statement, Value
from ge.conformance.programs.sampling import FILLS, sample

__all__ = ["FLOATS", "INTEGERS", "Draw", "generate"]

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int32", "int64", "int8", "int16", "uint8", "uint16", "uint32", "uint64")
LARGEST = 4096  # elements of a value
SHORT = 3  # statements of a short program, at most
DEPTH = 2  # of nested control flow
TRIES = 60  # rejected statements before a program is abandoned

_SIZES = {1: 5, 2: 8, 3: 8, 4: 6, 5: 4, 7: 2, 8: 3, 16: 2, 17: 2, 33: 1, 0: 1.2}
_RANKS = {0: 2, 1: 5, 2: 7, 3: 4, 4: 3, 5: 0.4}

T = TypeVar("T")


def weighted(rng: random.Random, table: Mapping[T, float]) -> T:
    """Choose one key with probability proportional to its weight."""
    return rng.choices(list(table), list(table.values()))[0]


class _Stop(Exception):
    """The framework rejected too many proposals."""


class Draw:
    """Random choices for makers: values in scope, new inputs, numbers, blocks."""

    def __init__(self, door: Door, rng: random.Random) -> None:
        self.door = door
        self.rng = rng
        self.inputs: list[Input] = []
        self.tensors: dict[str, Any] = {}
        self.values: dict[str, Value] = {}  # all in scope
        self.depth = 0
        self.batch = rng.choice([2, 3, 4, 5, 8])
        self.options: set[str] = {o for o, chance in door.options.items() if rng.random() < chance}
        self._tries = TRIES
        self._names = 0
        self._main = weighted(rng, door.dtypes)
        self._statements: list[Statement] = []

    # -- choices ---------------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def choice(self, items: Sequence[T]) -> T:
        return self.rng.choice(items)

    def integer(self, low: int, high: int) -> int:
        """Random integer; both ends included."""
        if high < low:
            raise LookupError("no such number")
        return self.rng.randint(low, high)

    def axis(self, value: Value, negative: bool = True) -> int:
        rank = len(value.shape)
        if not rank:
            return 0
        return self.integer(-rank if negative and self.chance(0.3) else 0, rank - 1)

    def axes(self, value: Value) -> list[int]:
        """Random subset of the axes, possibly none or all."""
        rank = len(value.shape)
        return sorted(self.rng.sample(range(rank), self.integer(0, rank)))

    def shape(self, ranks: Sequence[int] | None = None) -> tuple[int, ...]:
        rank = self.choice(ranks) if ranks else weighted(self.rng, _RANKS)
        sizes = [weighted(self.rng, _SIZES) for _ in range(rank)]
        if rank and self.chance(0.5):
            sizes[0] = self.batch
        while np.prod(sizes) > LARGEST / 4:
            sizes[sizes.index(max(sizes))] //= 2
        return tuple(sizes)

    def dtype(self, allowed: Sequence[str] | None = None) -> str:
        """Random element type, mostly the program's own so that values can be combined."""
        table = {d: w for d, w in self.door.dtypes.items() if allowed is None or d in allowed}
        if not table:
            raise LookupError("no such type")
        if self._main in table and self.chance(0.8):
            return self._main
        return weighted(self.rng, table)

    # -- values ----------------------------------------------------------------------------------------------

    def pick(
        self,
        dtypes: Sequence[str] | None = None,
        ranks: Sequence[int] | None = None,
        fits: Callable[[Value], bool] = lambda v: True,
        fresh: float = 0.15,
    ) -> Value:
        """Random value in scope, biased to recent ones; a new input if none fits, and sometimes anyway."""
        found = [
            v
            for v in self.values.values()
            if (dtypes is None or v.dtype in dtypes) and (ranks is None or len(v.shape) in ranks) and fits(v)
        ]
        if found and not self.chance(fresh):
            return self.rng.choices(found, range(1, len(found) + 1))[0]
        for _ in range(20):
            value = Value("", self.dtype(dtypes), self.shape(ranks))
            if fits(value):
                return self.input(value.dtype, value.shape)
        raise LookupError("nothing fits")

    def like(self, value: Value) -> Value:
        return self.of(value.dtype, value.shape)

    def of(self, dtype: str, shape: Sequence[int], fill: str = "") -> Value:
        """Random value of this type and shape."""
        wanted = Value("", dtype, tuple(shape))
        found = [v for v in self.values.values() if v.like(wanted)]
        if found and not fill and not self.chance(0.2):
            return self.choice(found)
        return self.input(dtype, tuple(shape), fill, opened=False)

    def broadcast(self, value: Value) -> Value:
        """Random value of the same type that broadcasts with this one."""

        def fits(other: Value) -> bool:
            pairs = zip(reversed(value.shape), reversed(other.shape), strict=False)
            return other.dtype == value.dtype and all(a == b or 1 in (a, b) for a, b in pairs)

        found = [v for v in self.values.values() if fits(v)]
        if found and self.chance(0.75):
            return self.choice(found)
        shape = [s if self.chance(0.75) else 1 for s in value.shape][self.integer(0, len(value.shape)) :]
        if self.chance(0.1):
            shape = [self.integer(1, 3), *value.shape]
        return self.input(value.dtype, tuple(shape) if np.prod(shape, dtype=int) <= LARGEST else value.shape)

    def input(
        self, dtype: str, shape: tuple[int, ...], fill: str = "", role: str = "", opened: bool = True
    ) -> Value:
        """A new input of the program, also when called inside a block.

        opened: the first dimension, if it is the program's batch, may differ between runs.
        """
        value = Value(self.name("x"), dtype, shape)
        role = role or weighted(self.rng, self.door.roles)
        opened = opened and role == "fed" and shape[:1] == (self.batch,) and not fill
        fill = fill or weighted(self.rng, FILLS)
        # Flushed denormals in a state diverge from run to run, slopes beside a kink depend on their sign.
        kinks = self.door.flushes and "gradient" in self.options
        if (role == "state" or kinks) and fill == "tiny":
            fill = "ordinary"
        given = Input(value, Role(role), fill, self.rng.randrange(2**31), opened)
        tensor = self.door.tensor(sample(dtype, shape, given.fill, given.seed), role)
        self.inputs.append(given)
        self.values[value.name], self.tensors[value.name] = value, tensor
        return value

    def name(self, prefix: str = "v") -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    # -- statements ------------------------------------------------------------------------------------------

    def block(
        self,
        parameters: Sequence[tuple[Value, Any]],
        results: Sequence[Value] = (),
        most: int = 4,
        must: Sequence[Value] = (),
    ) -> Block:
        """A block of a few statements. Each parameter comes with a sample tensor.

        results: required types and shapes; the latest matching values are returned, or any values if the list is
        empty. must: values returned before those.
        """
        if self.depth >= DEPTH:
            raise LookupError("too deep")
        outer, saved = dict(self.values), self._statements
        known = {i.value.name for i in self.inputs}
        self._statements, self.depth = [], self.depth + 1
        try:
            for value, tensor in parameters:
                self.values[value.name], self.tensors[value.name] = value, tensor
            self.extend(self.integer(1, most))
            given = [self._latest(r) for r in results] if results else [self._last()]
            return Block(tuple(v for v, _ in parameters), tuple(self._statements), (*must, *given))
        finally:
            new = {i.value.name: i.value for i in self.inputs if i.value.name not in known}
            self.values = outer | new
            self._statements, self.depth = saved, self.depth - 1

    def _latest(self, wanted: Value) -> Value:
        found = [v for v in self.values.values() if v.like(wanted)]
        if not found:
            raise LookupError("the block has no such value")
        return found[-1] if self.chance(0.8) else self.choice(found)

    def _last(self) -> Value:
        return list(self.values.values())[-1]

    def parameter(self, value: Value) -> tuple[Value, Any]:
        """Declare a block parameter for a value in scope."""
        return Value(self.name("p"), value.dtype, value.shape), self.tensors[value.name]

    def extend(self, count: int) -> None:
        """Add statements."""
        made = 0
        while made < count:
            made += self._try()

    def emit(self, operator: str, call: Call) -> tuple[Value, ...]:
        """Emit a statement that another one needs."""
        if not self._add(operator, call):
            raise LookupError(f"{operator} is refused")
        return self._statements[-1].results

    def _try(self) -> bool:
        if not self._tries:
            raise _Stop
        self._tries -= 1
        table = {name: weight for name, (weight, _) in self.door.operators.items()}
        operator = weighted(self.rng, table)
        try:
            call = self.door.operators[operator][1](self)
        except LookupError:
            return False
        return call is not None and self._add(operator, call)

    def _add(self, operator: str, call: Call) -> bool:
        draft = Statement(
            operator,
            call.text,
            tuple(v.name for v in call.arguments),
            tuple(Value(f"result{i}", "", ()) for i in range(call.results)),
            tuple(call.blocks),
            call.noise,
            call.effect,
        )
        try:
            tensors = self.door.evaluate(draft, self.tensors)
        except _Stop:
            raise
        except Exception:  # invalid, whatever the exception
            return False
        arrays = [self.door.array(t) for t in tensors]
        if not arrays or any(a is None or a.size > LARGEST for a in arrays):
            return False
        results = tuple(Value(self.name(), a.dtype.name, a.shape) for a in arrays if a is not None)
        statement = Statement(**{**vars(draft), "results": results})
        if self.depth and not self.door.accepts(statement, self.values, self.tensors):
            return False
        for value, tensor in zip(results, tensors, strict=True):
            self.values[value.name], self.tensors[value.name] = value, tensor
        self._statements.append(statement)
        return True

    def program(self, statements: int) -> Program:
        """Generate a complete program for one mode."""
        with contextlib.suppress(_Stop):
            self.extend(statements)
        mode = weighted(self.rng, self.door.modes)
        program = self._assembled()
        if not self.door.accepts_all(program):
            self._statements = list(self._accepted())
            program = self._assembled()
        return replace(program, mode=mode)

    def _assembled(self) -> Program:
        """Build the program: unread values are results, and sometimes values that are read."""
        read = set[str]().union(*(s.reads() for s in self._statements))
        made = [v for s in self._statements for v in s.results]
        results = [v for v in made if v.name not in read or self.chance(0.15)]
        used = [i for i in self.inputs if i.value.name in read]
        return Program(tuple(used), tuple(self._statements), tuple(results), "", tuple(sorted(self.options)))

    def _accepted(self) -> Iterator[Statement]:
        """The statements that the door supports, minus those that depend on unsupported ones."""
        missing = set[str]()
        for statement in self._statements:
            if statement.reads() & missing or not self.door.accepts(statement, self.values, self.tensors):
                missing |= {v.name for v in statement.results}
            else:
                yield statement


def generate(door: Door, seed: str, short: bool = False) -> Program:
    """Generate the program of a seed; `short` limits the number of statements."""
    rng = random.Random(seed)
    most = min(door.statements, SHORT) if short else door.statements
    return Draw(door, rng).program(rng.randint(2, most))
