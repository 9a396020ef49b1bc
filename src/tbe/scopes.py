"""Nested loops in which every value is emitted once, hoisted as far out as its operands allow.

The *depth* of a value is the number of the scope (a loop, or a straight block) in which it is emitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tbe.index import LoopVar
from tbe.ir import Builder, Lines, Value

__all__ = ["Scopes"]


class _Scope:
    """A loop body (or a straight block): the place for code hoisted out of it, and its definitions."""

    __slots__ = ("before", "bound", "keys")

    def __init__(self, before: Lines) -> None:
        self.before = before
        self.bound: list[int] = []
        self.keys: list[tuple] = []


class Scopes:
    """The loops being emitted, and the values already emitted in each of them."""

    def __init__(self, b: Builder) -> None:
        self.b = b
        self.main = b.out
        self.scopes: list[_Scope] = [_Scope([])]
        self.bound: dict[int, tuple[Value, int]] = {}
        self.memo: dict[tuple, tuple[Value, int]] = {}

    def _open(self) -> None:
        before: Lines = []
        self.main.append(before)
        self.scopes.append(_Scope(before))

    def _close(self) -> None:
        scope = self.scopes.pop()
        for key in scope.keys:
            self.memo.pop(key, None)
        for bit in scope.bound:
            del self.bound[bit]

    def _bind(self, var: LoopVar, value: Value) -> None:
        depth = len(self.scopes) - 1
        self.bound[var.bit] = (value, depth)
        self.scopes[-1].bound.append(var.bit)

    def _region(self, depth: int) -> Lines:
        """The place for code of a depth."""
        return self.main if depth + 1 >= len(self.scopes) else self.scopes[depth + 1].before

    def _keep(self, key: tuple, value: Value, depth: int) -> tuple[Value, int]:
        self.scopes[depth].keys.append(key)
        found = self.memo[key] = (value, depth)
        return found

    def _at(self, depth: int, write: Callable[[], Value]) -> Value:
        """Emit code at a depth."""
        saved = self.b.out
        self.b.out = self._region(depth)
        value = write()
        self.b.out = saved
        return value

    def _loop(
        self,
        start: Value,
        stop: Value,
        step: int,
        carried: Sequence[Value],
        body: Callable[[Value, list[Value]], Sequence[Value]],
    ) -> list[Value]:
        self._open()
        results = self.b.loop(start, stop, step, carried, body)
        self._close()
        return results

    def _when(self, condition: Value, body: Callable[[], None]) -> None:
        """Run the body if the condition holds; code hoisted out of it goes before the branch."""
        self._open()
        self.b.when(condition, body)
        self._close()

    def _number(self, value: int) -> Value:
        return self.b.const("i64", 1, value)

    def _straight(self, body: Callable[[], None]) -> None:
        self._open()
        body()
        self._close()
