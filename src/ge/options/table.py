"""The table of options. Every way to set one (a door) is a view of it; so is docs/options.md.

An option is declared once (`declared`): its name, how a value is read, its default, what it decides, the doors that
offer it. The keys of all caches are derived from what is declared to decide a compile. Imports nothing heavy.
"""

from __future__ import annotations

import difflib
import functools
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ge.errors import GeError
from ge.options import declared
from ge.options.values import Parser

__all__ = [
    "DOORS",
    "GROUPS",
    "OPTIONS",
    "Option",
    "OptionError",
    "UnknownOptionError",
    "from_environment",
    "raw_environment",
    "tell_once",
    "view",
]

DOORS = {
    "ge": "`ge.CompileOptions`, `ge.Session`",
    "atc": "`atc`",
    "tf": "`tf_adapter.options`",
    "npu_device": "`npu_device.global_options()`",
    "v1": "`NpuOptimizer`, `NPURunConfig`",
    "torchair": "`torchair.CompilerConfig`",
}
DECIDES = {
    "compile": "part of the key of compiled models",
    "run": "what happens besides compiling",
    "start": "fixed once the devices are registered",
    "means": "another name for one or more options above",
    "door": "read only by its front door",
    "idle": "accepted, checked, and without effect",
}
GROUPS = (
    "Model",
    "Inputs and outputs",
    "Precision and fusion",
    "Devices",
    "Dumps, profiles and caches",
    "PyTorch's graphs",
    "Other",
    "Without effect",
)
_PLAIN = frozenset({"ge", "atc", "npu_device", "v1"})  # doors with plain names, which accept idle options
_log = logging.getLogger("ge.options")


class OptionError(GeError, ValueError):
    """A value that an option cannot have: the same at every door, but for the spelling of the option."""


class UnknownOptionError(OptionError, AttributeError):
    """A name that no option of a door has."""


@dataclass(frozen=True)
class Option:
    """One option.

    `doors` offer it; `ignored_at` are doors that accept it although it has no effect there, because of `ignored`.
    `field` is the field of CompileOptions that it sets.
    """

    name: str
    parser: Parser
    default: Any
    decides: str
    text: str  # what it does; for an idle option, why it has no effect
    doors: frozenset[str] = frozenset()
    variable: str = ""
    field: str = ""
    group: str = ""
    code: str = "E10010"
    ignored_at: frozenset[str] = frozenset()
    ignored: str = ""

    def parse(self, value: Any, spelling: str = "") -> Any:
        """The value as the option keeps it.

        >>> OPTIONS["num_threads"].parse("2")
        2
        """
        try:
            return self.parser.read(value)
        except (TypeError, ValueError, KeyError, OverflowError, AttributeError) as error:
            detail = f": {error}" if isinstance(error, ValueError) and "there is no" in str(error) else ""
            raise self._refusal(value, spelling, detail) from error
        except GeError as error:
            raise self._refusal(value, spelling, f": {error.cause}") from error

    def _refusal(self, value: Any, spelling: str, detail: str) -> OptionError:
        name = spelling or self.name
        return OptionError(
            self.code, f"{name} cannot be {value!r}{detail}", remedy=f"use {self.parser.choices}"
        )

    def idle_at(self, door: str) -> str:
        """Why the option has no effect at a door, "" where it has one."""
        return self.text if self.decides == "idle" else self.ignored if door in self.ignored_at else ""


def _read_declarations() -> dict[str, Option]:
    found: dict[str, Option] = {}
    for group, rows in declared.OPTIONS.items():
        for name, parser, default, decides, doors, text, *rest in rows:
            assert name not in found and decides in DECIDES and group in GROUPS, name
            listed = doors.split()
            ignored = frozenset(door.strip("()") for door in listed if door.startswith("("))
            offered = frozenset(door for door in listed if not door.startswith("("))
            more = rest[0] if rest else {}
            found[name] = Option(
                name, parser, default, decides, text, offered, group=group, ignored_at=ignored, **more
            )
    for reason, kinds in declared.IDLE.items():
        for parser, names in kinds.items():
            for name in names.split():
                assert name not in found, name
                found[name] = Option(name, parser, None, "idle", reason, _PLAIN, group=GROUPS[-1])
    return found


OPTIONS: Mapping[str, Option] = _read_declarations()


@functools.cache
def view(door: str) -> Mapping[str, Option]:
    """The options that a door offers, by the names that they have there; dots separate the sections of a tree.

    >>> view("torchair")["ge_config.precision_mode"].name
    'precision_mode'
    """
    found = {name: option for name, option in OPTIONS.items() if door in option.doors | option.ignored_at}
    for section, listed in declared.SECTIONS.get(door, {}).items():
        for item in listed.split():
            name, _, option = item.partition("=")
            found[f"{section}.{name}".lstrip(".")] = OPTIONS[option or name]
    return found


def unknown(name: str, known: Iterable[str], spelling: str, code: str = "E10010") -> UnknownOptionError:
    """The error of a name that does not exist, with the nearest that do."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, 3, 0.5)
    hint = f"did you mean {', '.join(near)}? " if near else ""
    return UnknownOptionError(
        code, f"{spelling} has no option '{name}'", remedy=f"{hint}Valid names: {', '.join(names)}"
    )


@functools.cache
def tell_once(what: str) -> None:
    """Tell the user something, the first time only."""
    _log.warning("%s", what)


def tell_idle(option: Option, door: str, spelling: str) -> None:
    """Say once why an option that was set has no effect at a door."""
    if why := option.idle_at(door):
        tell_once(f"{spelling} has no effect: {why}")


def raw_environment() -> tuple[str | None, ...]:
    """The texts of all environment variables of options, as they are now."""
    return tuple(os.environ.get(option.variable) for option in OPTIONS.values() if option.variable)


def from_environment(
    source: Mapping[str, str] | None = None, only: Callable[[Option], bool] = lambda option: True
) -> dict[str, Any]:
    """The options that environment variables set, by name; a value that an option cannot have is named in a warning."""
    from npu_runtime import environment

    given = os.environ if source is None else source
    found: dict[str, Any] = {}
    for name, option in OPTIONS.items():
        value = given.get(option.variable, "") if option.variable else ""
        if value and only(option):
            try:
                found[name] = option.parse(value, option.variable)
            except OptionError:
                environment.warn(option.variable, value, option.parser.choices)
    return found
