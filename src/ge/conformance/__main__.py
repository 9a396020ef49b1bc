"""The command line `python -m ge.conformance`."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ge.conformance.cases import KINDS, Case, collect
from ge.conformance.detectors import detectors
from ge.conformance.exporters import exporters
from ge.conformance.ort import ort
from ge.conformance.pool import run_cases
from ge.conformance.programs.command import programs
from ge.conformance.sklearn import sklearn
from ge.conformance.suites.command import suites

STATUSES = ("pass", "unsupported", "error", "wrong", "crash")

app = typer.Typer(add_completion=False, help="Run other projects' own tests against the Graph Engine.")


@app.callback()
def _group() -> None:
    """One sub-command per suite. Disables the disk cache: each of thousands of models is compiled once."""
    os.environ.setdefault("NPU_CACHE_DIR", "off")


app.command()(suites)
app.command()(programs)
app.command()(detectors)
app.command()(exporters)
app.command()(ort)
app.command()(sklearn)


@app.command()
def onnx(
    filter_: Annotated[
        str, typer.Option("--filter", help="run only cases whose name matches this expression")
    ] = "",
    kinds: Annotated[str, typer.Option(help=f"comma-separated kinds of {', '.join(KINDS)}, or all")] = "all",
    interpret: Annotated[
        bool, typer.Option(help="run with the NumPy interpreter instead of compiling")
    ] = False,
    strict: Annotated[
        bool,
        typer.Option(
            help="the suite's tolerances alone, without a unit in the last place of the largest element"
        ),
    ] = False,
    jobs: Annotated[int, typer.Option(help="worker processes")] = 1,
    seconds: Annotated[float, typer.Option(help="time limit a case")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
    show: Annotated[int, typer.Option(help="how many failures to print")] = 40,
) -> None:
    """Run the backend tests of the ONNX project: parse, compile, run, compare."""
    chosen = KINDS if kinds == "all" else tuple(kinds.split(","))
    cases = [c for c in collect(chosen) if re.search(filter_, c.name)]
    results: list[tuple[Case, dict[str, Any]]] = []
    console = Console(stderr=True)
    settings = {"kinds": chosen, "interpret": interpret, "strict": strict}
    with Progress(console=console, disable=as_json) as progress:
        bar = progress.add_task("cases", total=len(cases))

        def done(case: Case, result: dict[str, Any]) -> None:
            results.append((case, result))
            progress.advance(bar)

        run_cases(cases, settings, jobs, seconds, done)
    if as_json:
        print(json.dumps(_as_json(results), indent=1))
    else:
        _report(results, show)
    bad = sum(r["status"] in ("wrong", "crash") for _, r in results)
    raise typer.Exit(1 if bad else 0)


def _as_json(results: list[tuple[Case, dict[str, Any]]]) -> dict[str, Any]:
    return {
        "summary": {k: dict(v) for k, v in _counts(results).items()},
        "cases": [{"kind": c.kind, "name": c.name, "numeric": c.numeric, **r} for c, r in results],
    }


def _counts(results: list[tuple[Case, dict[str, Any]]]) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for case, result in results:
        label = f"{case.kind}, numbers and bools" if case.numeric else f"{case.kind}, other types"
        counts.setdefault(label, Counter())[result["status"]] += 1
    return counts


def _report(results: list[tuple[Case, dict[str, Any]]], show: int) -> None:
    console = Console()
    table = Table("cases", *STATUSES, "passed")
    for label, counts in _counts(results).items():
        total = sum(counts.values())
        row = [str(counts[s]) for s in STATUSES]
        table.add_row(label, *row, f"{100 * counts['pass'] / total:.1f} % of {total}")
    console.print(table)
    reasons: dict[tuple[str, str], list[str]] = {}
    for case, result in results:
        for item in result.get("items", []):
            reasons.setdefault((item["operator"], item["reason"]), []).append(case.name)
    if reasons:
        listing = Table("unsupported", "cases", "reason", "for example")
        for (operator, reason), names in sorted(reasons.items(), key=lambda e: -len(e[1])):
            listing.add_row(operator, str(len(names)), reason, names[0])
        console.print(listing)
    failures = [(c, r) for c, r in results if r["status"] in ("error", "wrong", "crash")]
    for case, result in failures[:show]:
        console.print(f"[bold]{result['status']}[/] {case.name}: {result['reason']}", highlight=False)
    if len(failures) > show:
        console.print(f"… and {len(failures) - show} more")


if __name__ == "__main__":
    app()
