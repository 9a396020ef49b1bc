"""Plugins: map a framework's operators to operators of the library. Declared beside these, used by parsers.

    @plugin(onnx="Softmax", since=13)
    def _softmax(n: Node) -> ir.Value:
        return n.op("Softmax", n.inputs[0], axes=[n.attr("axis", -1)])

    simple("Relu", onnx="Relu", tensorflow="Relu", aten="relu")    # same inputs, no attributes

A plugin that cannot convert a node raises `Unsupported(reason, remedy)`; the parser collects them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ge.ir.types import TensorDesc, dtype_from_ir
from ge.ir.values import constant_of, desc_of
from ge.ops.builder import GraphBuilder, Operand

__all__ = [
    "FRAMEWORKS",
    "Maps",
    "Node",
    "Plugin",
    "Results",
    "Sequence_",
    "Unsupported",
    "add",
    "custom",
    "declared",
    "find",
    "find_custom",
    "mapped",
    "mapping",
    "parse_name",
    "plugin",
    "remove",
    "simple",
]

# Packages whose plugins are built in; all others are custom.
BUILT_IN = frozenset(
    {"ge", "tf_adapter", "npu_device", "npu_bridge", "torchair", "torch_npu", "mindspore_npu", "paddle_npu"}
)
FRAMEWORKS = ("onnx", "tensorflow", "aten", "mindspore", "paddle")


@dataclass(frozen=True)
class Sequence_:
    """A sequence (or an optional) known at parse time: a plain list of values."""

    items: tuple[Any, ...] = ()
    optional: bool = False


@dataclass(frozen=True)
class Maps:
    """Rows returned to the caller as dictionaries: a value and the keys of its columns."""

    value: ir.Value
    keys: tuple[Any, ...]


Results = ir.Value | Sequence[ir.Value | None]


class Unsupported(Exception):
    """This use of an operator cannot be compiled."""

    def __init__(
        self, reason: str, remedy: str = "", needs: ir.Value | None = None, later: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.needs = needs  # the computed value that would have to be constant
        self.later = later or needs is not None  # it can be compiled once its inputs have been computed


@dataclass
class Node:
    """A framework's node as a plugin sees it: resolved inputs, attributes, and the builder to emit into."""

    type: str
    name: str
    inputs: Sequence[ir.Value | None]
    attrs: Mapping[str, Any]
    outputs: int
    builder: GraphBuilder
    version: int = 0  # active ONNX operator set version, or the TensorFlow version that wrote the graph
    domain: str = ""
    parser: Any = None  # the parser itself, for operators with bodies (branches, loops, calls)

    def op(self, type_: str, *inputs: Operand, **attrs: Any) -> Any:
        """Emit an operator."""
        return self.builder.op(type_, *inputs, **attrs)

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute or its default, which is rounded to single precision as ONNX stores attributes."""
        if self.version and isinstance(default, float):
            default = float(np.float32(default))
        return self.attrs.get(name, default)

    def operands(self, attrs: Collection[str] = (), type_: str = "") -> Sequence[ir.Value | None]:
        """The inputs for operator `type_`, None for absent ones; `attrs` names those that are attributes."""
        return self.inputs

    def input(self, index: int) -> ir.Value | None:
        """An input, None when absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def desc(self, index: int = 0) -> TensorDesc:
        """The description of a required input."""
        value = self.input(index)
        if value is None:
            raise Unsupported(f"input {index} of {self.type} is missing")
        return desc_of(value)

    def maybe_const(self, index: int) -> np.ndarray | None:
        """The constant value of an input, None if absent or computed."""
        return constant_of(self.input(index))

    def const(self, index: int, what: str = "") -> np.ndarray:
        """The constant value of an input that determines the shape of the result."""
        array = self.maybe_const(index)
        if array is None:
            raise Unsupported(
                f"{what or f'input {index}'} of {self.type} is computed at run time and decides a shape",
                "make it a constant, or give the model static input shapes",
                self.input(index),
            )
        return array

    def element_type(self, name: str, default: str = "") -> str:
        """An attribute that holds an ONNX element type, as our name."""
        code = self.attr(name)
        if not code:
            return default
        try:
            return dtype_from_ir(ir.DataType(int(code)))
        except (KeyError, ValueError):
            label = (
                ir.DataType(int(code)).name if int(code) in ir.DataType.__members__.values() else str(code)
            )
            raise Unsupported(
                f"no engine accepts {label.lower()}", "use one of the plain number types"
            ) from None

    def ints(self, index: int, what: str = "") -> list[int]:
        """A constant input as a list of Python integers."""
        return [int(v) for v in self.const(index, what).reshape(-1)]


