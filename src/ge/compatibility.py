"""Patches: replacements for functions of a framework, declared in one table per front door and applied in one place.

A front door patches a framework only through such a table, so that supporting a new version means checking one list.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "CompatibilityWarning",
    "Patch",
    "PatchTable",
    "load_triton_before_tensorflow",
    "warn_of_late_triton",
]


class CompatibilityWarning(UserWarning):
    """This version of a framework lacks something that a patch needs; the patch is skipped."""


@dataclass(frozen=True)
class Patch:
    """A replacement for one attribute of a framework.

    place: "module:attribute", e.g. "tensorflow.python.eager.context:Context.call_function".
    make: returns the replacement, given the original.
    without: what the user loses if the framework differs. Empty: the front door cannot work without the patch.
    needs: other attributes that the replacement relies on.
    named: the replacement gets the original's name and documentation.
    """

    place: str
    make: Callable[[Any], Any]
    without: str = ""
    needs: tuple[str, ...] = ()
    named: bool = True

    def missing(self) -> list[str]:
        """The attributes that this version of the framework lacks.

        >>> Patch("json:dumps", lambda original: original, needs=("json:nothing",)).missing()
        ['json:nothing']
        """
        return [place for place in (self.place, *self.needs) if not _exists(place)]

    def apply(self) -> None:
        """Install the replacement."""
        owner, name = _owner(self.place)
        original = getattr(owner, name)
        made = self.make(original)
        if made is original:
            return
        if self.named and inspect.isroutine(made):
            made = functools.wraps(original)(made)
        if isinstance(inspect.getattr_static(owner, name), staticmethod):
            made = staticmethod(made)
        setattr(owner, name, made)


@dataclass(frozen=True)
class PatchTable:
    """All patches that a front door applies to a framework, with the versions they were tested with."""

    framework: str
    tried: tuple[str, ...]
    patches: Sequence[Patch]

    def apply(self) -> None:
        """Apply the patches; those that do not fit this version are skipped with a warning.

        Raises ImportError, before anything is changed, if an indispensable one does not fit.
        """
        missing = {patch.place: patch.missing() for patch in self.patches}
        for patch in self.patches:
            if missing[patch.place] and not patch.without:
                raise ImportError(
                    f"this version of {self.framework} has no {', '.join(missing[patch.place])}; install one that "
                    f"was tried: {', '.join(self.tried)}"
                )
        for patch in self.patches:
            if not missing[patch.place]:
                patch.apply()
                continue
            warnings.warn(
                f"this version of {self.framework} has no {', '.join(missing[patch.place])}: {patch.without} "
                f"(tried: {', '.join(self.tried)})",
                CompatibilityWarning,
                stacklevel=3,
            )


def _owner(place: str) -> tuple[Any, str]:
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    return functools.reduce(getattr, owners, importlib.import_module(module)), name


def _exists(place: str) -> bool:
    try:
        owner, name = _owner(place)
    except (ImportError, AttributeError):
        return False
    return hasattr(owner, name)


def load_triton_before_tensorflow() -> None:
    """Import Triton, which PyTorch's builds for GPUs bring along, unless TensorFlow is there already.

    TensorFlow 2.21 and Triton 3.7 clash: the process ends with a segmentation fault where torch.compile imports Triton
    after TensorFlow. The other order works.
    """
    if "tensorflow" not in sys.modules and importlib.util.find_spec("triton"):
        with contextlib.suppress(ImportError):
            importlib.import_module("triton")


def warn_of_late_triton() -> None:
    """Warn where it is too late for `load_triton_before_tensorflow`."""
    if "tensorflow" in sys.modules and "triton" not in sys.modules and importlib.util.find_spec("triton"):
        warnings.warn(
            "TensorFlow was imported before Triton: torch.compile, which imports Triton, may end the process with a "
            "segmentation fault. Import tf_adapter, torchair or triton before tensorflow.",
            CompatibilityWarning,
            stacklevel=3,
        )
