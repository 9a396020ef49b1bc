"""Numbers of a TIK program: constants, scalars, loop variables and what is computed of them."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tbe.dtypes import numpy_dtype

__all__ = ["Expression", "TikError", "Variable", "all", "any", "evaluate", "negate", "of", "wrapped"]


class TikError(ValueError, AttributeError):
    """A TIK program that breaks a rule of the language."""


def _quotient(a: Any, b: Any) -> Any:
    """Division as the scalar unit has it: whole numbers towards zero."""
    if isinstance(a, int) and isinstance(b, int):
        if b == 0:
            raise TikError("a whole number is divided by zero")
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    with np.errstate(all="ignore"):
        return float(np.divide(a, b))


def _remainder(a: Any, b: Any) -> Any:
    return a - _quotient(a, b) * b if isinstance(a, int) and isinstance(b, int) else np.fmod(a, b)


_OPERATORS: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
    "//": _quotient,
    "%": _remainder,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "&": operator.and_,
    "|": operator.or_,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "neg": operator.neg,
    "abs": abs,
    "all": lambda *a: builtins.all(a),
    "any": lambda *a: builtins.any(a),
    "not": operator.not_,
    "max": max,
    "min": min,
    "sqrt": lambda a: float(np.sqrt(a)),
    "ones": lambda a: int(a).bit_count(),
}


class Expression:
    """A number that a run computes."""

    __hash__ = object.__hash__

    def __init__(self, kind: str, parts: tuple[Any, ...], dtype: str = "int32") -> None:
        self.kind, self.parts, self.dtype = kind, parts, dtype

    def _with(self, kind: str, other: Any, swap: bool = False) -> Expression:
        if hasattr(other, "element"):
            other = other.element()
        if not isinstance(other, Expression | int | float | np.generic):
            raise TikError(f"{kind} of a scalar and a {type(other).__name__}")
        left, right = (other, self) if swap else (self, other)
        return Expression(kind, (left, right), self.dtype)

    def __bool__(self) -> bool:
        raise TikError(
            "a number that only the run knows decides a Python condition: use if_scope, tik.all or tik.any"
        )

    def __index__(self) -> int:
        raise TikError(
            "a number that only the run knows is used where Python needs one: use for_range and if_scope"
        )

    def __neg__(self) -> Expression:
        return Expression("neg", (self,), self.dtype)

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return self._with("==", other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return self._with("!=", other)


def _install() -> None:
    forward = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%"}
    forward |= {"and": "&", "or": "|", "lshift": "<<", "rshift": ">>"}
    for name, kind in forward.items():
        setattr(Expression, f"__{name}__", lambda self, other, k=kind: self._with(k, other))
        setattr(Expression, f"__r{name}__", lambda self, other, k=kind: self._with(k, other, True))
    for name, kind in {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
        setattr(Expression, f"__{name}__", lambda self, other, k=kind: self._with(k, other))


_install()


class Variable(Expression):
    """A scalar or a loop variable."""

    def __init__(self, dtype: str, name: str) -> None:
        super().__init__("variable", (), dtype)
        self.name = name


def of(kind: str, *parts: Any) -> Any:
    """A function of numbers, computed at once where all are known."""
    parts = tuple(p.element() if hasattr(p, "element") else p for p in parts)
    if not builtins.any(isinstance(p, Expression) for p in parts):
        return _OPERATORS[kind](*parts)
    return Expression(kind, parts)


def all(*conditions: Any) -> Any:
    """True where all conditions are."""
    return of("all", *conditions)


def any(*conditions: Any) -> Any:
    """True where a condition is."""
    return of("any", *conditions)


def negate(condition: Any) -> Any:
    """The opposite of a condition."""
    return of("not", condition)


def evaluate(value: Any, variables: Mapping[Variable, Any], load: Callable[[Any], Any]) -> Any:
    """The number that an expression has now; `load` reads an element of a tensor."""
    if isinstance(value, Variable):
        if value not in variables:
            raise TikError(f"the scalar {value.name} is read before it has a value")
        return variables[value]
    if isinstance(value, Expression):
        if value.kind == "element":
            return load(value.parts[0])
        return _OPERATORS[value.kind](*(evaluate(p, variables, load) for p in value.parts))
    return value


def wrapped(value: Any, dtype: str) -> Any:
    """A number as a scalar of a type holds it."""
    kind = numpy_dtype(dtype)
    if kind.kind in "iu":
        bits = kind.itemsize * 8
        whole = int(value) & ((1 << bits) - 1)
        return whole - (1 << bits) if kind.kind == "i" and whole >> (bits - 1) else whole
    return float(np.asarray(value, kind))
