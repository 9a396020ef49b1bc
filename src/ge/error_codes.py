"""Generates the page of error codes from the sources: `python -m ge.error_codes`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ErrorUse", "text", "uses"]

_CODE = re.compile(r"[EW]\d{5}")
_FAMILIES = {
    "E10": "Graphs, models and their compilation",
    "E11": "Model files",
    "E12": "Options and command lines",
    "E13": "Preparation of images (AIPP)",
}
_INTRODUCTION = """# Errors

This page is made from the sources (`python -m ge.error_codes`). An error of the Graph Engine is a `ge.GeError` with a
stable code in `error.code`; it names the node, the operator, the cause and the remedy. The front doors raise the
exception types of their frameworks with the same text. `…` stands for what an error names.
"""


@dataclass(frozen=True, order=True)
class ErrorUse:
    """One place that raises an error: its code, its cause and its remedy, as far as the source shows them."""

    code: str
    cause: str
    remedy: str
    module: str


def _words(node: ast.expr | None) -> str:
    """A text of the source; parts filled in at run time become `…`."""
    match node:
        case ast.Constant(value=str(words)):
            return words
        case ast.JoinedStr(values=values):
            return "".join(_words(v) for v in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _words(left) + _words(right)
        case ast.IfExp(body=body, orelse=other):
            return " / ".join(filter(None, (_words(body), _words(other))))
        case None:
            return ""
        case _:
            return "…"


def _of_call(call: ast.Call, module: str) -> Iterator[ErrorUse]:
    """The error of a call that has a code among its arguments, followed by the cause."""
    for place, argument in enumerate(call.args):
        if isinstance(argument, ast.Constant) and _CODE.fullmatch(str(argument.value)):
            named = {k.arg: k.value for k in call.keywords}
            cause = call.args[place + 1] if place + 1 < len(call.args) else named.get("cause")
            yield ErrorUse(str(argument.value), _words(cause), _words(named.get("remedy")), module)


def _of_fields(fields: ast.Dict, module: str) -> Iterator[ErrorUse]:
    """The error of a dictionary of fields."""
    named = {_words(k): v for k, v in zip(fields.keys, fields.values, strict=True)}
    if _CODE.fullmatch(_words(named.get("code"))):
        yield ErrorUse(_words(named["code"]), _words(named.get("cause")), _words(named.get("remedy")), module)


def uses(folder: Path) -> list[ErrorUse]:
    """All errors with codes that the modules below a folder raise."""
    found: set[ErrorUse] = set()
    for path in sorted(folder.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if not _CODE.search(source):
            continue
        module = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call):
                found.update(_of_call(node, module))
            elif isinstance(node, ast.Dict):
                found.update(_of_fields(node, module))
    return sorted(found)


def _cell(words: str) -> str:
    return " ".join(words.split()).replace("|", "\\|").replace("<", "&lt;").rstrip(".")


def text(folder: Path | None = None) -> str:
    """The page."""
    found = uses(folder or Path(__file__).resolve().parents[1])
    lines = [_INTRODUCTION]
    for family, title in _FAMILIES.items():
        rows = {(u.code, _cell(u.cause), _cell(u.remedy)) for u in found if u.code.startswith(family)}
        if rows:
            lines += [f"## {family}xxx: {title}\n", "| code | cause | remedy |", "|---|---|---|"]
            lines += [
                " | ".join(("| `" + code + "`", cause or "…", remedy)).rstrip() + " |"
                for code, cause, remedy in sorted(rows)
            ]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    print(text(), end="")
