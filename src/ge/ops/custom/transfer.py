"""Serialises custom operators for the sandbox process.

Functions and classes of installed libraries and of this project are pickled by name. Users' functions and classes are
pickled by value, with the globals that their code names: they may be local to a function, or in a script that must not
run twice.
"""

from __future__ import annotations

import functools
import importlib
import io
import os
import pickle
import sys
import sysconfig
import threading
import types
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import onnx_ir as ir

from ge.ir.types import TensorDesc
from ge.ir.values import constant_of, desc_of, make_constant, make_value
from ge.ops.base import NodeView
from ge.ops.builder import GraphBuilder

__all__ = ["is_installed", "packed"]

_OURS = tuple(
    str(Path(__file__).resolve().parents[3] / name) + os.sep
    for name in ("ge", "tbe", "te", "impl", "topi", "npu_runtime", "tf_adapter", "torchair")
)
_STANDARD = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")})
_LOCK = threading.Lock()


def is_installed(file: str) -> bool:
    """True for a file of this project, of Python, or in a folder of the search path that pip manages."""
    path = os.path.abspath(file)
    if path.startswith((*_OURS, *_STANDARD)):
        return True
    return any(
        path.startswith(os.path.join(entry, "")) and _has_packages(entry) for entry in sys.path if entry
    )


@functools.cache
def _has_packages(folder: str) -> bool:
    """True if a folder contains installed distributions: the user's, another environment's, or of `pip --target`."""
    return any(Path(folder).glob("*.dist-info"))


def packed(thing: Any) -> bytes:
    """An object for `pickle.loads` in another process. Raises TypeError or PicklingError if it cannot be pickled."""
    file = io.BytesIO()
    with _LOCK:  # the list of modules pickled by value is global to the process
        pickler = _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL)
        try:
            pickler.dump(thing)
        finally:
            for module in pickler.by_value:
                cloudpickle.unregister_pickle_by_value(module)
    return file.getvalue()


class _Pickler(cloudpickle.Pickler):
    """Registers users' modules with cloudpickle as they are encountered."""

    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.by_value: list[types.ModuleType] = []

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, (types.FunctionType, type)):
            module = sys.modules.get(thing.__module__ or "")
            known = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
            if module is not None and module.__name__ not in known and _is_users(module):
                cloudpickle.register_pickle_by_value(module)
                self.by_value.append(module)
        reduce = next(
            (r for kind, r in _REDUCERS.items() if isinstance(thing, kind)), super().reducer_override
        )
        return reduce(thing)


def _is_users(module: types.ModuleType) -> bool:
    """True for a module that another process may not find by name, or must not run again."""
    file = getattr(module, "__file__", None)
    if file is not None:
        return not is_installed(file)
    return getattr(module.__spec__, "origin", None) not in ("built-in", "frozen")  # created in notebooks


def _value(name: str, desc: TensorDesc, array: Any) -> ir.Value:
    return make_value(name, desc) if array is None else make_constant(array, name)


def _builder(target: Any) -> GraphBuilder:
    return GraphBuilder(
        graph=ir.Graph([], [], nodes=[], name="trial", opset_imports={"ge": 1}), target=target
    )


_REDUCERS: dict[type, Any] = {
    types.ModuleType: lambda module: (importlib.import_module, (module.__name__,)),
    NodeView: lambda op: (NodeView, (op.type, op.name, op.values, dict(op.attrs), op.outputs)),
    ir.Value: lambda value: (_value, (value.name, desc_of(value), constant_of(value))),
    GraphBuilder: lambda builder: (_builder, (builder.target,)),
}
