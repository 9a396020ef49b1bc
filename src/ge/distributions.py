"""The two distributions of the project: the engine with its front doors, and the Ascend-compatible names."""

from __future__ import annotations

import functools
import importlib
from importlib import metadata
from types import ModuleType

__all__ = ["ascend", "installed"]


def ascend(name: str) -> ModuleType:
    """Import a module of the second distribution, or say how to install it.

    >>> ascend("te").__name__
    'te'
    """
    package = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name != package:
            raise
        remedy = f"No module named {package!r}: pip install 'tf-adapter[ascend]'"
        raise ModuleNotFoundError(remedy, name=package) from None


@functools.cache
def installed(package: str) -> str:
    """The version of an installed package, "" without one."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
