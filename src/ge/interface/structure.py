"""The form of an input that is a sequence or an optional: the shapes of its elements."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

__all__ = ["ANY_FORM", "structure"]

ANY_FORM: Final = (
    "any form"  # instead of a shape: a sequence or an optional that is compiled for the form of each call
)


def structure(name: str, value: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of an input value: its own, or those of a sequence's elements.

    >>> structure("x", [np.zeros((2, 3)), np.zeros(4)])
    {'x.0': (2, 3), 'x.1': (4,)}
    """
    if value is None:
        return {f"{name}.absent": ()}
    if isinstance(value, dict):
        return {}
    if not isinstance(value, list | tuple):
        return {name: tuple(np.shape(value))}
    if not value:
        return {f"{name}.empty": ()}
    return {k: v for i, item in enumerate(value) for k, v in structure(f"{name}.{i}", item).items()}
