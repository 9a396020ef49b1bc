"""How commands end: exit statuses, failures with a remedy, output as JSON or a table."""

from __future__ import annotations

import enum
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Exit", "Failure", "Misuse", "console", "print_json", "report"]


class Exit(enum.IntEnum):
    """Exit statuses of all commands."""

    DONE = 0
    FOUND = 1  # `env` found a fault, `port --check` a change
    USAGE = 2
    FAILED = 3
    INTERRUPTED = 130


class Failure(Exception):
    """A command failed: the cause and the remedy."""

    status = Exit.FAILED

    def __init__(self, cause: str, remedy: str = "") -> None:
        self.cause, self.remedy = cause, remedy
        super().__init__(f"{cause}. {remedy}" if remedy else cause)


class Misuse(Failure):
    """An option has an invalid value."""

    status = Exit.USAGE


def console(*, stderr: bool = False) -> Console:
    """A console with the terminal's width and colours; plain text if the output is not a terminal."""
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
    """Print data as JSON for other programs."""
    json.dump(data, sys.stdout, indent=1, allow_nan=False)
    print()
