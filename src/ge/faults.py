"""Internal compiler errors: counted, reported once as a warning, and fatal under `NPU_INTERNAL_ERRORS=raise`.

A front door may send work to the host for two reasons. A typed refusal (`GeError`, `UnsupportedTask`) is part of the
contract. Any other exception is a bug of ours: the host runs the work so that the user's program continues, and
`absorb` counts and reports it.
"""

from __future__ import annotations

import threading
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

from ge.errors import GeError
from npu_runtime import UnsupportedTask, environment

__all__ = ["REFUSALS", "Fault", "InternalErrorWarning", "absorb", "recorded"]

REFUSALS: tuple[type[Exception], ...] = (GeError, UnsupportedTask)

_ENVIRONMENT = "NPU_INTERNAL_ERRORS"
_MOST_RECORDED = 1000


class InternalErrorWarning(RuntimeWarning):
    """The compiler failed on a graph that it should have compiled; the host ran it instead."""


@dataclass(frozen=True)
class Fault:
    """One internal error: what was being compiled, the error, and the line that raised it."""

    what: str
    error: str
    place: str

    def __str__(self) -> str:
        return f"internal error in the compiler: {self.error} ({self.place})"


_faults: list[Fault] = []
_shown: set[tuple[str, str]] = set()
_lock = threading.Lock()


def recorded() -> tuple[Fault, ...]:
    """The internal errors of this process, oldest first."""
    return tuple(_faults)


def absorb(what: str, error: Exception) -> Fault:
    """Record an internal error after which the host takes over, and warn once per source line that raises one.

    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as seen:
    ...     warnings.simplefilter("always")
    ...     fault = absorb("function f", KeyError("shape"))
    >>> fault.error
    "KeyError: 'shape'"
    """
    if environment.choice(_ENVIRONMENT, ("raise",)) == "raise":
        raise error
    fault = Fault(what, f"{type(error).__name__}: {error}", _place(error))
    with _lock:
        if len(_faults) < _MOST_RECORDED:
            _faults.append(fault)
        new = (type(error).__name__, fault.place) not in _shown
        _shown.add((type(error).__name__, fault.place))
    if new:
        warnings.warn(
            f"{what} runs on the host after an {fault}. The answer is the framework's own; please report this. "
            f"Set {_ENVIRONMENT}=raise to see the traceback.",
            InternalErrorWarning,
            stacklevel=3,
        )
    return fault


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "unknown line"
    last = frames[-1]
    return f"{Path(last.filename).name}:{last.lineno}"
