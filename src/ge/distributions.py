"""The two distributions of the project: the engine with its front doors, and the Ascend-compatible names."""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["ascend"]


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
