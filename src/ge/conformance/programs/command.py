"""The command `python -m ge.conformance programs`."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ge.conformance.programs import DOORS
from ge.conformance.programs.hunt import FAILURES, RECORD, Findings, hunt, shrunk

__all__ = ["programs"]


def programs(
    door: Annotated[str, typer.Option(help=f"front door: {', '.join(DOORS)}")],
    seconds: Annotated[float, typer.Option(help="stop making programs after this time")] = 60.0,
    count: Annotated[int, typer.Option(help="number of programs; as many as the time allows by default")] = 0,
    seed: Annotated[int, typer.Option(help="the same seed makes the same programs")] = 0,
    jobs: Annotated[int, typer.Option(help="worker processes")] = 1,
    short: Annotated[bool, typer.Option(help="programs of two or three statements")] = False,
    shrinking: Annotated[float, typer.Option(help="seconds for shrinking what fails")] = math.inf,
    again: Annotated[
        Path | None, typer.Option(help=f"shrink the failures in this {RECORD} instead of making programs")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder for failing programs, a test file each")] = Path(
        "conformance_failures"
    ),
) -> None:
    """Compare random programs in every mode of a front door with its framework."""
    if door not in DOORS:
        raise typer.BadParameter(f"one of {', '.join(DOORS)}", param_hint="--door")
    # For the workers: two devices; internal errors must not fall back to the host.
    os.environ.setdefault("NPU_DEVICE_COUNT", "2")
    os.environ.setdefault("NPU_INTERNAL_ERRORS", "raise")
    if again is not None:
        failed = [json.loads(line) for line in again.read_text().splitlines()]
        found = Findings(len(failed), statuses=Counter(result["status"] for _, result in failed))
        found.failures = shrunk(door, failed, out, len(failed), shrinking, short)
        _report(found)
        return
    console = Console(stderr=True, highlight=False)
    with console.status("starting") as status:

        def progress(found: Findings) -> None:
            failed = sum(found.statuses[s] for s in FAILURES)
            status.update(f"{found.programs} programs, {found.runs} runs, {failed} failures")

        found = hunt(
            door, seed, count, math.inf if count else seconds, jobs, out, progress, 25, shrinking, short
        )
    _report(found)
    raise typer.Exit(1 if any(found.statuses[s] for s in FAILURES) else 0)


def _report(found: Findings) -> None:
    console = Console(highlight=False)
    statuses = ", ".join(f"{n} {s}" for s, n in found.statuses.most_common())
    console.print(f"{found.programs} programs, {found.runs} runs: {statuses}")
    console.print(
        f"{found.judged} of {found.elements} elements judged; the framework does not settle the others"
    )
    covered = ", ".join(f"{name} {n}" for name, n in found.operators.most_common())
    console.print(f"{len(found.operators)} operators: {covered}")
    for failure in found.failures:
        console.print(
            f"[bold]{failure.verdict.status}[/] ({failure.verdict.mode}, seed {failure.seed}) {failure.path}"
        )
        console.print(f"  {failure.verdict.reason}", markup=False)
