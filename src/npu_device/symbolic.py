"""Makes functions on tensors accept Keras' symbolic tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import tensorflow as tf

__all__ = ["takes_symbolic"]

F = TypeVar("F", bound=Callable[..., Any])


def _is_symbolic(value: Any) -> bool:
    return type(value).__name__ == "KerasTensor"


def takes_symbolic(function: F) -> F:
    """Decorator: on symbolic tensors the function becomes a layer of the model."""

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        values = [*given, *named.values()]
        symbolic = [v for v in values if _is_symbolic(v)]
        if not symbolic:
            return function(*given, **named)

        def body(tensors: Any) -> Any:
            found = iter(tensors if isinstance(tensors, (list, tuple)) else [tensors])
            filled = [next(found) if _is_symbolic(v) else v for v in values]
            return function(*filled[: len(given)], **dict(zip(named, filled[len(given) :], strict=True)))

        return tf.keras.layers.Lambda(body)(symbolic if len(symbolic) > 1 else symbolic[0])

    return call  # type: ignore[return-value]
