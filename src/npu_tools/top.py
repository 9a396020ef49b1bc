"""`tf-adapter top`: the processes that use NPUs, live."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.text import Text

from npu_tools.outcome import console, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from npu_tools.counters import Process, Rates

    _Look = Callable[[Sequence[Process]], tuple[list[Process], list[Rates]]]

__all__ = ["app"]

app = typer.Typer()
_FULL = 0.9  # share of the memory limit
_NAME = 32  # columns of the last compile
_WIDE = 120  # columns of a terminal that shows everything


@app.command()
def top(
    interval: Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once (over one interval) and end.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a look.")] = False,
) -> None:
    """Show the processes that use NPUs: steps per second, device memory, host calls, compiles.

    Processes publish these counters themselves, unless NPU_TOP=0 is set. Press Ctrl-C to quit.
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
        screen = console()
        screen.print(_table(found, screen.width))


def _stream(seen: list[Process], interval: float, look: _Look) -> None:
    while True:
        time.sleep(interval)
        seen, found = look(seen)
        _print(found, json=True)


def _live(seen: list[Process], interval: float, look: _Look) -> None:
    from rich.live import Live

    screen = console()
    with Live(_table([], screen.width), console=screen, auto_refresh=False, screen=False) as view:
        while True:
            time.sleep(interval)
            seen, found = look(seen)
            view.update(_table(found, screen.width), refresh=True)


def _table(found: list[Rates], width: int) -> Table:
    """One row per process; narrow terminals show the most important columns."""
    from rich.table import Table

    rows = [_cells(rate) for rate in found]
    heads = [head for head, wide in _COLUMNS.items() if width >= _WIDE or not wide]
    title = None if found else "no process uses an NPU"
    table = Table(box=None, title=title, title_style="dim", padding=(0, 1, 0, 0))
    needed = {head: max([len(head), *(len(Text.from_markup(row[head])) for row in rows)]) for head in heads}
    if "last compile" in heads:
        needed["last compile"] = min(needed["last compile"], _NAME)
    others = sum(needed[head] + 1 for head in heads if head != "command")
    needed["command"] = max(len("command"), width - others - 1)
    for head in heads:
        text = head in ("last compile", "command")
        table.add_column(head, justify="left" if text else "right", no_wrap=True, width=needed[head])
    for row in rows:
        table.add_row(*(row[head] for head in heads))
    return table


# Columns; True: only on wide terminals.
_COLUMNS = {
    "PID": False, "steps/s": False, "busy": False, "memory": False, "peak": True, "host/s": False,
    "host calls": True, "compiles": False, "last compile": True, "command": False,
}  # fmt: skip


def _cells(rate: Rates) -> dict[str, str]:
    share = rate.memory / rate.limit if rate.limit else 0.0
    last = f"{escape(rate.last_compile)} ({rate.compile_seconds:.1f} s in all)" if rate.compiles else ""
    return {
        "PID": str(rate.pid),
        "steps/s": f"[bold]{rate.steps_per_second:.1f}[/]",
        "busy": f"{rate.busy:.0%}",
        "memory": f"[{'red' if share > _FULL else 'green'}]{rate.memory >> 20} MiB[/]",
        "peak": f"{rate.peak >> 20} MiB",
        "host/s": f"[{'yellow' if rate.host_calls_per_second > 0 else 'dim'}]{rate.host_calls_per_second:.0f}[/]",
        "host calls": str(rate.host_calls),
        "compiles": str(rate.compiles),
        "last compile": last,
        "command": escape(rate.command),
    }
