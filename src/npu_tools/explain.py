"""`tf-adapter explain`: shows which operators of a model file or script run on the NPU, which on the host, and why."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from npu_tools.outcome import Failure, console, print_json

__all__ = ["app"]

MODEL_FILES = (".onnx", ".pb", ".om", ".air")
_NAMED = 3  # nodes named for one reason

app = typer.Typer()


@app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def explain(
    subject: Annotated[Path, typer.Argument(help="A model file, a SavedModel folder, or a Python script.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.")] = None,
    nodes: Annotated[bool, typer.Option("--nodes", help="Show every node of a model file.")] = False,
    framework: Annotated[
        str, typer.Option(help="Of a script: tensorflow, tensorflow1 or torch; by default its imports tell.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show which operators of a model file or script run on the NPU, which on the host, and why.

    A script runs once on the NPU; if it fails, its exit status is returned.
    """
    if not subject.exists():
        raise Failure(f"there is no file '{subject}'", "give a model file, a SavedModel folder or a script")
    if subject.suffix == ".py":
        status, parts = _script(subject, arguments or [], framework, json)
    else:
        status, parts = 0, [_model(subject, nodes)]
    if json:
        print_json({"subject": str(subject), "status": status, "parts": parts})
    else:
        _show(subject, parts)
    if status:
        raise typer.Exit(status)


def _model(path: Path, nodes: bool) -> dict[str, Any]:
    if not path.is_dir() and path.suffix not in MODEL_FILES:
        raise Failure(
            f"'{path}' is neither a script nor a model file", f"known endings: .py, {', '.join(MODEL_FILES)}"
        )
    import ge
    from npu_tools.explaining import from_model

    model = ge.compile(path)
    part = from_model(model)
    if nodes:
        part["nodes"] = [
            {"node": r.node, "operator": r.operator, "engine": r.engine, "reason": r.reason}
            for r in ge.explain(model)
        ]
    return part


def _script(
    path: Path, arguments: list[str], framework: str, quiet: bool
) -> tuple[int, list[dict[str, Any]]]:
    from npu_tools.scripts import run_watched

    outcome = run_watched(path, arguments, "explain", framework, quiet=quiet)
    if outcome.result is None:
        raise Failure(f"{path} ended before anything could be seen (status {outcome.status})")
    return outcome.status, json_module.loads(outcome.result)


def _show(subject: Path, parts: list[dict[str, Any]]) -> None:
    screen = console()
    for part in parts:
        for line in _lines(part):
            screen.print(line)
    if not parts:
        screen.print(f"[yellow]{escape(str(subject))}[/]: nothing was compiled for the NPU")
        screen.print(
            "[cyan] hint:[/] TensorFlow compiles functions and Keras models; "
            "in PyTorch, use torch.compile(backend='npu')"
        )


def _lines(part: dict[str, Any]) -> Iterator[str]:
    host = sum(row["count"] for row in part["host"])
    share = f", {part['share']:.1%} of the arithmetic" if "share" in part else ""
    count = f"{part['npu']} of {part['npu'] + host} nodes on the NPU{share}"
    yield f"[bold]{escape(part['name'])}[/]: [{'yellow' if host else 'green'}]{count}[/]"
    for engine, nodes in part.get("engines", {}).items():
        yield f"  {nodes} on {escape(engine)}"
    for row in part["host"]:
        names = ", ".join(row["nodes"][:_NAMED]) + (", …" if row["count"] > _NAMED else "")
        where = f"[dim]{escape(f'[{names}]')}[/]"
        yield f"  [yellow]host[/] {escape(row['operator'])} ×{row['count']}: {escape(row['reason'])} {where}"
        if row["remedy"]:
            yield f"       [cyan]→[/] {escape(row['remedy'])}"
    for note in part.get("notes", ()):
        yield f"  [cyan]note[/] {escape(note)}"
    for row in part.get("nodes", ()):
        name, operator, engine, reason = (escape(row[k]) for k in ("node", "operator", "engine", "reason"))
        yield f"  {name}  {operator}  [bold]{engine}[/]  {reason}"
