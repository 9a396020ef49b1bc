"""The build context operator files may ask for; there is one, and it holds what is put into it."""

from __future__ import annotations

from typing import Any

__all__ = ["add_compile_info", "get_context", "op_context"]


class Context:
    """Values kept by name while operators are built."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def add_compile_info(self, key: str, value: Any) -> None:
        """Remember something about the build."""
        self._values[key] = value

    def get_compile_info(self) -> dict[str, Any]:
        """What is remembered."""
        return dict(self._values)

    add = add_compile_info

    def get(self, key: str, default: Any = None) -> Any:
        """One value."""
        return self._values.get(key, default)


_context = Context()


def get_context() -> Context:
    """The build context."""
    return _context


def add_compile_info(key: str, value: Any) -> None:
    """Remember something about the build.

    >>> add_compile_info("_pattern", "Broadcast")
    >>> get_context().get("_pattern")
    'Broadcast'
    """
    _context.add_compile_info(key, value)


class op_context:
    """The module of that name in operator files."""

    get_context = staticmethod(get_context)
