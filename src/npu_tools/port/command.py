"""`tf-adapter port`: the command."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from npu_tools.outcome import Exit, Failure, console, print_json

if TYPE_CHECKING:
    from npu_tools.port.result import Ported

__all__ = ["app"]

app = typer.Typer()


@app.command()
def port(
    paths: Annotated[list[Path], typer.Argument(help="Scripts, or folders of scripts.")],
    check: Annotated[bool, typer.Option("--check", help="Exit status 1 if a script needs a change.")] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Change the files instead of showing a diff.")
    ] = False,
    framework: Annotated[
        str, typer.Option(help="tensorflow, tensorflow1 or torch; by default the imports of a script tell.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Port GPU and CPU scripts to the NPU; change only what is necessary.

    Prints a diff with a reason for each change, and the changes left to you. Files change with --write only.
    """
    if check and write:
        raise typer.BadParameter("--check changes nothing: leave out one of --check and --write")
    results = _ported(paths, framework)
    if write:
        _write(results)
    if json:
        print_json({"files": [_data(result) for result in results], "written": write})
    else:
        _show(results, write)
    if check and any(result.changed for result in results):
        raise typer.Exit(Exit.FOUND)


def _ported(paths: list[Path], framework: str) -> list[Ported]:
    try:
        from npu_tools.port.project import port_files
    except ModuleNotFoundError as error:
        if error.name != "libcst":
            raise
        raise Failure("porting needs LibCST", "pip install 'tf-adapter[tools]'") from error
    return port_files(paths, framework)


def _write(results: list[Ported]) -> None:
    from npu_tools.port.project import write

    for result in results:
        if result.changed:
            write(result, Path(result.path))


def _data(result: Ported) -> dict[str, object]:
    return {
        "path": result.path,
        "changed": result.changed,
        "changes": [asdict(change) for change in result.changes],
        "leftovers": [asdict(leftover) for leftover in result.leftovers],
        "diff": result.diff(),
    }


def _show(results: list[Ported], written: bool) -> None:
    """Print reasons and diffs to stdout, in a form that `patch` accepts, and leftovers and totals to stderr."""
    screen, remarks = console(), console(stderr=True)
    for result in results:
        for change in result.changes:
            screen.print(f"[dim]# {escape(result.path)}:{change.line}: {escape(change.reason)}[/]")
        if not written:
            _show_diff(screen, result.diff())
    for result in results:
        for leftover in result.leftovers:
            remarks.print(
                f"[bold yellow]left:[/] {escape(result.path)}:{leftover.line}: {escape(leftover.text)}"
            )
            remarks.print(f"[cyan] hint:[/] {escape(leftover.remedy)}")
    changed, left = sum(r.changed for r in results), sum(len(r.leftovers) for r in results)
    done = "changed" if written else "to change"
    places = "1 place" if left == 1 else f"{left} places"
    remarks.print(f"[bold]{changed} of {len(results)} files {done}[/], {places} left to you")


def _show_diff(screen: Console, diff: str) -> None:
    """Print a diff in colours on a terminal, elsewhere byte for byte, tabs included."""
    if not screen.is_terminal:
        sys.stdout.write(diff)
        return
    for line in diff.splitlines():
        screen.print(Text(line, style=_COLOURS.get(line[:1], "")))


_COLOURS = {"+": "green", "-": "red", "@": "cyan"}
