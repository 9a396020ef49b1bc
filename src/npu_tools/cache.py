"""`tf-adapter cache`: lists and removes compiled code and measurements on disk.

Only files whose path and name identify them as this project's are listed and removed; links are not followed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from npu_tools.outcome import Failure, Misuse, console, print_json

__all__ = ["KINDS", "Entry", "app", "entries"]

# Description of each kind, and the pattern of its files below a cache folder.
KINDS = {
    "models": ("compiled models", re.compile(r"[0-9a-f]{2}/[0-9a-f]{48}\.om")),
    "kernels": ("generated kernels", re.compile(r"kernels/[0-9a-f]{64}")),
    "graphs": (
        "compiled PyTorch graphs",
        re.compile(r"(graphs/)?(\w+_rank_\d+/)*[^/]+\.(graph|program)"),
    ),
    "tuning": ("tuned kernels", re.compile(r"(cuda-)?tuning\.json")),
    "costs": ("measured costs of this machine", re.compile(r"costs-\w+\.json")),
}
_SECONDS_A_DAY = 86400

app = typer.Typer(no_args_is_help=True, help="List or clear compiled code and measurements on disk.")

_Folder = Annotated[
    Path | None,
    typer.Option(
        "--dir", help="The folder; by default NPU_CACHE_DIR, the user's cache folder and .torchair_cache."
    ),
]
_Kind = Annotated[
    list[str] | None, typer.Option("--kind", help=f"Only these kinds: {', '.join(KINDS)}. May be repeated.")
]
_Days = Annotated[float, typer.Option("--older", min=0, help="Only what was not written for so many days.")]


@dataclass(frozen=True)
class Entry:
    """A cached file."""

    path: Path
    kind: str
    nbytes: int
    written: float  # seconds since the epoch


def folders(given: Path | None) -> list[Path]:
    """The existing cache folders."""
    from npu_runtime.environment import cache_folder

    if given is not None and not given.is_dir():
        raise Failure(f"there is no folder '{given}'")
    return (
        [given] if given is not None else [f for f in (cache_folder(), Path(".torchair_cache")) if f.is_dir()]
    )


def entries(folder: Path) -> Iterator[Entry]:
    """The files of a cache folder, sorted by name."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        inside = path.relative_to(folder).as_posix()
        kind = next((name for name, (_, form) in KINDS.items() if form.fullmatch(inside)), "")
        if kind:
            status = path.stat()
            yield Entry(path, kind, status.st_size, status.st_mtime)


def _chosen(folder: Path | None, kinds: list[str] | None, days: float) -> list[Entry]:
    unknown = sorted(set(kinds or ()) - set(KINDS))
    if unknown:
        raise Misuse(f"there is no kind '{unknown[0]}'", f"kinds are {', '.join(KINDS)}")
    latest = time.time() - days * _SECONDS_A_DAY
    return [
        entry
        for place in folders(folder)
        for entry in entries(place)
        if (not kinds or entry.kind in kinds) and entry.written <= latest
    ]


def _totals(found: list[Entry]) -> list[dict[str, Any]]:
    return [
        {"kind": kind, "what": what, "files": len(own), "bytes": sum(e.nbytes for e in own)}
        for kind, (what, _) in KINDS.items()
        for own in [[e for e in found if e.kind == kind]]
    ]


@app.command("ls")
def list_files(
    folder: _Folder = None,
    kind: _Kind = None,
    older: _Days = 0,
    files: Annotated[bool, typer.Option("--files", help="List every file.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List cached files by kind, with count and size."""
    found = _chosen(folder, kind, older)
    if json:
        listed = [
            {"path": str(e.path), "kind": e.kind, "bytes": e.nbytes, "written": e.written} for e in found
        ]
        print_json({"folders": [str(f) for f in folders(folder)], "kinds": _totals(found), "files": listed})
        return
    _show(found, [str(f) for f in folders(folder)], files)


def _show(found: list[Entry], places: list[str], files: bool) -> None:
    from rich.markup import escape

    screen = console()
    screen.print(f"[bold]{escape(', '.join(places) or 'no cache folder exists')}[/]")
    for row in _totals(found):
        if row["files"]:
            screen.print(f"{row['kind']:<8} {row['files']:>6} files {_size(row['bytes']):>10}  {row['what']}")
    screen.print(f"{'total':<8} {len(found):>6} files {_size(sum(e.nbytes for e in found)):>10}")
    for entry in found if files else ():
        screen.print(f"{entry.kind:<8} {_size(entry.nbytes):>10}  {escape(str(entry.path))}")


def _size(nbytes: int) -> str:
    """
    >>> _size(1536), _size(12)
    ('1.5 KiB', '12 B')
    """
    if nbytes < 1024:
        return f"{nbytes} B"
    number = float(nbytes)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        number /= 1024
        if number < 1024 or unit == "TiB":
            break
    return f"{number:.1f} {unit}"


@app.command()
def clear(
    folder: _Folder = None,
    kind: _Kind = None,
    older: _Days = 0,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON; needs --yes.")] = False,
) -> None:
    """Remove cached files; the next run compiles or measures again."""
    found = _chosen(folder, kind, older)
    total = sum(entry.nbytes for entry in found)
    if json and not yes:
        raise Misuse("--json does not ask", "add --yes")
    if found and not yes:
        typer.confirm(f"Remove {len(found)} files ({_size(total)})?", abort=True)
    for entry in found:
        entry.path.unlink(missing_ok=True)
    if json:
        print_json({"removed": [str(entry.path) for entry in found], "bytes": total})
    else:
        console().print(f"removed {len(found)} files, {_size(total)}")
