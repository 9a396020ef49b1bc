"""A function for each operator, for the public graph API: `ge.ops.layer_norm(x, scale, bias, axes=[-1])`."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ge.errors import GeError
from ge.ops.base import REQUIRED, Attr, Operator, candidates, registered

__all__ = ["find", "function", "functions", "refresh", "snake_case"]

_SPECIAL_NAMES = {"MatMul": "matmul", "QMatMul": "qmatmul"}


def snake_case(type_: str) -> str:
    """The name of the function for an operator type.

    >>> snake_case("LayerNorm"), snake_case("MatMul"), snake_case("And"), snake_case("LSTM")
    ('layer_norm', 'matmul', 'and_', 'lstm')
    """
    name = _SPECIAL_NAMES.get(type_) or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type_).lower()
    return name + "_" if keyword.iskeyword(name) else name


def function(operator: type[Operator]) -> Callable[..., Any]:
    """The function that adds an operator to the graph of its arguments."""
    ports, attrs = operator.prototype.inputs, operator.prototype.attrs
    variadic = bool(ports) and next(reversed(ports.values())).variadic

    def call(*args: Any, name: str = "", graph: Any = None, **given: Any) -> Any:
        from ge.ops.graph import Tensor, current_graph, home_of

        operands = list(_flatten(args)) if variadic else list(args[: len(ports)])
        extra = [] if variadic else args[len(ports) :]
        if len(extra) > len(attrs):
            raise TypeError(
                f"{call.__name__}() takes at most {len(ports) + len(attrs)} arguments, got {len(args)}"
            )
        for port in list(ports)[len(operands) :]:
            if port in given:
                operands += [None] * (list(ports).index(port) - len(operands)) + [given.pop(port)]
        first = next((a.graph for a in operands if isinstance(a, Tensor)), None)
        home = graph or (home_of(first) if first is not None else current_graph())
        if home is None:
            raise GeError(
                "E10040",
                f"{call.__name__}() got no tensor to tell the graph",
                remedy="pass a tensor, graph=…, or call it within 'with graph:'",
            )
        return home.op(operator.type, *operands, name=name, **dict(zip(attrs, extra, strict=False)), **given)

    call.__name__ = call.__qualname__ = snake_case(operator.type)
    call.__doc__ = _documentation(operator)
    call.__module__ = "ge.ops"
    call.__signature__ = _signature(operator)  # type: ignore[attr-defined]
    return call


def functions() -> dict[str, Callable[..., Any]]:
    """The functions of all registered operators, by name."""
    return {snake_case(type_): function(operator) for type_, operator in registered().items()}


def refresh(names: dict[str, Any], type_: str) -> None:
    """Update or remove the function of a type in a namespace."""
    operator = registered().get(type_)
    if operator is not None:
        names[snake_case(type_)] = function(operator)
    else:
        names.pop(snake_case(type_), None)


def find(name: str) -> Callable[..., Any]:
    """The function of a name, for operators registered later; AttributeError if there is none."""
    for type_ in registered():
        if snake_case(type_) == name:
            return function(candidates(type_)[0])
    raise AttributeError(f"module 'ge.ops' has no attribute '{name}'")


def _flatten(args: Sequence[Any]) -> Iterator[Any]:
    for arg in args:
        if isinstance(arg, list | tuple):
            yield from arg
        else:
            yield arg


def _signature(operator: type[Operator]) -> inspect.Signature:
    """Inputs, then attributes; keyword-only from the first required attribute after an optional parameter on."""
    kind = inspect.Parameter
    parameters: list[inspect.Parameter] = []
    for name, port in operator.prototype.inputs.items():
        default = None if port.optional and not port.variadic else kind.empty
        place = kind.VAR_POSITIONAL if port.variadic else kind.POSITIONAL_OR_KEYWORD
        parameters.append(kind(name, place, default=default))
    by_keyword = any(p.kind is kind.VAR_POSITIONAL for p in parameters)
    for name, attr in operator.prototype.attrs.items():
        default = kind.empty if attr.default is REQUIRED else attr.default
        by_keyword |= default is kind.empty and any(p.default is not kind.empty for p in parameters)
        parameters.append(
            kind(name, kind.KEYWORD_ONLY if by_keyword else kind.POSITIONAL_OR_KEYWORD, default=default)
        )
    parameters.append(kind("name", kind.KEYWORD_ONLY, default=""))
    return inspect.Signature(parameters)


def _documentation(operator: type[Operator]) -> str:
    ports = [
        f"    {n}: {_port_words(p.dtypes, p.optional, p.variadic)}"
        for n, p in operator.prototype.inputs.items()
    ]
    attrs = [f"    {n}: {_attr_words(a)}" for n, a in operator.prototype.attrs.items()]
    parts = [inspect.cleandoc(operator.__doc__ or operator.type)]
    parts += ["Tensors:\n" + "\n".join(ports)] if ports else []
    parts += ["Attributes:\n" + "\n".join(attrs)] if attrs else []
    return "\n\n".join(parts)


def _port_words(dtypes: frozenset[str], optional: bool, variadic: bool) -> str:
    words = ["any number"] if variadic else ["optional"] if optional else []
    return "; ".join([*words, ", ".join(sorted(dtypes))])


def _attr_words(attr: Attr) -> str:
    words = attr.type.__name__
    if attr.choices:
        words += " of " + ", ".join(map(repr, attr.choices))
    return words if attr.default is REQUIRED else f"{words}, {attr.default!r} by default"
