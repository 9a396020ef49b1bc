"""What operator files register: compute functions, operator functions, and how their parameters are declared."""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

__all__ = [
    "Call",
    "Registered",
    "computes",
    "current_call",
    "operators",
    "register_compute",
    "register_operator",
]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Registered:
    """A registered function: under which operator, by whom, and what was said about it."""

    name: str
    function: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)


computes: dict[str, Registered] = {}
operators: dict[str, Registered] = {}


@dataclass(frozen=True)
class Call:
    """An operator function at work: what it was called with."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


current_call: contextvars.ContextVar[Call | None] = contextvars.ContextVar("current_call", default=None)


def register_compute(op_type: str, **options: Any) -> Callable[[F], F]:
    """Register the compute function of an operator; it takes tensors, descriptions of outputs and attributes.

    >>> @register_compute("Twice", op_mode="static")
    ... def twice_compute(x, y, kernel_name="twice"):
    ...     return x
    >>> computes["Twice"].function is twice_compute
    True
    """

    def register(function: F) -> F:
        computes[op_type] = Registered(op_type, function, options)
        function.op_type = op_type  # type: ignore[attr-defined]
        return function

    return register


def register_operator(op_type: str, pattern: str | None = None, **options: Any) -> Callable[[F], F]:
    """Register the function of an operator; it takes descriptions and attributes and builds the kernel."""

    def register(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with at_work(call, args, kwargs):
                return function(*args, **kwargs)

        call.op_type = op_type  # type: ignore[attr-defined]
        operators[op_type] = Registered(op_type, call, {"pattern": pattern, **options})
        return call  # type: ignore[return-value]

    return register


@contextlib.contextmanager
def at_work(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """Remember which operator function is running, so that a dynamic build can run it again."""
    token = current_call.set(Call(function, args, kwargs))
    try:
        yield
    finally:
        current_call.reset(token)
