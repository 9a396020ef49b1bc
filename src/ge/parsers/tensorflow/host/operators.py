"""Declaration of host operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ge.parsers.tensorflow.bundle import Checkpoint

__all__ = ["INTEGERS", "OPERATORS", "HostNode", "Resources", "as_bytes", "each", "host", "integer"]


@dataclass
class Resources:
    """What nodes of a model share: tables by name, the checkpoint, files of assets by tensor."""

    tables: dict[str, Any] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    assets: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class HostNode:
    """A node to run: its attributes and what it shares with others."""

    name: str
    op: str
    attrs: Mapping[str, Any]
    resources: Resources

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute or its default; strings as text."""
        value = self.attrs.get(name)
        if value is None:
            return default
        return value.decode() if isinstance(value, bytes) else value


Operator = Callable[..., Any]
OPERATORS: dict[str, Operator] = {}  # must run on the host
INTEGERS: dict[
    str, Operator
] = {}  # run there where all that they read is integers, bools or text of the host


def host(*ops: str) -> Callable[[Operator], Operator]:
    """Declare a function of a HostNode and arrays that runs operators (a decorator)."""

    def declare(function: Operator) -> Operator:
        OPERATORS.update(dict.fromkeys(ops, function))
        return function

    return declare


def integer(*ops: str) -> Callable[[Operator], Operator]:
    """The same for operators that also have a plugin."""

    def declare(function: Operator) -> Operator:
        INTEGERS.update(dict.fromkeys(ops, function))
        return function

    return declare


def each(function: Callable[[bytes], Any], array: np.ndarray, dtype: Any = object) -> np.ndarray:
    """A function of every string of an array.

    >>> each(len, np.array([b"a", b"bc"], object), np.int32)
    array([1, 2], dtype=int32)
    """
    made = np.empty(array.size, dtype)
    for place, item in enumerate(array.reshape(-1).tolist()):
        made[place] = function(item)
    return made.reshape(array.shape)


def as_bytes(value: Any) -> np.ndarray:
    """Strings of a caller as TensorFlow has them: an array of bytes."""
    array = np.asarray(value, object) if not isinstance(value, np.ndarray) else value.astype(object)
    return each(lambda item: item.encode() if isinstance(item, str) else bytes(item), array)
