"""The number of training steps that Keras runs per device call.

Loops that a program writes itself (`for _ in tf.range(n)` inside a function) have the length it says. Keras has a loop
of its own, `steps_per_execution`; where `compile()` does not name it, `options.loop_size` does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from tf_adapter.options import options

__all__ = ["with_loop_size"]

_STEPS = "steps_per_execution"


def with_loop_size(original: Callable[..., Any]) -> Callable[..., Any]:
    """A patch of Keras' `Model.compile` that takes the number of steps from the options, once these name one."""
    signature = inspect.signature(original)

    def compile(*args: Any, **named: Any) -> Any:
        given = signature.bind_partial(*args, **named).arguments
        if options.loop_size > 1 and _STEPS not in given and _STEPS not in given.get("kwargs", {}):
            named[_STEPS] = options.loop_size
        return original(*args, **named)

    return compile
