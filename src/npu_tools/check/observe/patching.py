"""Replace a function of a class or module by one that calls it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

__all__ = ["around"]


def around(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put `make(original)` in the place of `owner.name`; a missing name is ignored."""
    original = getattr(owner, name, None)
    if original is not None:
        setattr(owner, name, functools.wraps(original)(make(original)))
