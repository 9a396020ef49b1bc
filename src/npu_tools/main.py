"""The command `tf-adapter`: one table of commands, each loaded when it is called.

A command is a module with `app`, a `typer.Typer` of one command or of several; a row of `COMMANDS` names it. The
exit statuses of all commands are those of `npu_tools.outcome.Exit`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from npu_tools.outcome import Exit, Failure, report

__all__ = ["COMMANDS", "Row", "app", "main"]


@dataclass(frozen=True)
class Row:
    """A command: the module with its `app`, and its line in the help."""

    module: str
    text: str


COMMANDS = {
    "check": Row(
        "npu_tools.check.command",
        "Check a script or model file against the migration guide and write a report.",
    ),
    "env": Row(
        "npu_tools.env",
        "Show versions, processor, devices, memory and settings, and problems with them.",
    ),
    "explain": Row(
        "npu_tools.explain",
        "Show which operators of a model file or script run on the NPU, which on the host, and why.",
    ),
    "port": Row(
        "npu_tools.port.command",
        "Port GPU and CPU scripts to the NPU; change only what is necessary.",
    ),
    "profile": Row(
        "npu_tools.profile",
        "Profile a script: a timeline, times of operators and kernels, a roofline.",
    ),
    "top": Row(
        "npu_tools.top",
        "Show the processes that use NPUs: steps per second, device memory, host calls, compiles.",
    ),
    "cache": Row("npu_tools.cache", "List or clear compiled code and measurements on disk."),
}


class _Lazy(TyperGroup):
    """A group that lists its commands from the table and imports one when it is called or completed."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else _loaded(name), rest


def _loaded(name: str) -> Any:
    command = typer.main.get_command(importlib.import_module(COMMANDS[name].module).app)
    command.name = name
    return command


app = typer.Typer(
    name="tf-adapter",
    cls=_Lazy,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from ge.versions import describe

        print(describe())
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show versions and settings."),
    ] = False,
) -> None:
    """Run TensorFlow, PyTorch and model files on an NPU, and see what happens there.

    Exit status: 0 done, 1 something was found or would change, 2 wrong usage, 3 failed, 130 interrupted.
    """


def _declare(name: str, row: Row) -> None:
    """List a command in help and completion; `_Lazy` puts the module's command in its place."""

    @app.command(name, help=row.text)
    def _unloaded() -> None:
        raise AssertionError(f"command {name} was not loaded")


for _name, _row in COMMANDS.items():
    _declare(_name, _row)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(given, prog_name="tf-adapter")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else Exit.DONE
    except Failure as failure:
        return report(failure)
    except Exception as error:
        return report(_of_engine(error))
    return Exit.DONE


def _of_engine(error: Exception) -> Failure:
    """Convert an error of the Graph Engine to a Failure; re-raise anything else, a fault of the command."""
    from ge.errors import GeError

    if not isinstance(error, GeError):
        raise error
    return Failure(str(error))
