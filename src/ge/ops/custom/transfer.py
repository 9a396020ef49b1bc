"""Users' operators as bytes for the process that tries them.

Functions and classes of installed libraries and of this project travel by name. Those of users travel by value, with
the globals that their code names: they may be local to a function, or in a script that must not run twice.
"""

from __future__ import annotations

import importlib
import io
import marshal
import os
import pickle
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ge.ir.types import TensorDesc
from ge.ir.values import constant_of, desc_of, make_constant, make_value
from ge.ops.base import NodeView
from ge.ops.builder import GraphBuilder

__all__ = ["INSTALLED", "OURS", "packed"]

OURS = tuple(
    str(Path(__file__).resolve().parents[3] / name) + os.sep
    for name in ("ge", "tbe", "te", "impl", "topi", "npu_runtime", "tf_adapter", "torchair")
)
INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")})
_OWN_TO_A_CLASS = frozenset({"__dict__", "__weakref__", "__class__", "__classcell__"})


def packed(thing: Any) -> bytes:
    """An object for `pickle.loads` in another process. Raises TypeError or PicklingError for what cannot travel."""
    file = io.BytesIO()
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(thing)
    return file.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, types.FunctionType) and not _has_name(thing):
            return _function_parts(thing)
        if isinstance(thing, type) and not _has_name(thing):
            return _class_parts(thing)
        kinds = ((k, r) for k, r in _REDUCERS.items() if isinstance(thing, k))
        return next((reduce(thing) for _, reduce in kinds), NotImplemented)


def _has_name(thing: Any) -> bool:
    """Whether another process finds a function or class by its name."""
    module = sys.modules.get(thing.__module__ or "")
    file = getattr(module, "__file__", None)
    if module is None or module.__name__ == "__main__":
        return False
    if file is None and getattr(module.__spec__, "origin", None) not in ("built-in", "frozen"):
        return False  # made while the process runs, as in notebooks
    if file is not None and not os.path.abspath(file).startswith((*OURS, *INSTALLED)):
        return False
    found: Any = module
    for part in thing.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is thing


# -- functions -----------------------------------------------------------------------------------------------


def _function_parts(function: types.FunctionType) -> Any:
    code = function.__code__
    known = {n: function.__globals__[n] for n in _names(code) if n in function.__globals__}
    cells = [_contents(cell) for cell in function.__closure__ or ()]
    state = {
        "globals": {"__name__": function.__module__, **known},
        "cells": cells,
        "fields": {
            n: getattr(function, n) for n in ("__defaults__", "__kwdefaults__", "__qualname__", "__doc__")
        },
        "dict": vars(function),
    }
    made = (_new_function, (marshal.dumps(code), function.__name__))
    return (*made, state, None, None, _fill_function)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _contents(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # not filled yet
        return ()


def _new_function(code: bytes, name: str) -> types.FunctionType:
    made = marshal.loads(code)
    return types.FunctionType(made, {}, name, None, tuple(types.CellType() for _ in made.co_freevars))


def _fill_function(function: types.FunctionType, state: dict[str, Any]) -> None:
    function.__globals__.update(state["globals"])
    for cell, contents in zip(function.__closure__ or (), state["cells"], strict=True):
        if contents:
            cell.cell_contents = contents[0]
    for name, value in state["fields"].items():
        setattr(function, name, value)
    vars(function).update(state["dict"])


# -- classes and the rest ------------------------------------------------------------------------------------


def _class_parts(given: type) -> Any:
    members = {n: v for n, v in vars(given).items() if n not in _OWN_TO_A_CLASS}
    return (_new_class, (type(given), given.__name__, given.__bases__), members, None, None, _fill_class)


def _new_class(kind: type, name: str, bases: tuple[type, ...]) -> type:
    return types.new_class(name, bases, {"metaclass": kind})


def _fill_class(made: type, members: dict[str, Any]) -> None:
    for name, value in members.items():
        setattr(made, name, value)


def _value(name: str, desc: TensorDesc, array: Any) -> ir.Value:
    return make_value(name, desc) if array is None else make_constant(array, name)


def _builder(target: Any) -> GraphBuilder:
    return GraphBuilder(
        graph=ir.Graph([], [], nodes=[], name="trial", opset_imports={"ge": 1}), target=target
    )


_REDUCERS: dict[type, Any] = {
    types.ModuleType: lambda module: (importlib.import_module, (module.__name__,)),
    staticmethod: lambda method: (staticmethod, (method.__func__,)),
    classmethod: lambda method: (classmethod, (method.__func__,)),
    property: lambda made: (property, (made.fget, made.fset, made.fdel, made.__doc__)),
    types.MappingProxyType: lambda made: (types.MappingProxyType, (dict(made),)),
    NodeView: lambda op: (NodeView, (op.type, op.name, op.values, dict(op.attrs), op.outputs)),
    ir.Value: lambda value: (_value, (value.name, desc_of(value), constant_of(value))),
    GraphBuilder: lambda builder: (_builder, (builder.target,)),
}
