"""LibCST helpers: names, strings, arguments, parsed templates."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import libcst as cst

__all__ = ["argument", "expression", "keyword", "replaced_text", "statement", "string_value", "with_argument"]


def expression(template: str, **parts: cst.BaseExpression) -> cst.BaseExpression:
    """Parse an expression template with {names} for its parts.

    >>> cst.Module([]).code_for_node(expression("f({x}, 1)", x=cst.Name("y")))
    'f(y, 1)'
    """
    names = {name: f"_part_{name}_" for name in parts}
    tree = cst.parse_expression(template.format(**names))
    by_name = {names[name]: part for name, part in parts.items()}

    class Filler(cst.CSTTransformer):
        def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
            return by_name.get(original_node.value, updated_node)

    filled = tree.visit(Filler())
    assert isinstance(filled, cst.BaseExpression)
    return filled


def statement(text: str, config: cst.PartialParserConfig) -> Any:
    """Parse a statement."""
    parsed = cst.parse_statement(text, config)
    assert isinstance(parsed, cst.BaseStatement)
    return parsed


def string_value(node: cst.BaseExpression) -> str | None:
    """The value of a plain string."""
    if isinstance(node, (cst.SimpleString, cst.ConcatenatedString)):
        value = node.evaluated_value
        return value if isinstance(value, str) else None
    return None


def replaced_text(node: Any, pattern: re.Pattern[str], by: str) -> Any:
    """Replace a pattern once in a string or format string part, keeping quotes and prefix."""
    return node.with_changes(value=pattern.sub(by, node.value, count=1))


def keyword(args: Sequence[cst.Arg], name: str) -> int | None:
    """The position of a keyword argument."""
    return next(
        (i for i, arg in enumerate(args) if arg.keyword is not None and arg.keyword.value == name), None
    )


def argument(call: cst.Call, name: str, position: int) -> int | None:
    """Index of an argument given by name or position; None if missing."""
    found = keyword(call.args, name)
    if found is not None:
        return found
    plain = [i for i, arg in enumerate(call.args) if arg.keyword is None and not arg.star]
    return plain[position] if position < len(plain) else None


def with_argument(call: cst.Call, name: str, value: cst.BaseExpression) -> cst.Call:
    """Append a keyword argument to a call."""
    args = list(call.args)
    if args:
        last = args[-1]
        if last.star == "**":  # before it, as positional ones would have to be
            added = cst.Arg(value, cst.Name(name), equal=_TIGHT, comma=_COMMA)
            return call.with_changes(args=[*args[:-1], added, last])
        trailing = last.comma
        args[-1] = last.with_changes(comma=_COMMA)
        if isinstance(trailing, cst.Comma):  # one argument a line stays one argument a line
            args[-1] = last.with_changes(comma=_between(call, args))
            return call.with_changes(
                args=[*args, cst.Arg(value, cst.Name(name), equal=_TIGHT, comma=trailing)]
            )
    return call.with_changes(args=[*args, cst.Arg(value, cst.Name(name), equal=_TIGHT)])


def _between(call: cst.Call, args: Sequence[cst.Arg]) -> cst.Comma:
    """The comma between two arguments of this call, with its trailing whitespace."""
    before = args[-2].comma if len(args) > 1 else None
    return (
        before if isinstance(before, cst.Comma) else cst.Comma(whitespace_after=call.whitespace_before_args)
    )


_TIGHT = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
