"""`tf-adapter profile`: profiles a script down to single kernels."""

from __future__ import annotations

import importlib.util
import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from npu_tools.outcome import Failure, console, print_json

if TYPE_CHECKING:
    from npu_tools.profile_data import Profile

__all__ = ["app"]

app = typer.Typer()
_SHOWN = 15


@app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def profile(
    script: Annotated[Path, typer.Argument(help="A Python script.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder of the results.")] = Path(
        "tf-adapter-profile"
    ),
    tensorboard: Annotated[
        Path | None,
        typer.Option(help="A log folder for TensorBoard: its profile and graph plug-ins show the run."),
    ] = None,
    framework: Annotated[
        str, typer.Option(help="tensorflow, tensorflow1 or torch; by default the script's imports tell.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Profile a script: a timeline, times of operators and kernels, a roofline.

    Writes trace.json (for https://ui.perfetto.dev), profile.html and profile.json. If the script fails, its exit
    status is returned.
    """
    from npu_tools.profile_data import Profile, trace_events
    from npu_tools.profile_page import page
    from npu_tools.scripts import run_watched

    outcome = run_watched(script, arguments or [], "profile", framework, quiet=json)
    if outcome.result is None:
        raise Failure(f"{script} ended before anything could be recorded (status {outcome.status})")
    recorded = json_module.loads(outcome.result)
    found = Profile.of(recorded)
    trace = json_module.dumps(
        {"traceEvents": trace_events(recorded), "displayTimeUnit": "ns"}, allow_nan=False
    )
    output.mkdir(parents=True, exist_ok=True)
    (output / "trace.json").write_text(trace)
    (output / "profile.html").write_text(page(str(script), found, recorded))
    (output / "profile.json").write_text(json_module.dumps(found.data(), indent=1, allow_nan=False))
    if tensorboard is not None:
        _for_tensorboard(tensorboard, recorded, found)
    _report(found, output, outcome.status, json)


def _for_tensorboard(folder: Path, recorded: dict[str, Any], found: Profile) -> None:
    from npu_tools.tensorboard import write

    write(folder, recorded, found)
    missing = [
        name
        for name, modules in (
            ("tensorboard", ("tensorboard",)),
            ("tensorboard-plugin-profile", ("xprof", "tensorboard_plugin_profile")),
        )
        if not any(importlib.util.find_spec(module) for module in modules)
    ]
    hint = f" after 'pip install {' '.join(missing)}'" if missing else ""
    console(stderr=True).print(f"'tensorboard --logdir {escape(str(folder))}' shows profile and graph{hint}")


def _report(found: Profile, output: Path, status: int, json: bool) -> None:
    if json:
        files: dict[str, Any] = {"output": str(output), "status": status}
        print_json(found.data() | files)
    else:
        _show(found, output)
    if status:
        raise typer.Exit(status)


def _show(found: Profile, output: Path) -> None:
    from rich.table import Table

    screen = console()
    screen.print(
        f"[bold]{found.wall:.2f} s[/] in all, [green]{found.busy:.2f} s on the NPU[/], "
        f"[yellow]{found.host:.2f} s in calls on the host[/]"
    )
    table = Table(box=None, padding=(0, 1, 0, 0))
    for head in ("time", "share", "calls", "GFLOP/s", "GB/s", "of roof"):
        table.add_column(head, justify="right", no_wrap=True, width=10 if head == "time" else 7)
    for head in ("kernel", "implementation"):
        table.add_column(head, no_wrap=True, width=max(len(head), (screen.width - 6 * 8 - 6) // 2))
    total = sum(kernel.seconds for kernel in found.kernels) or 1.0
    for kernel in found.kernels[:_SHOWN]:
        table.add_row(
            f"{kernel.seconds * 1e3:.2f} ms",
            f"{kernel.seconds / total:.0%}",
            str(kernel.calls),
            f"{kernel.flops_rate / 1e9:.1f}",
            f"{kernel.bytes_rate / 1e9:.1f}",
            f"{found.roof(kernel):.0%}",
            escape(kernel.name),
            escape(kernel.runs_as),
        )
    screen.print(table)
    if not found.kernels:
        screen.print("[yellow]nothing ran on the NPU[/]; 'tf-adapter explain' says why")
    screen.print(f"{output / 'profile.html'}, {output / 'trace.json'} (https://ui.perfetto.dev)")
