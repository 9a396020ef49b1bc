"""How commands end: exit statuses that scripts can rely on, failures with a remedy, JSON or a table on the output."""

from __future__ import annotations

import enum
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Exit", "Failure", "Misuse", "console", "print_json", "report"]


class Exit(enum.IntEnum):
    """What an exit status means, for every command."""

    DONE = 0
    FOUND = 1  # `env` found a fault, `port --check` a change
    USAGE = 2
    FAILED = 3
    INTERRUPTED = 130


class Failure(Exception):
    """A command cannot do what it was asked: the cause, and what to do about it."""

    status = Exit.FAILED

    def __init__(self, cause: str, remedy: str = "") -> None:
        self.cause, self.remedy = cause, remedy
        super().__init__(f"{cause}. {remedy}" if remedy else cause)


class Misuse(Failure):
    """An option has a value that does not exist."""

    status = Exit.USAGE


def console(*, stderr: bool = False) -> Console:
    """A console of the width and colours of the terminal; plain text where the output is not one."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True, emoji=False)


def report(failure: Failure) -> Exit:
    """Print a failure and return its exit status."""
    from rich.markup import escape

    screen = console(stderr=True)
    screen.print(f"[bold red]error:[/] {escape(failure.cause)}")
    if failure.remedy:
        screen.print(f"[cyan] hint:[/] {escape(failure.remedy)}")
    return failure.status


def print_json(data: Any) -> None:
    """Data for another program."""
    json.dump(data, sys.stdout, indent=1, allow_nan=False)
    print()
