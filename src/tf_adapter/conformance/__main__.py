"""Command line of the sweep over TensorFlow's operators."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ge.conformance.pool import run_cases
from tf_adapter.conformance import gradients as of_gradients
from tf_adapter.conformance import registered
from tf_adapter.conformance import worker as of_operators
from tf_adapter.conformance.rows import Case

STATUSES = ("npu", "host", "none", "unlike", "refused", "absent", "wrong", "crash")
BAD = ("wrong", "crash")
Results = list[tuple[Case, dict[str, Any]]]

Filter = Annotated[str, typer.Option("--filter", help="run only cases whose name matches this expression")]
Modes = Annotated[str, typer.Option(help=f"comma-separated ways to run, of {', '.join(of_operators.MODES)}")]
Quick = Annotated[bool, typer.Option(help="one type and one shape an operator")]
Jobs = Annotated[int, typer.Option(help="worker processes")]
Seconds = Annotated[float, typer.Option(help="time limit a case")]
Least = Annotated[int, typer.Option(help="operator types that must run on the NPU, 0 for any number")]
Json = Annotated[bool, typer.Option("--json", help="print the results as JSON")]
Show = Annotated[int, typer.Option(help="how many failures to print")]
Where = Annotated[bool, typer.Option(help="list where every operator type ran")]

app = typer.Typer(add_completion=False)


@app.callback(invoke_without_command=True)
def operators(
    context: typer.Context,
    filter_: Filter = "",
    modes: Modes = "eager,function",
    quick: Quick = False,
    jobs: Jobs = 1,
    seconds: Seconds = 60.0,
    least: Least = 0,
    as_json: Json = False,
    show: Show = 40,
    where: Where = False,
) -> None:
    """Every elementwise, math, array, nn, linalg and image operator of TensorFlow over types and shapes: the NPU's
    results against the CPU's.

    Exit status: 1 for a wrong result or a crash, 2 for fewer operator types on the NPU than --least.
    """
    if context.invoked_subcommand is None:
        _sweep(of_operators, filter_, modes, quick, jobs, seconds, least, as_json, show, where)


@app.command()
def gradients(
    filter_: Filter = "",
    modes: Annotated[str, typer.Option(help="comma-separated ways to run")] = ",".join(of_gradients.MODES),
    quick: Quick = False,
    jobs: Jobs = 1,
    seconds: Seconds = 60.0,
    least: Least = 0,
    as_json: Json = False,
    show: Show = 40,
    where: Where = False,
) -> None:
    """Gradients of every differentiable operator of the sweep: the NPU's against TensorFlow's on the CPU and against
    differences of the results.

    `none` counts cases without a gradient, `unlike` gradients that are TensorFlow's but not the derivative. At the end,
    which of the gradients that TensorFlow registers were not checked, and why. Exit status as for the operators.
    """
    _sweep(of_gradients, filter_, modes, quick, jobs, seconds, least, as_json, show, where)


@app.command()
def saved_models(
    filter_: Filter = "",
) -> None:
    """SavedModels with signatures, strings, tables, ragged and sparse inputs, compiled as files."""
    from tf_adapter.conformance.saved_models import SAMPLES, compare

    outcomes = [o for name in SAMPLES if re.search(filter_, name) for o in compare(name)]
    console, table = Console(), Table("model", "signature", "status", "")
    for outcome in outcomes:
        table.add_row(outcome.model, outcome.signature, outcome.status, outcome.detail)
    console.print(table)
    console.print(f"{sum(o.status == 'pass' for o in outcomes)} of {len(outcomes)} signatures pass")
    raise typer.Exit(int(any(o.status != "pass" for o in outcomes)))


@app.command()
def examples(filter_: Filter = "") -> None:
    """Twenty families of examples: the share of their nodes on the NPU, and why the others are not."""
    from tf_adapter.conformance.examples import FAMILIES, on_host

    table = Table("family", "nodes", "on the NPU", "on the host")
    for name in FAMILIES:
        if re.search(filter_, name):
            found, host = on_host(name)
            reasons = "; ".join(f"{operator}: {reason}" for operator, reason in host)
            table.add_row(name, str(len(found.rows)), f"{found.node_share:.0%}", reasons)
    Console().print(table)


def _sweep(
    part: ModuleType,
    filter_: str,
    modes: str,
    quick: bool,
    jobs: int,
    seconds: float,
    least: int,
    as_json: bool,
    show: int,
    where: bool,
) -> None:
    """Run the cases of one part, report them, and end with the exit status."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    chosen = [
        dataclasses.replace(case, kind=mode)
        for mode in _modes(modes, part.MODES)
        for case in part.collect(quick).values()
        if re.search(filter_, case.name)
    ]
    results: Results = []
    with Progress(console=Console(stderr=True), disable=as_json) as progress:
        bar = progress.add_task("cases", total=len(chosen))

        def done(case: Case, result: dict[str, Any]) -> None:
            results.append((case, result))
            progress.advance(bar)

        run_cases(chosen, {"quick": quick}, jobs, seconds, done, part.__name__)
    placed = _placed(results)
    whole = part is of_gradients and not filter_
    missing = registered.unchecked(_gradients(results)) if whole else {}
    if as_json:
        print(json.dumps(_as_json(results, placed) | ({"unchecked": missing} if whole else {}), indent=1))
    else:
        _report(results, placed, show, where)
        if whole:
            _list_unchecked(Console(), missing)
    raise typer.Exit(_exit_status(results, placed, least))


