"""Command line of the suites: run on both devices, compare, print."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ge.conformance.suites.comparison import Comparison, compare
from ge.conformance.suites.known import known_file, read_known
from ge.conformance.suites.limits import Limits, Outcome
from ge.conformance.suites.onnx_suite import run_onnx
from ge.conformance.suites.runner import run_suite
from ge.conformance.suites.suite import EVERY_FILE, SUITES, MissingSuiteError, Side, find_suite

__all__ = ["suites"]

NAMES = (*SUITES, "onnx")


def suites(
    names: Annotated[list[str], typer.Argument(help=f"suites to run: {', '.join(NAMES)}")],
    source: Annotated[
        Path | None, typer.Option(help="folder of the project's checkout that has the tests")
    ] = None,
    select: Annotated[
        str, typer.Option(help="FILE or FILE::TEST, two regular expressions: run only tests that match")
    ] = "",
    sample: Annotated[int, typer.Option(help="run one test in so many, spread over all files")] = 1,
    residue: Annotated[int, typer.Option(help="which sample: 0 to SAMPLE - 1; no two share a test")] = 0,
    seconds: Annotated[float, typer.Option(help="time limit a test")] = 120.0,
    minutes: Annotated[float, typer.Option(help="time limit a suite and device; 0 is none")] = 0.0,
    jobs: Annotated[int, typer.Option(help="processes at a time")] = 1,
    parts: Annotated[int, typer.Option(help="processes that share the tests of a file")] = 1,
    results: Annotated[Path, typer.Option(help="folder of the outcomes")] = Path("build/conformance"),
    resume: Annotated[
        bool, typer.Option(help="keep the NPU's outcomes of an earlier run too; the CPU's are always kept")
    ] = False,
    npu_first: Annotated[
        bool, typer.Option(help="run on the CPU only what did not pass on the NPU: half the time")
    ] = False,
    known: Annotated[Path | None, typer.Option(help="list of known failures, instead of our own")] = None,
    show: Annotated[int, typer.Option(help="how many failures to print")] = 40,
) -> None:
    """Run a framework's own tests on the CPU and on the NPU: tests that pass on the CPU must pass on the NPU.

    The exit status is 1 if a test passes on the CPU, fails on the NPU and is not in the list of known failures, if a
    failure has no outcome on the CPU, or if no test of any suite passes on the CPU (with --npu-first: on either).
    """
    if not 0 <= residue < sample:
        raise typer.BadParameter(f"--residue {residue} is not one of 0 to {sample - 1}, below --sample")
    limits = Limits(select, sample, residue, seconds, minutes, jobs, parts)
    console = Console(soft_wrap=True)
    unexplained = ran = 0
    for name in names:
        if name not in NAMES:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(NAMES)}")
        try:
            cpu, npu, title, groups = _outcomes(name, source, limits, results, resume, npu_first)
        except MissingSuiteError as error:
            console.print(f"[bold]{name}[/] does not run: {error}", highlight=False)
            continue
        found = compare(cpu, npu, read_known(known or known_file(name)))
        counts = found.by_group(groups)
        (results / f"{name}.json").write_text(json.dumps(found.as_json() | {"groups": counts}, indent=1))
        _print(console, title, found, show)
        if len(counts) > 1:
            _print_groups(console, counts)
        unexplained += len(found.failed) + len(found.unjudged)
        judged = (*cpu.values(), *(npu.values() if npu_first else ()))
        ran += any(outcome.status == "passed" for outcome in judged)
    raise typer.Exit(1 if unexplained or not ran else 0)


def _outcomes(
    name: str, source: Path | None, limits: Limits, results: Path, resume: bool, npu_first: bool
) -> tuple[dict[str, Outcome], dict[str, Outcome], str, str]:
    """Return the outcomes on both devices, the suite's title and the expression of its groups."""
    results.mkdir(parents=True, exist_ok=True)
    if name == "onnx":
        import onnx

        return *run_onnx(limits), f"onnx {onnx.__version__}", EVERY_FILE
    suite = find_suite(name, source)
    folder = (results / f"{name}-{suite.version}").resolve()
    if not resume:
        shutil.rmtree(folder / "npu", ignore_errors=True)
    progress = Console(stderr=True)

    def run(device: str, side: Side, among: Collection[str] | None) -> dict[str, Outcome]:
        found = run_suite(
            suite, side, limits, folder / device, lambda file: progress.print(f"{device}: {file}"), among
        )
        return limits.chosen(found)

    if npu_first:
        npu = run("npu", suite.npu, None)
        cpu = run("cpu", suite.cpu, {test for test, outcome in npu.items() if outcome.status != "passed"})
        return cpu, npu, f"{name} {suite.version}", suite.groups
    cpu = run("cpu", suite.cpu, None)
    npu = run("npu", suite.npu, {test for test, outcome in cpu.items() if outcome.status == "passed"})
    return cpu, npu, f"{name} {suite.version}", suite.groups


def _print(console: Console, title: str, found: Comparison, show: int) -> None:
    table = Table("outcome", "tests", title=title, title_justify="left")
    table.add_row("pass on both", str(len(found.passed)))
    if found.npu_only:
        table.add_row("pass on the NPU, did not run on the CPU", str(len(found.npu_only)))
    table.add_row("pass on the CPU, skipped on the NPU by the suite", str(len(found.skipped)))
    table.add_row("pass on the CPU, fail on the NPU for a known reason", str(len(found.known)))
    table.add_row("pass on the CPU, fail on the NPU", str(len(found.failed)))
    if found.unjudged:
        table.add_row("fail on the NPU, did not run on the CPU", str(len(found.unjudged)))
    table.add_row("pass on the CPU, did not run on the NPU", str(len(found.missing)))
    table.add_row("do not pass on the CPU", str(len(found.not_on_cpu)))
    console.print(table)
    for file, message in found.not_loaded.items():
        console.print(
            f"{file} does not load on the CPU: {_last_line(message)}", highlight=False, markup=False
        )
    for reason, count in found.reasons.most_common():
        console.print(f"known, {count}: {reason}", highlight=False)
    for name, reason in list(found.mended.items())[:show]:
        console.print(f"[bold]passes now[/], take it off the list: {name} ({reason})", highlight=False)
    for name, outcome in list(found.failed.items())[:show]:
        line = " ".join(outcome.message.split())[:200]
        console.print(f"{outcome.status}: {name}: {line}", highlight=False, markup=False)
    if len(found.failed) > show:
        files = Counter(name.split("::")[0] for name in found.failed)
        for file, count in files.most_common():
            console.print(f"{count} in {file}", highlight=False)


def _print_groups(console: Console, counts: Mapping[str, Mapping[str, int]]) -> None:
    columns = list(dict.fromkeys(column for row in counts.values() for column in row))
    table = Table("part", *columns)
    for group, row in counts.items():
        table.add_row(group, *(str(row[column] or "") for column in columns))
    console.print(table)


def _last_line(message: str) -> str:
    return message.strip().splitlines()[-1] if message.strip() else ""
