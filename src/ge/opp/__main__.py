"""python -m ge.opp: build, install, list and remove packages of custom operators, and start new projects."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from ge import opp
from ge.errors import GeError

app = typer.Typer(add_completion=False, help="Packages of custom operators.", no_args_is_help=True)


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="name of the operator")],
    directory: Annotated[Path, typer.Option(help="where to write the project")] = Path("."),
) -> None:
    """Write the skeleton of an operator project, which builds and passes its tests as it is."""
    path = opp.new_project(name, directory)
    print(f"wrote {path}; next: python -m ge.opp build {path}")


@app.command()
def build(
    project: Annotated[Path, typer.Argument(help="directory of the project")],
    output: Annotated[Path | None, typer.Option(help="install below this directory")] = None,
    name: Annotated[str, typer.Option(help="name of the package; the directory's by default")] = "",
    version: Annotated[str, typer.Option(help="version of the package")] = "1.0",
) -> None:
    """Build an operator project and install it; parts with faults are left out, and the exit status is 1."""
    start = time.perf_counter()
    spec, path = opp.build(project, output, name=name, version=version)
    operators = ", ".join(o.type for o in spec.operators) or ", ".join(spec.python)
    print(
        f"installed {spec.name} {spec.version} ({operators}) at {path} in {time.perf_counter() - start:.1f} s"
    )
    for note in spec.notes:
        print(f"note: {note}")
    for fault in spec.faults:
        print(f"fault: {fault}", file=sys.stderr)
    if spec.faults:
        raise typer.Exit(1)


@app.command(name="list")
def list_() -> None:
    """List the installed packages."""
    from ge.opp import project as projects

    rows = [
        ("package", "version", "operators", "implementations", "place"),
        *projects.rows(opp.installed()),
    ]
    if len(rows) == 1:
        print("no packages are installed")
        return
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        print("  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[4]]))


@app.command()
def remove(name: Annotated[str, typer.Argument(help="name of the package")]) -> None:
    """Remove an installed package."""
    print(f"removed {opp.remove(name)}")


def main() -> int:
    """Run the command line; errors are one line and exit code 1."""
    try:
        status = app(standalone_mode=False)
    except GeError as error:
        print(error, file=sys.stderr)
        return 1
    except Exception as error:
        if hasattr(error, "format_message"):  # wrong usage
            print(error.format_message(), file=sys.stderr)
            return 2
        raise
    return int(status or 0)


if __name__ == "__main__":
    sys.exit(main())
