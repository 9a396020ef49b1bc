"""Runs TensorFlow 1 scripts: their `import tensorflow` imports version-1 names.

`python -m npu_bridge run script.py` calls `run_script`: in the script's own modules `tensorflow` is
`tensorflow.compat.v1` with `tf.contrib`; installed packages keep the TensorFlow they were written for.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npu_bridge import contrib

__all__ = ["disable_v2_behavior", "install", "run_main", "run_script", "tensorflow_v1"]

_ALIAS = "npu_bridge.tensorflow_v1"  # name under which rewritten modules import the version-1 module
_LEGACY_KERAS = "TF_USE_LEGACY_KERAS"


class _VersionOne(types.ModuleType):
    """The `tensorflow` module for version-1 scripts: compat.v1 first, then contrib, then TensorFlow's own modules."""

    def __init__(self) -> None:
        super().__init__("tensorflow")
        real = importlib.import_module("tensorflow")
        self.__dict__.update(
            __file__=real.__file__,
            __path__=list(real.__path__),
            __version__=real.__version__,
            contrib=contrib.MODULE,
        )

    def __getattr__(self, name: str) -> Any:
        version1 = importlib.import_module("tensorflow.compat.v1")
        for owner in (version1, importlib.import_module("tensorflow")):
            try:
                return getattr(owner, name)
            except AttributeError:
                continue
        raise AttributeError(f"TensorFlow {self.__version__} has no version-1 name 'tf.{name}'")

    def __dir__(self) -> list[str]:
        return [*dir(importlib.import_module("tensorflow.compat.v1")), "contrib"]


def disable_v2_behavior() -> None:
    """Enable TensorFlow 1's behaviour: graphs and sessions, reference variables, version-1 control flow."""
    import tensorflow as tf

    if tf.executing_eagerly() or tf.compat.v1.control_flow_v2_enabled():
        tf.compat.v1.disable_v2_behavior()


def tensorflow_v1() -> types.ModuleType:
    """The module imported by `import tensorflow` in a version-1 script."""
    global _module
    if _module is None:
        contrib.install()
        _module = _VersionOne()
    return _module


_module: types.ModuleType | None = None


def install() -> None:
    """Make `import tensorflow` in modules outside installed packages import version-1 names from now on."""
    global _installed
    if _installed:
        return
    if "tensorflow" not in sys.modules and importlib.util.find_spec("tf_keras") is not None:
        os.environ.setdefault(_LEGACY_KERAS, "1")  # tf.layers and sessions need Keras 2
    sys.modules[_ALIAS] = tensorflow_v1()
    disable_v2_behavior()
    sys.meta_path.insert(0, _Finder())
    _installed = True


_installed = False


class _Imports(ast.NodeTransformer):
    """Rewrites a module's imports of `tensorflow` to imports of the version-1 module.

    Imports from TensorFlow's submodules (`from tensorflow.python import …`) are unchanged.
    """

    def visit_Import(self, node: ast.Import) -> list[ast.stmt]:
        return [ast.copy_location(made, node) for alias in node.names for made in _version1_import(alias)]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        if node.module == "tensorflow" and node.level == 0:
            node.module = _ALIAS
        return node


def _version1_import(alias: ast.alias) -> list[ast.stmt]:
    """The statements that replace `import NAME [as OTHER]`.

    >>> print(*map(ast.unparse, _version1_import(ast.alias("tensorflow.nn.rnn_cell", "cells"))), sep="; ")
    __import__('tensorflow.nn.rnn_cell'); from npu_bridge.tensorflow_v1 import nn as cells; cells = cells.rnn_cell
    """
    top, *rest = alias.name.split(".")
    if top != "tensorflow":
        return [ast.Import([alias])]
    name = alias.asname or top
    loaded: list[ast.stmt] = [ast.parse(f"__import__({alias.name!r})").body[0]] if rest else []
    if not rest or alias.asname is None:
        return [*loaded, ast.Import([ast.alias(_ALIAS, name)])]
    first, *further = rest
    walked = ast.parse(f"{name} = {'.'.join([name, *further])}").body if further else []
    return [*loaded, ast.ImportFrom(_ALIAS, [ast.alias(first, name)], 0), *walked]


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module of a version-1 program; does not cache the rewritten bytecode."""

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        return _compiled(self.get_data(path), path)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules as Python does, and loads those of the program itself with `_Loader`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or type(spec.loader) is not importlib.machinery.SourceFileLoader:
            return None
        if str(Path(spec.loader.path).resolve()).startswith(_LIBRARIES):
            return None
        spec.loader = _Loader(fullname, spec.loader.path)
        return spec


def _compiled(source: bytes, path: str) -> types.CodeType:
    tree = ast.fix_missing_locations(_Imports().visit(ast.parse(source, path)))
    return compile(tree, path, "exec", dont_inherit=True)


def _library_folders() -> tuple[str, ...]:
    installed = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    ours = Path(__file__).resolve().parent.parent
    packages = ("npu_bridge", "npu_device", "npu_runtime", "npu_tools", "tf_adapter", "ge", "tbe", "hccl")
    return (*(str(Path(p).resolve()) for p in installed if p), *(str(ours / name) for name in packages))


_LIBRARIES = _library_folders()


def run_script(path: str, arguments: Sequence[str]) -> None:
    """Run a version-1 script as `python path arguments…` would, on the NPU."""
    install()
    import npu_bridge.npu_init  # noqa: F401  (sessions offload from here on)

    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).resolve().parent))
    run_main(path)


def run_main(path: str) -> None:
    """Run a file as the main module of a version-1 program."""
    main, before = types.ModuleType("__main__"), sys.modules["__main__"]
    main.__file__ = path
    sys.modules["__main__"] = main
    try:
        exec(_compiled(Path(path).read_bytes(), path), vars(main))
    finally:
        sys.modules["__main__"] = before
