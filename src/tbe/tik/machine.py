"""Interpreter of TIK programs: memories, scalars, control flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tbe.dtypes import numpy_dtype
from tbe.tik.expression import TikError, Variable, evaluate, wrapped
from tbe.tik.statements import Assign, Branch, Call, End, Loop, Statement, Store
from tbe.tik.tensor import Memory, Tensor

__all__ = ["Machine"]

UNWRITTEN = 0xCD  # fill byte of uninitialised memory


class _Ended(Exception):
    """Control flow leaves a loop or the program."""


class Machine:
    """The state of a run."""

    def __init__(self, memories: Sequence[Memory]) -> None:
        self._bytes: dict[Memory, np.ndarray] = {}
        self._variables: dict[Variable, Any] = {}
        self.atomic = False  # moves to global memory accumulate
        for memory in memories:
            start = 0 if memory.scope == "global" else UNWRITTEN
            self._bytes[memory] = np.full(memory.nbytes, start, np.uint8)
            if memory.init is not None:
                self.fill(memory, np.asarray(memory.init), (memory.size,))

    # -- values ---------------------------------------------------------------------------------------------

    def array(self, memory: Memory, dtype: str = "") -> np.ndarray:
        """A writable view of a memory's elements."""
        return self._bytes[memory].view(numpy_dtype(dtype or memory.dtype))

    def elements(self, tensor: Tensor) -> np.ndarray:
        """All elements of a tensor's memory, in the tensor's type."""
        return self.array(tensor.memory, tensor.dtype)

    def fill(self, memory: Memory, value: np.ndarray, shape: Sequence[int]) -> None:
        """Initialise a memory."""
        wanted = numpy_dtype(memory.dtype)
        if value.size != memory.size or value.dtype != wanted:
            raise TikError(
                f"{memory.name} is {memory.dtype}{list(shape)}, got {value.dtype}{list(value.shape)}"
            )
        self.array(memory)[:] = value.reshape(-1)

    def set(self, variable: Variable, value: Any) -> None:
        """Assign a scalar."""
        self._variables[variable] = wrapped(value, variable.dtype)

    def number(self, value: Any) -> Any:
        """The current value of a number or element."""
        if isinstance(value, Tensor):
            return self._load(value)
        return evaluate(value, self._variables, self._load)

    def whole(self, value: Any, what: str, least: int, most: int) -> int:
        """Evaluate an integer and check its range."""
        found = self.number(value)
        if not isinstance(found, int | np.integer) or not least <= found <= most:
            raise TikError(f"{what} is {found}, not a whole number from {least} to {most}")
        return int(found)

    def offset(self, tensor: Tensor) -> int:
        """Index of the first element of a tensor."""
        return int(self.number(tensor.offset))

    def _load(self, tensor: Tensor) -> Any:
        return self.elements(tensor)[self._place(tensor)].item()

    def _place(self, tensor: Tensor) -> int:
        place, size = self.offset(tensor), len(self.elements(tensor))
        if not 0 <= place < size:
            raise TikError(f"element {place} of {tensor.name}, which has {size}")
        return place

    # -- statements -----------------------------------------------------------------------------------------

    def run(self, body: Sequence[Statement]) -> None:
        """Run a program."""
        try:
            self._run(body)
        except _Ended as end:
            if str(end) != "return":
                raise TikError(f"tik_{end} outside of a loop") from None

    def _run(self, body: Sequence[Statement]) -> None:
        for statement in body:
            if isinstance(statement, Loop):
                self._loop(statement)
            elif isinstance(statement, End):
                raise _Ended(statement.how)
            else:
                self._step(statement)

    def _step(self, statement: Assign | Store | Branch | Call) -> None:
        try:
            if isinstance(statement, Assign):
                self.set(statement.scalar, self.number(statement.value))
            elif isinstance(statement, Store):
                array = self.elements(statement.place)
                array[self._place(statement.place)] = wrapped(
                    self.number(statement.value), statement.place.dtype
                )
            elif isinstance(statement, Call):
                statement.instruction(self, **dict(statement.arguments))
            else:
                chosen = next((part for condition, part in statement.parts if self.number(condition)), [])
        except TikError as error:
            name = statement.name if isinstance(statement, Call) else type(statement).__name__.lower()
            raise TikError(f"{statement.line}: {name}: {error}") from None
        if isinstance(statement, Branch):
            self._run(chosen)

    def _loop(self, loop: Loop) -> None:
        begin, end = int(self.number(loop.begin)), int(self.number(loop.end))
        for step in range(begin, end):
            self._variables[loop.step] = step
            try:
                self._run(loop.body)
            except _Ended as how:
                if str(how) == "return":
                    raise
                if str(how) == "break":
                    break
