"""Dynamo's guards on which function, class or module an expression is, for graphs in files.

Such guards compare addresses, which mean nothing in another process. A file holds a description of each object
instead; a loaded graph is used where the objects found here have the same descriptions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from types import CodeType, ModuleType
from typing import Any

__all__ = ["Identities", "Undescribed"]

_PLAIN = (type(None), type(...), bool, int, float, complex, str, bytes)
# PyTorch's own globals and Python's built-ins: names that a process has only once Dynamo has traced something.
_OWN_NAMES = ("G['__import_torch_dot_", "G['__builtins_dict__")


class Undescribed(Exception):
    """An object that cannot be recognised in another process."""


class Identities:
    """The objects that a trace took for granted, by the expressions over locals `L` and globals `G` that give them."""

    def __init__(self, objects: Mapping[str, object]) -> None:
        self._objects = dict(objects)
        self._expected = [_anchor(value) for value in self._objects.values()]
        self._found = compile(f"[{', '.join(self._objects)}]", "<guards>", "eval")

    @classmethod
    def of(cls, guards: Sequence[Any]) -> Identities:
        """The objects of guards that Dynamo cannot write; PyTorch's own and built-in ones are taken for granted."""
        return cls(
            {
                guard.orig_guard.name: guard.value
                for guard in guards
                if guard.has_value and not guard.orig_guard.name.startswith(_OWN_NAMES)
            }
        )

    @classmethod
    def found(
        cls, described: Mapping[str, str], values: Mapping[str, object], scope: dict[str, Any]
    ) -> Identities | None:
        """The objects of this process; None if one of them is missing or does not fit its description."""
        objects = {}
        for name, description in described.items():
            try:
                objects[name] = eval(name, _names(values, scope))
                if _description(objects[name]) != description:
                    return None
            except Exception:  # whatever evaluating an expression over other objects may raise
                return None
        return cls(objects)

    def descriptions(self) -> dict[str, str]:
        """A text for each object that is the same in every process."""
        found = {}
        for name, value in self._objects.items():
            try:
                found[name] = _description(value)
            except Undescribed as error:
                raise Undescribed(f"{name} is {error}") from None
        return found

    def hold(self, values: Mapping[str, object], scope: dict[str, Any]) -> bool:
        """True if the expressions still give the same objects."""
        if not self._expected:
            return True
        try:
            found = eval(self._found, _names(values, scope))
        except Exception:  # whatever evaluating an expression over other objects may raise
            return False
        return all(_anchor(value) is expected for value, expected in zip(found, self._expected, strict=True))


def _names(values: Mapping[str, object], scope: dict[str, Any]) -> dict[str, Any]:
    from torch._dynamo.guards import _get_closure_vars

    return {**_get_closure_vars(), "L": values, "G": scope}


def _anchor(value: object) -> object:
    """What is compared within a process: a function's code; its defaults and closure have guards of their own."""
    return getattr(value, "__code__", value)


def _description(value: object) -> str:
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, ModuleType):
        return f"module {value.__name__}"
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    code = getattr(value, "__code__", None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if isinstance(code, CodeType):
        return f"{kind} {getattr(value, '__module__', None)}.{name} {_digest(code)}"
    if isinstance(name, str):  # classes, built-in functions, operators of PyTorch
        owner = getattr(value, "__self__", None)
        if owner is not None and not isinstance(owner, (ModuleType, type)):
            raise Undescribed(f"a method of a {type(owner).__qualname__}")
        return f"{kind} {getattr(value, '__module__', None)}.{name}"
    raise Undescribed(f"a {type(value).__qualname__}, which cannot be recognised in another process")


def _digest(code: CodeType) -> str:
    """A hash of what code computes, wherever it stands in a file."""
    constants = [_digest(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    text = repr((code.co_code, constants, names, code.co_argcount, code.co_kwonlyargcount, code.co_flags))
    return hashlib.sha256(text.encode()).hexdigest()
