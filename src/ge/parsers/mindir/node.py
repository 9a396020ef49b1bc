"""The plugins' view of a MINDIR node, and the decorator that declares plugins of primitives.

    @primitive("Softmax", "input axis=-1")
    def _softmax(n: MsNode) -> Any:
        return n.op("Softmax", n.tensor("input"), axes=n.integers("axis"))

The words are the primitive's arguments in their order: inputs of the node first, then attributes of those names in
files whose primitives hold their settings as attributes. `as_aten` maps a primitive through the plugin of the ATen
operator that does the same; the words are then ATen's names.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

import ge.parsers.aten  # noqa: F401  the plugins that primitives share
from ge.ir.types import TensorDesc
from ge.ir.values import constant_of, desc_of
from ge.ops.aten import AtenNode
from ge.ops.plugins import Unsupported, find, mapped, plugin
from ge.parsers.mindir.protos import TYPE_IDS
from ge.parsers.mindir.values import Array, Binding, Form, Parameter

__all__ = ["MsNode", "as_aten", "primitive", "primitives"]

_MISSING = object()


@dataclass
class MsNode(AtenNode):
    """A node with its arguments bound to names."""

    arguments: Sequence[Binding] = ()  # the inputs as they came: parameters, tuples and numbers too
    form: Form = field(default=None)

    def aten(self, target: str, /, **arguments: Any) -> Any:
        """What an ATen operator gives that has the same results."""
        found = find("aten", target) or find("aten", target.rpartition(".")[0])
        assert found is not None, f"{self.type}: there is no ATen plugin for {target}"
        values = [v for v in arguments.values() if isinstance(v, ir.Value)]
        made = AtenNode(
            target,
            self.name,
            values,
            arguments,
            len(self.results),
            self.builder,
            parser=self.parser,
            results=self.results,
        )
        return found.function(made)

    def arg(self, name: str, default: Any = None) -> Any:
        """An argument, the default where it is None or does not exist; parameters as their values."""
        value = self.attrs.get(name)
        if value is None:
            return default
        return self.parser.resolved(value)

    def place(self, index: int) -> Parameter:
        """The parameter that an input names."""
        found = self.arguments[index] if index < len(self.arguments) else None
        if not isinstance(found, Parameter):
            raise Unsupported(f"input {index} of {self.type} is not a parameter")
        return found

    def tensor(self, name: str, like: ir.Value | None = None) -> Any:
        """A tensor argument; a number becomes a constant, of the type of `like`."""
        value = self.arg(name)
        if value is None:
            raise Unsupported(f"argument '{name}' of {self.type} is missing")
        if isinstance(value, ir.Value):
            return value
        if isinstance(value, tuple):
            return self.builder.constant(np.asarray([self.number(v) for v in value], np.int64))
        dtype = desc_of(like).dtype if like is not None else self.dtype_of(value)
        return self.cast(value, dtype)

    @staticmethod
    def dtype_of(value: Any) -> str:
        return "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float32"

    def tensors(self, name: str) -> list[Any]:
        """An argument that is a list of tensors."""
        value = self.arg(name)
        items = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(v, ir.Value) for v in items):
            raise Unsupported(f"argument '{name}' of {self.type} is not a list of tensors")
        return list(items)

    def integers(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        """An argument that decides a shape, as a list of numbers."""
        value = self.arg(name)
        if value is None:
            if default is None:
                raise Unsupported(f"argument '{name}' of {self.type} is missing")
            return list(default)
        if isinstance(value, ir.Value):
            known = constant_of(value)
            if known is None:
                raise Unsupported(
                    f"argument '{name}' of {self.type} is computed at run time and decides a shape", "", value
                )
            return [int(v) for v in known.reshape(-1)]
        return [int(self.number(v)) for v in (value if isinstance(value, tuple) else (value,))]

    def number(self, value: Any) -> Any:
        """A number that is known when the graph is compiled."""
        if isinstance(value, ir.Value):
            known = constant_of(value)
            if known is None or known.size != 1:
                raise Unsupported(f"a setting of {self.type} is computed at run time", "", value)
            return known.reshape(-1)[0].item()
        return value

    def setting(self, name: str, default: Any = None) -> Any:
        """An argument that is a number or text known when the graph is compiled."""
        return self.number(self.arg(name, default))

    def dtype(self, name: str, default: str = "") -> str:
        """An argument that names an element type."""
        value = self.setting(name)
        if value is None:
            return default
        if int(value) not in TYPE_IDS:
            raise Unsupported(f"the element type {value} is not known")
        return TYPE_IDS[int(value)]

    def axes(self, name: str, rank: int) -> list[int]:
        """Axes from zero; none given are all of them."""
        value = self.arg(name)
        given = [] if value is None else self.integers(name)
        return sorted({a % rank for a in given}) if given else list(range(rank))


def _parameters(signature: str) -> list[tuple[str, Any]]:
    found = []
    for word in signature.split():
        name, equals, default = word.partition("=")
        found.append((name, ast.literal_eval(default) if equals else _MISSING))
    return found


def _bound(n: MsNode, signature: list[tuple[str, Any]]) -> dict[str, Any]:
    """Arguments by name: inputs in order, then attributes, then defaults."""
    bound: dict[str, Any] = {}
    for index, (name, default) in enumerate(signature):
        if index < len(n.arguments):
            bound[name] = n.arguments[index]
        elif name in n.attrs:
            bound[name] = n.attrs[name]
        elif default is not _MISSING:
            bound[name] = default
    return {**{k: v for k, v in n.attrs.items() if k not in bound}, **bound}


Function = Callable[[MsNode], Any]


def primitive(names: str, signature: str = "") -> Callable[[Function], Function]:
    """Declare how primitives map (a decorator); several names are separated by spaces."""
    parameters = _parameters(signature)

    def declare(function: Function) -> Function:
        def bound(n: Any) -> Any:
            return function(replace(n, attrs=_bound(n, parameters)))

        bound.__module__ = function.__module__
        plugin(mindspore=names.split())(bound)
        return function

    return declare


def as_aten(table: dict[str, tuple[str, str]]) -> None:
    """Declare primitives by ATen's operators: name -> (operator, its arguments in the primitive's order).

    An argument called `dtype` is an element type; those that end in "!" are constants of the compile (numbers, lists).
    """
    for name, (target, signature) in table.items():
        _declare_as_aten(name, target, signature)


def _declare_as_aten(name: str, target: str, signature: str) -> None:
    fixed = {word.partition("=")[0].rstrip("!") for word in signature.split() if "!" in word}
    parameters = _parameters(signature.replace("!", ""))

    def through(n: Any) -> Any:
        node = replace(n, type=target, attrs=_bound(n, parameters))
        given = {key: _plain(node, key, key in fixed) for key, _ in parameters if key in node.attrs}
        return node.aten(target, **given)

    through.__module__ = __name__
    plugin(mindspore=name)(through)


def _plain(n: MsNode, name: str, fixed: bool) -> Any:
    value = n.arg(name)
    if name == "dtype":
        return n.dtype(name) or None
    if isinstance(value, tuple):
        return [n.number(v) if fixed else v for v in value]
    if fixed and isinstance(value, ir.Value):
        known = constant_of(value)
        if known is None:
            raise Unsupported(f"argument '{name}' of {n.type} is computed at run time", "", value)
        return known.reshape(-1).tolist() if known.ndim else known.item()
    return value


def primitives() -> list[str]:
    """The primitives that can be mapped."""
    return mapped("mindspore")


def described(values: Any) -> list[TensorDesc | None]:
    """The descriptions of a form's parts."""
    items = values if isinstance(values, tuple) else (values,)
    return [v if isinstance(v, TensorDesc) else None for v in items]


def constants(builder: Any, value: Binding) -> Binding:
    """A binding whose arrays are constants of a graph."""
    if isinstance(value, Array):
        return builder.constant(value.value)
    if isinstance(value, tuple):
        return tuple(constants(builder, v) for v in value)
    return value
