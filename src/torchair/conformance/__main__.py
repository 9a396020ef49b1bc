"""`python -m torchair.conformance`: how much of ATen runs on the NPU, and whether it is right; `hub`: of networks."""

from __future__ import annotations

import collections
import json
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from torchair.conformance.samples import DTYPES, Outcome, name_of, operators, run_operator

_CONSOLE = Console(width=160)


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help="operators of the database; all when none is named")
    ] = None,
    dtypes: Annotated[str, typer.Option(help="element types, separated by commas")] = ",".join(DTYPES),
    samples: Annotated[int, typer.Option(help="samples of each operator and type")] = 4,
    gradients: Annotated[bool, typer.Option(help="check gradients as well (float32)")] = True,
    dynamo: Annotated[
        bool, typer.Option(help="through torch.compile as a whole, not only AOT Autograd")
    ] = False,
    eager: Annotated[bool, typer.Option(help="on tensors of the npu device, not compiled")] = False,
    strided: Annotated[bool, typer.Option(help="operands with gaps in memory and axes in reverse")] = False,
    every: Annotated[int, typer.Option(help="only every n-th operator")] = 1,
    start: Annotated[int, typer.Option(help="the first operator")] = 0,
    report: Annotated[
        Path | None,
        typer.Option(
            help="write all outcomes to this file, one in JSON a line; a later run goes on where it ends"
        ),
    ] = None,
    reasons: Annotated[bool, typer.Option(help="list what runs on ATen, and why")] = False,
) -> None:
    """Run PyTorch's operator samples through the compiler and compare them with eager mode."""
    warnings.simplefilter("ignore")
    chosen = [op for op in operators() if not names or op.name in names][start::every]
    outcomes = _kept(report)
    known = {(o.name, o.dtype) for o in outcomes}
    for op in track(chosen, console=_CONSOLE, description="operators"):
        for dtype in dtypes.split(","):
            if (name_of(op), dtype) in known:
                continue
            outcome = run_operator(op, dtype, samples, gradients, dynamo, eager, strided)
            outcomes.append(outcome)
            _keep(report, outcome)
            for line in outcome.wrong:
                print(f"{outcome.name} {dtype} {line}", flush=True)
    print(summary(outcomes))
    if dynamo:
        print(dynamo_summary(outcomes))
    if reasons:
        counts = collections.Counter((k, v) for o in outcomes for k, v in o.refusals.items())
        for (name, why), count in counts.most_common():
            print(f"  {name} x{count}: {why}")
    if any(o.wrong for o in outcomes):
        raise typer.Exit(1)


def _kept(report: Path | None) -> list[Outcome]:
    """What an earlier run has found."""
    lines = report.read_text().splitlines() if report is not None and report.exists() else []
    return [
        Outcome(**{**(found := json.loads(line)), "operators": set(found["operators"])}) for line in lines
    ]


def _keep(report: Path | None, outcome: Outcome) -> None:
    if report is not None:
        with report.open("a") as file:
            print(json.dumps({**vars(outcome), "operators": sorted(outcome.operators)}), file=file)


def dynamo_summary(outcomes: list[Outcome]) -> str:
    """What Dynamo made of the samples."""
    total = sum(o.breaks for o in outcomes)
    lines = [f"{o.name} {o.dtype} {line}" for o in outcomes for line in o.theirs]
    return "\n".join(
        [
            f"Dynamo: {total} graph breaks, {sum(o.ungraphed for o in outcomes)} samples without any graph, "
            f"{len(lines)} that PyTorch's own backend refuses or answers as ours does",
            *(f"  {line}" for line in lines),
        ]
    )


def summary(outcomes: list[Outcome]) -> str:
    """The figures of a run."""
    ran = [o for o in outcomes if o.samples]
    by_name: dict[str, list[Outcome]] = {}
    for outcome in ran:
        by_name.setdefault(outcome.name, []).append(outcome)
    whole = sum(all(o.native == o.samples for o in found) for found in by_name.values())
    partly = sum(any(o.native for o in found) for found in by_name.values())
    calls = {name.removeprefix("aten.").partition(".")[0] for o in ran for name in o.operators}
    return "\n".join(
        [
            f"operators of the database: {len(by_name)} ran, {whole} entirely on the NPU, {partly} in some samples",
            f"samples: {sum(o.samples for o in ran)}, {sum(o.native for o in ran)} entirely on the NPU, "
            f"{sum(o.skipped for o in outcomes)} that eager mode or tracing refuses",
            f"ATen operators mapped and run: {len(calls)}",
            f"wrong: {sum(len(o.wrong) for o in outcomes)}",
        ]
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["hub"]:
        from torchair.conformance.hub import hub

        del sys.argv[1]
        typer.run(hub)
    else:
        typer.run(main)
