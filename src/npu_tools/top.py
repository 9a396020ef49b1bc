"""`tf-adapter top`: the processes that use NPUs, live."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from npu_tools.outcome import console, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from npu_tools.counters import Process, Rates

    _Look = Callable[[Sequence[Process]], tuple[list[Process], list[Rates]]]

__all__ = ["app"]

app = typer.Typer()
_FULL = 0.9  # share of the memory limit
_HEADS = (
    "PID",
    "steps/s",
    "busy",
    "memory",
    "peak",
    "host/s",
    "host calls",
    "compiles",
    "last compile",
    "command",
)


@app.command()
def top(
    interval: Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once (over one interval) and end.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a look.")] = False,
) -> None:
    """Show the processes that use NPUs: steps a second, device memory, calls on the host, compiles.

    Processes publish these counters themselves; NPU_TOP=0 keeps one from doing so. Ctrl-C ends it.
    """
    from npu_runtime.activity import folder
    from npu_tools.counters import rates, read_all

    def look(before: Sequence[Process]) -> tuple[list[Process], list[Rates]]:
        known = {process.pid: process for process in before}
        now = read_all(folder())
        return now, [rates(known.get(process.pid), process) for process in now]

    seen, _ = look(())
    if once:
        time.sleep(interval)
        _, found = look(seen)
        _print(found, json)
        return
    if json:
        _stream(seen, interval, look)
    else:
        _live(seen, interval, look)


def _print(found: list[Rates], json: bool) -> None:
    if json:
        print_json({"processes": [rate.data() for rate in found]})
    else:
        console().print(_table(found))


def _stream(seen: list[Process], interval: float, look: _Look) -> None:
    while True:
        time.sleep(interval)
        seen, found = look(seen)
        _print(found, json=True)


def _live(seen: list[Process], interval: float, look: _Look) -> None:
    from rich.live import Live

    with Live(_table([]), console=console(), auto_refresh=False, screen=False) as view:
        while True:
            time.sleep(interval)
            seen, found = look(seen)
            view.update(_table(found), refresh=True)


def _table(found: list[Rates]) -> Table:
    from rich.table import Table

    table = Table(box=None, title=None if found else "no process uses an NPU", title_style="dim")
    for head in _HEADS:
        text = head in _HEADS[-2:]
        table.add_column(head, justify="left" if text else "right", no_wrap=True, min_width=len(head))
    for rate in found:
        share = rate.memory / rate.limit if rate.limit else 0.0
        colour = "red" if share > _FULL else "green"
        last = f"{escape(rate.last_compile)} ({rate.compile_seconds:.1f} s in all)" if rate.compiles else ""
        table.add_row(
            str(rate.pid),
            f"[bold]{rate.steps_per_second:.1f}[/]",
            f"{rate.busy:.0%}",
            f"[{colour}]{rate.memory >> 20} MiB[/]",
            f"{rate.peak >> 20} MiB",
            f"[{'yellow' if rate.host_calls_per_second > 0 else 'dim'}]{rate.host_calls_per_second:.0f}[/]",
            str(rate.host_calls),
            str(rate.compiles),
            last,
            escape(rate.command),
        )
    return table
