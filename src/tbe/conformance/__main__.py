"""python -m tbe.conformance: operator files and TIK programs beside NumPy."""

from __future__ import annotations

import typer

from tbe.conformance.operators import operators
from tbe.conformance.tik_programs import tik

app = typer.Typer(
    add_completion=False, help="Operator files and TIK programs beside NumPy.", no_args_is_help=True
)
app.command()(operators)
app.command()(tik)

if __name__ == "__main__":
    app()
