"""Calling conventions: functions return `ret`, `(value, ret)` or a value; exceptions become return codes."""

from __future__ import annotations

import functools
import inspect
import itertools
import threading
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from acl import constants as c

__all__ = ["AclError", "Handles", "last_message", "plain", "returns_code", "returns_value", "set_message"]

P = ParamSpec("P")
T = TypeVar("T")

_messages = threading.local()
_counter = itertools.count(1)
HANDLE_BASE = 0x4E50_5500_0000  # distinct from small numbers and addresses, to detect mix-ups


class AclError(Exception):
    """A failure with its return code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Handles(Generic[T]):
    """The live objects of one kind, by integer handle."""

    def __init__(self, kind: str, code: int = c.ACL_ERROR_INVALID_PARAM) -> None:
        self._kind = kind
        self._code = code
        self._live: dict[int, T] = {}

    def add(self, item: T, handle: int | None = None) -> int:
        """Register an object and return its handle."""
        number = HANDLE_BASE + 16 * next(_counter) if handle is None else handle
        self._live[number] = item
        return number

    def get(self, handle: Any) -> T:
        """Look up the object of a handle."""
        item = self._live.get(handle) if isinstance(handle, int) else None
        if item is None:
            raise AclError(self._code, f"{handle!r} is not the handle of a live {self._kind}")
        return item

    def remove(self, handle: Any) -> T:
        """Remove an object and return it."""
        item = self.get(handle)
        del self._live[handle]
        return item

    def items(self) -> list[tuple[int, T]]:
        """All live objects."""
        return list(self._live.items())

    def clear(self) -> None:
        """Remove all objects."""
        self._live.clear()


def set_message(text: str) -> None:
    """Store the message of this thread's last failed call."""
    _messages.text = text


def last_message() -> str:
    """Message of this thread's last failed call; reading clears it."""
    text: str = getattr(_messages, "text", "")
    _messages.text = ""
    return text


def returns_code(function: Callable[P, None]) -> Callable[P, int]:
    """Decorator: the function returns a return code."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            function(*args, **kwargs)
        except Exception as error:
            return code_of(error, function, args, kwargs)
        return c.ACL_SUCCESS

    return call


def returns_value(*defaults: Any) -> Callable[[Callable[P, Any]], Callable[P, Any]]:
    """Decorator: the function returns its value(s) and a return code; `defaults` on failure."""

    def decorate(function: Callable[P, Any]) -> Callable[P, Any]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            try:
                result = function(*args, **kwargs)
            except Exception as error:
                return (*(_fresh(d) for d in defaults), code_of(error, function, args, kwargs))
            return (*result, c.ACL_SUCCESS) if len(defaults) > 1 else (result, c.ACL_SUCCESS)

        return call

    return decorate


def plain(default: Any) -> Callable[[Callable[P, Any]], Callable[P, Any]]:
    """Decorator: the function returns only its value; `default` on failure."""

    def decorate(function: Callable[P, Any]) -> Callable[P, Any]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                code_of(error, function, args, kwargs)
                return _fresh(default)

        return call

    return decorate


def _fresh(default: Any) -> Any:
    return default.copy() if isinstance(default, list | dict) else default


def code_of(error: Exception, function: Callable[..., Any], args: Any = (), kwargs: Any = None) -> int:
    """Return code of an exception; a wrong number of arguments raises, as usual in Python."""
    if isinstance(error, TypeError):
        inspect.signature(function).bind(*args, **(kwargs or {}))
    name = getattr(function, "__name__", "call")
    set_message(f"{name}: {error}")
    if isinstance(error, AclError):
        return error.code
    from ge.errors import GeError

    if isinstance(error, GeError):
        return _CODES.get(error.code, c.ACL_ERROR_GE_FAILURE)
    return next((code for kind, code in _KINDS if isinstance(error, kind)), c.ACL_ERROR_INTERNAL_ERROR)


_KINDS: tuple[tuple[type[Exception], int], ...] = (
    (MemoryError, c.ACL_ERROR_RT_MEMORY_ALLOCATION),
    (TypeError, c.ACL_ERROR_INVALID_PARAM),
    (ValueError, c.ACL_ERROR_INVALID_PARAM),
    (OverflowError, c.ACL_ERROR_INVALID_PARAM),
)
_CODES = {
    "E11001": c.ACL_ERROR_INVALID_FILE,
    "E11002": c.ACL_ERROR_PARSE_MODEL,
    "E11003": c.ACL_ERROR_INVALID_FILE_SIZE,
    "E11004": c.ACL_ERROR_DESERIALIZE_MODEL,
    "E11005": c.ACL_ERROR_PARSE_MODEL,
    "E11006": c.ACL_ERROR_DESERIALIZE_MODEL,
    "E10001": c.ACL_ERROR_OP_NOT_FOUND,
    "E10002": c.ACL_ERROR_OP_INPUT_NOT_MATCH,
    "E10003": c.ACL_ERROR_OP_ATTR_NOT_MATCH,
    "E10004": c.ACL_ERROR_UNSUPPORTED_DATA_TYPE,
}
