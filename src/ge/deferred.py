"""Deferred imports: modules that a dependency imports but rarely uses are loaded on first use.

onnx_ir imports sympy for symbolic dimensions, which takes longer than the rest of the startup. While onnx_ir is
imported for the first time, a stand-in replaces sympy; it is removed from `sys.modules` afterwards, so that other
modules do not see it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

__all__ = ["defer"]


class _Placeholder(ModuleType):
    """Imports its module on the first attribute access."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


class _Finder:
    """Finds one package, and installs placeholders for other modules while it is executed."""

    def __init__(self, package: str, modules: Sequence[str]) -> None:
        self.package, self.modules = package, modules

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self.package:
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        spec = PathFinder.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_with_placeholders(module: ModuleType) -> None:
                placeholders = [_Placeholder(name) for name in self.modules if name not in sys.modules]
                sys.modules.update({placeholder.__name__: placeholder for placeholder in placeholders})
                try:
                    execute(module)
                finally:
                    for placeholder in placeholders:
                        if sys.modules.get(placeholder.__name__) is placeholder:
                            del sys.modules[placeholder.__name__]

            spec.loader.exec_module = execute_with_placeholders  # type: ignore[method-assign]
        return spec


def defer(package: str, modules: Sequence[str]) -> None:
    """Defer the imports of some modules during the first import of a package.

    >>> defer("onnx_ir", ("sympy",))  # already imported: nothing to do
    """
    if package not in sys.modules:
        sys.meta_path.insert(0, _Finder(package, modules))