def _modes(text: str, known: Sequence[str]) -> list[str]:
    names = [m.strip() for m in text.split(",") if m.strip()]
    unknown = [m for m in names if m not in known]
    if unknown:
        raise typer.BadParameter(f"there is no mode '{unknown[0]}': use {', '.join(known)}")
    return names


def _placed(results: Results) -> dict[str, str]:
    """Where each operator type ran: on the NPU in at least one case, else on the host; "" where it never ran."""
    found: dict[str, set[str]] = defaultdict(set)
    for case, result in results:
        if not case.operator.startswith("tf."):  # a function of several operators
            found[case.operator].add(result["status"])
    return {name: next((s for s in ("npu", "host") if s in seen), "") for name, seen in sorted(found.items())}


def _gradients(results: Results) -> set[str]:
    """The registered gradients that the cases needed and that were right."""
    return {name for _, result in results for name in result.get("gradients", ())}


def _list_unchecked(console: Console, missing: dict[str, list[str]]) -> None:
    known, left = len(registered.registered()), sum(map(len, missing.values()))
    console.print(
        f"{known - left} of the {known} gradients that TensorFlow registers were checked", highlight=False
    )
    for why, names in sorted(missing.items()):
        told = f"{why or '[bold]in no case[/]'}: {' '.join(names)}"
        console.print(f"not checked, {told}", highlight=False, soft_wrap=True)


def _exit_status(results: Results, placed: dict[str, str], least: int) -> int:
    if any(r["status"] in BAD for _, r in results):
        return 1
    return 2 if Counter(placed.values())["npu"] < least else 0


def _counts(results: Results) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for case, result in results:
        counts.setdefault(case.kind, Counter())[result["status"]] += 1
    return counts


def _as_json(results: Results, placed: dict[str, str]) -> dict[str, Any]:
    return {
        "summary": {mode: dict(c) for mode, c in _counts(results).items()},
        "operators": placed,
        "on_npu": Counter(placed.values())["npu"],
        "cases": [{"mode": c.kind, "name": c.name, "operator": c.operator, **r} for c, r in results],
    }


def _report(results: Results, placed: dict[str, str], show: int, where: bool) -> None:
    console = Console()
    table = Table("cases", *STATUSES, "total")
    for mode, counts in _counts(results).items():
        table.add_row(mode, *(str(counts[s]) for s in STATUSES), str(sum(counts.values())))
    console.print(table)
    _list_failures(console, [(c, r) for c, r in results if r["status"] in BAD], show)
    kinds = Counter(placed.values())
    if where:
        for place in ("npu", "host"):
            console.print(
                f"[bold]{place}[/]: {' '.join(n for n, p in placed.items() if p == place)}", highlight=False
            )
    console.print(
        f"{kinds['npu']} operator types ran on the NPU, {kinds['host']} on the host", highlight=False
    )


def _list_failures(console: Console, failures: Sequence[tuple[Case, dict[str, Any]]], show: int) -> None:
    for case, result in failures[:show]:
        line = f"[bold]{result['status']}[/] {case.kind} {case.name}: {result['reason']}"
        console.print(line, highlight=False, soft_wrap=True)
    if len(failures) > show:
        console.print(f"… and {len(failures) - show} more")


if __name__ == "__main__":
    app()
