"""atc's view of the option table: parses the texts of a command line. Imports nothing heavy."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ge.errors import GeError
from ge.options.table import GROUPS, Option, unknown, view

__all__ = ["effective_options", "parse_arguments"]


def effective_options() -> dict[str, Option]:
    """The options of the command that have an effect, by group."""
    found = {name: option for name, option in view("atc").items() if not option.idle_at("atc")}
    return dict(sorted(found.items(), key=lambda item: GROUPS.index(item[1].group)))


def parse_arguments(texts: Mapping[str, str], extras: Sequence[str]) -> ChainMap[str, Any]:
    """The values of all options of the command; the first mapping holds those that were given, the second the defaults.

    `extras` are the words that belong to no option: options without effect are accepted, others are errors.

    >>> parse_arguments({"mode": "3"}, ["--op_debug_level=1", "--weight", "w.caffemodel"])["mode"]
    3
    """
    known = view("atc")
    given = {name: text for name, text in texts.items() if text}
    for name, text in _words(extras):
        if name not in known:
            raise unknown(f"--{name}", [f"--{n}" for n in effective_options()], "atc", "E12001")
        given[name] = text
    values = {name: known[name].parse(text, f"--{name}") for name, text in given.items()}
    return ChainMap(values, {name: option.default for name, option in known.items()})


def _words(extras: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The names and values on a command line, written --name=value or --name value."""
    rest = list(extras)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise GeError("E12002", f"'{word}' is not an option", remedy="options are written --name=value")
        name, sign, text = word[2:].partition("=")
        if not sign and rest and not rest[0].startswith("--"):
            text = rest.pop(0)
        yield name, text
