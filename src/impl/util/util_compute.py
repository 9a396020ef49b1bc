"""Marks of compute functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["only_static_support"]

F = TypeVar("F", bound=Callable[..., Any])


def only_static_support(function: F) -> F:
    """Accepted: kernels are built for known shapes."""
    return function
