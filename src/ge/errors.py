"""Errors of the Graph Engine: each has a stable code and names the node, the operator, the cause and the remedy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

__all__ = [
    "GeError",
    "OpenSizesError",
    "OutOfMemoryError",
    "UnmappedOperator",
    "UnsupportedOperatorsError",
    "UserCodeError",
    "typed",
]


class GeError(Exception):
    """A failure of the Graph Engine, with a stable code that scripts can test.

    >>> str(GeError("E10005", "axis 3 is out of range", node="block1/sum", operator="ReduceSum", remedy="use -2..1"))
    "[E10005] Op type 'ReduceSum' (node block1/sum): axis 3 is out of range. Remedy: use -2..1."
    """

    later = False  # True if the model may run in stages, some of them on the host

    def __init__(
        self,
        code: str,
        cause: str,
        *,
        node: str = "",
        operator: str = "",
        location: str = "",
        remedy: str = "",
    ) -> None:
        self.code = code
        self.cause = cause
        self.node = node
        self.operator = operator
        self.location = location
        self.remedy = remedy
        super().__init__(self._render())

    def _render(self) -> str:
        where = f"Op type '{self.operator}'" if self.operator else ""
        if self.node:
            where = f"{where} (node {self.node})" if where else f"Node {self.node}"
        if self.location:
            where = f"{where} at {self.location}" if where else f"At {self.location}"
        body = f"{where}: {self.cause}" if where else self.cause
        remedy = f" Remedy: {self.remedy.rstrip('.')}." if self.remedy else ""
        return f"[{self.code}] {body.rstrip('.')}{'.' if remedy else ''}{remedy}"


class UserCodeError(GeError):
    """The code of a custom operator, plugin or converter failed. Unlike a refusal, it never falls back to the host."""


class OutOfMemoryError(GeError):
    """The device's memory limit would be exceeded: by how much, and the largest tensors (as in a plan's report)."""

    def __init__(
        self,
        code: str,
        cause: str,
        *,
        requested: int = 0,
        available: int = 0,
        peak: Sequence[dict[str, Any]] = (),
        **rest: str,
    ) -> None:
        self.requested = requested
        self.available = available
        self.peak = tuple(peak)
        super().__init__(code, cause, **rest)


class OpenSizesError(GeError):
    """The options do not specify sizes that a model's inputs leave open.

    inputs: all inputs with -1 for open sizes; None if not even the rank is known, a word for sequences and optionals.
    """

    def __init__(
        self, code: str, cause: str, *, inputs: Mapping[str, tuple[int, ...] | str | None], **rest: str
    ) -> None:
        self.inputs = dict(inputs)
        super().__init__(code, cause, **rest)


@dataclass(frozen=True)
class UnmappedOperator:
    """One operator type of a model that no plugin maps, or whose attributes no plugin accepts."""

    operator: str
    count: int
    nodes: tuple[str, ...]
    reason: str
    remedy: str


class UnsupportedOperatorsError(GeError):
    """All operators of a model that cannot be compiled, reported together."""

    def __init__(self, model: str, items: Sequence[UnmappedOperator], later: bool = False) -> None:
        self.items = tuple(items)
        self.later = later
        listing = "; ".join(f"{item.operator} ×{item.count}: {item.reason}" for item in self.items)
        super().__init__(
            "E10501",
            f"{len(self.items)} operator type(s) of {model} are not supported on NPU: {listing}",
            remedy="; ".join(dict.fromkeys(item.remedy for item in self.items if item.remedy)),
        )

    def as_json(self) -> list[dict[str, object]]:
        """The list as plain data, for tools."""
        return [
            {
                "operator": i.operator,
                "count": i.count,
                "nodes": list(i.nodes),
                "reason": i.reason,
                "remedy": i.remedy,
            }
            for i in self.items
        ]


P = ParamSpec("P")
R = TypeVar("R")


def typed(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function of the public API so that all its failures are of type GeError."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except GeError:
            raise
        except MemoryError as error:
            cause = f"{function.__name__} needs more memory than there is: {error}"
            raise OutOfMemoryError("E10030", cause, remedy="a smaller model or batch") from error
        except RecursionError as error:
            raise GeError("E10017", "the model is nested too deeply", remedy="flatten it") from error
        except Exception as error:
            if (
                isinstance(error, TypeError)
                and error.__traceback__ is not None
                and not error.__traceback__.tb_next
            ):
                raise  # the arguments do not match the signature
            cause = f"internal error: {type(error).__name__}: {error}"
            raise GeError("E10099", cause, remedy="report it with the model") from error

    return call
