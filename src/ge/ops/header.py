"""npu/operators.hpp, a C++ function for each operator: `python -m ge.ops.header FILE` writes it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ge.ops  # noqa: F401  (registers the library)
from ge.ops.base import REQUIRED, Attr, Input, Operator, candidates, is_custom, registered
from ge.ops.functions import snake_case

__all__ = ["header"]

_HEAD = """\
// A function for each operator of the library. Made by `python -m ge.ops.header`.
// clang-format off
//
// Inputs come first, then attributes by name: ops::softmax(x, {.axes = {-1}}). An input that is absent is Value().
// Branches and loops, whose attributes are graphs, are not here.
#ifndef NPU_OPERATORS_HPP_
#define NPU_OPERATORS_HPP_

#include <npu/attributes.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tf_adapter::ops {
"""
_TAIL = """
}  // namespace tf_adapter::ops

namespace tf_adapter {

inline Value operator+(const Value& a, const Value& b) { return ops::add(a, b); }
inline Value operator-(const Value& a, const Value& b) { return ops::sub(a, b); }
inline Value operator*(const Value& a, const Value& b) { return ops::mul(a, b); }
inline Value operator/(const Value& a, const Value& b) { return ops::div(a, b); }
inline Value operator-(const Value& a) { return ops::neg(a); }

}  // namespace tf_adapter

#endif  // NPU_OPERATORS_HPP_
"""
_TYPES = {bool: "bool", int: "std::int64_t", float: "double", str: "std::string"}
_DEFAULT = " = {}"
# C++ keywords that are not Python keywords, as far as operators and their attributes may have such names.
_KEYWORDS = frozenset(
    ("auto", "bool", "case", "char", "const", "default", "delete", "double", "enum", "export", "extern", "float", "int",
     "long", "new", "operator", "private", "public", "register", "short", "signed", "static", "struct", "switch",
     "template", "this", "throw", "union", "unsigned", "using", "virtual", "void", "xor")
)  # fmt: skip


def header() -> str:
    """The text of the file, for the built-in operators."""
    found = [_built_in(type_) for type_ in sorted(registered())]
    return _HEAD + "".join(_function(operator) for operator in found if operator is not None) + _TAIL


def _built_in(type_: str) -> type[Operator] | None:
    """The built-in operator of a type, if C++ can express its attributes."""
    own = [operator for operator in candidates(type_) if not is_custom(operator)]
    if not own or not all(
        attr.type in _TYPES or attr.type is list for attr in own[0].prototype.attrs.values()
    ):
        return None
    return own[0]


def _word(name: str) -> str:
    return name + "_" if name in _KEYWORDS else name


def _function(operator: type[Operator]) -> str:
    prototype, attributes = operator.prototype, f"{operator.type}Attributes"
    variadic = any(port.variadic for port in prototype.outputs.values())
    count = len(prototype.outputs)
    result = "std::vector<Value>" if variadic else "Value" if count == 1 else f"std::array<Value, {count}>"
    puts = "".join(f'\n          .put("{a}", attributes.{_word(a)})' for a in prototype.attrs)
    given = f"detail::Attributes(){puts}"
    results = "results" if variadic else str(count)
    if prototype.inputs:
        call = f'detail::add("{operator.type}", {_inputs(prototype.inputs)}, {given}, {results})'
    else:
        call = f'graph.add("{operator.type}", {{}}, {given}.list(), {results})'
    parameters = ", ".join(_parameters(operator, attributes, variadic))
    lines = ["", *_comment(operator), *_structure(attributes, prototype.attrs)]
    lines.append(f"inline {result} {_word(snake_case(operator.type))}({parameters}) {{")
    if variadic or count == 1:
        lines.append(f"  return {call}{'' if variadic else '[0]'};")
    else:
        made = ", ".join(f"made[{i}]" for i in range(count))
        lines += [f"  const std::vector<Value> made = {call};", f"  return {{{made}}};"]
    return "\n".join([*lines, "}", ""])


def _parameters(operator: type[Operator], attributes: str, variadic: bool) -> list[str]:
    """Inputs, the number of results if it varies, attributes; parameters with defaults come last."""
    prototype = operator.prototype
    parameters = [
        _parameter(name, port, name == next(iter(prototype.inputs)))
        for name, port in prototype.inputs.items()
    ]
    if not prototype.inputs:
        parameters.append("Graph& graph")
    if variadic:
        parameters.append("std::size_t results")
    if prototype.attrs:
        required = any(attr.default is REQUIRED for attr in prototype.attrs.values())
        parameters.append(f"const {attributes}& attributes" + ("" if required else _DEFAULT))
    last = max((i for i, text in enumerate(parameters) if not text.endswith(_DEFAULT)), default=-1)
    return [text.removesuffix(_DEFAULT) if i < last else text for i, text in enumerate(parameters)]


def _parameter(name: str, port: Input, first: bool) -> str:
    type_ = "const std::vector<Value>&" if port.variadic else "const Value&"
    return f"{type_} {_word(name)}" + (_DEFAULT if port.optional or (port.variadic and not first) else "")


def _comment(operator: type[Operator]) -> list[str]:
    text = (operator.__doc__ or operator.type).strip().splitlines()[0]
    return [f"// {text}"] if len(text) <= 105 else [f"// {text[:102]}..."]


def _structure(name: str, attrs: dict[str, Attr]) -> list[str]:
    if not attrs:
        return []
    return [f"struct {name} {{", *(f"  {_field(a, known)}" for a, known in attrs.items()), "};"]


def _field(name: str, attr: Attr) -> str:
    type_ = f"std::vector<{_TYPES[attr.item]}>" if attr.type is list else _TYPES[attr.type]
    if attr.default is None and attr.type is list:
        return f"OptionalList<{_TYPES[attr.item]}> {_word(name)} = {{}};"
    if attr.default is None:
        return f"std::optional<{type_}> {_word(name)} = {{}};"
    if attr.default is REQUIRED:
        return f"{type_} {_word(name)};"
    return f"{type_} {_word(name)} = {_literal(attr.default)};"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple | list):
        return f"{{{', '.join(_literal(v) for v in value)}}}"
    return repr(value)


def _inputs(ports: dict[str, Input]) -> str:
    single = ", ".join(_word(name) for name, port in ports.items() if not port.variadic)
    variadic = [_word(name) for name, port in ports.items() if port.variadic]
    if not variadic:
        return f"{{{single}}}"
    return f"detail::joined({{{single}}}, {variadic[0]})" if single else variadic[0]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(header())