@dataclass(frozen=True)
class Plugin:
    """A mapping of one framework operator, valid from a version on."""

    framework: str
    operator: str
    since: int
    domain: str
    function: Callable[[Node], Results]
    custom: bool = False

    def apply(self, node: Node) -> Results:
        """Convert a framework's node; a custom plugin is first tried in another process."""
        if not self.custom:
            return self.function(node)
        from ge.ops.custom import guard

        results: Results = guard.call_plugin(self.function, node)
        return results


_PLUGINS: dict[tuple[str, str, str], list[Plugin]] = {}
_CUSTOM: list[Plugin] = []


def plugin(
    *,
    onnx: str | Sequence[str] = (),
    tensorflow: str | Sequence[str] = (),
    aten: str | Sequence[str] = (),
    mindspore: str | Sequence[str] = (),
    paddle: str | Sequence[str] = (),
    since: int = 0,
    domain: str = "",
) -> Callable[[Callable[[Node], Results]], Callable[[Node], Results]]:
    """Declare how framework operators map to operators of the library (a decorator).

    ONNX names may contain their domain and version: "my.domain::Swoosh", "ai.onnx::13::Softmax". Plugins declared
    outside this package take precedence over built-in ones, and over operators that a parser handles itself.
    """

    def declare(function: Callable[[Node], Results]) -> Callable[[Node], Results]:
        custom = function.__module__.partition(".")[0] not in BUILT_IN
        for framework, names in zip(FRAMEWORKS, (onnx, tensorflow, aten, mindspore, paddle), strict=True):
            for name in (names,) if isinstance(names, str) else names:
                add(Plugin(framework, *parse_name(framework, name, since, domain), function, custom))
        return function

    return declare


def parse_name(framework: str, name: str, since: int = 0, domain: str = "") -> tuple[str, int, str]:
    """Operator, version and domain of a name.

    >>> parse_name("onnx", "ai.onnx::13::Softmax", 0, "")
    ('Softmax', 13, '')
    """
    if framework != "onnx" or "::" not in name:
        return name, since, domain
    *where, operator = name.split("::")
    domain = "" if where[0] == "ai.onnx" else where[0]
    return operator, int(where[1]) if len(where) > 1 else since, domain


def simple(
    type_: str, *, attrs: Mapping[str, str] | Sequence[str] = (), **frameworks: str | Sequence[str]
) -> None:
    """Map framework operators one to one: same inputs in the same order.

    `attrs` lists the attributes to copy: names that are the same on both sides, or a mapping from this library's names
    to the framework's; one that a node lacks keeps the operator's default.
    """
    same_inputs_ = mapping(type_, attrs)
    caller = inspect.currentframe()
    if caller is not None and caller.f_back is not None:  # the declaring module
        same_inputs_.__module__ = str(caller.f_back.f_globals.get("__name__", same_inputs_.__module__))
    plugin(**frameworks)(same_inputs_)  # type: ignore[arg-type]


def mapping(type_: str, attrs: Mapping[str, str] | Sequence[str] = ()) -> Callable[[Node], Results]:
    """The function of a one-to-one plugin."""
    names = dict(attrs) if isinstance(attrs, Mapping) else {name: name for name in attrs}

    def same_inputs(n: Node) -> Results:
        given = {ours: n.attr(theirs) for ours, theirs in names.items() if n.attr(theirs) is not None}
        made = n.builder.ops(type_, n.operands(names.values(), type_), **given)
        return made[0] if len(made) == 1 else made

    return same_inputs


def add(item: Plugin) -> None:
    """Register a plugin."""
    versions = _PLUGINS.setdefault((item.framework, item.domain, item.operator), [])
    versions.append(item)
    versions.sort(key=lambda p: (p.custom, p.since))
    if item.custom:
        _CUSTOM.append(item)


def remove(item: Plugin) -> None:
    """Remove a plugin."""
    _PLUGINS[item.framework, item.domain, item.operator].remove(item)
    if item in _CUSTOM:
        _CUSTOM.remove(item)


def custom() -> list[Plugin]:
    """The custom plugins, in a stable order."""
    return sorted(_CUSTOM, key=lambda p: (p.framework, p.domain, p.operator, p.since))


def declared() -> set[Plugin]:
    """All plugins."""
    return {item for versions in _PLUGINS.values() for item in versions}


def find(framework: str, operator: str, version: int = 0, domain: str = "") -> Plugin | None:
    """The active plugin for an operator at a version, None if there is none."""
    versions = _PLUGINS.get((framework, domain, operator), [])
    fitting = [p for p in versions if p.since <= version or framework != "onnx"]
    return fitting[-1] if fitting else None


def find_custom(framework: str, operator: str) -> Plugin | None:
    """The active custom plugin for an operator, None if there is none."""
    found = find(framework, operator)
    return found if found is not None and found.custom else None


def mapped(framework: str) -> list[str]:
    """The operator names of a framework that have a plugin."""
    return sorted({operator for (f, _, operator), items in _PLUGINS.items() if f == framework and items})
