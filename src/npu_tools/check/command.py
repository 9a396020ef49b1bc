"""`tf-adapter check`: checks a script or model file against the migration guide."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from npu_tools.outcome import Exit, Misuse, console

__all__ = ["app"]

app = typer.Typer()


def _show_schema(wanted: bool) -> None:
    if wanted:
        print(Path(__file__).with_name("report.schema.json").read_text(), end="")
        raise typer.Exit


@app.command(context_settings={"allow_interspersed_args": False})
def check(
    target: Annotated[
        Path, typer.Argument(help="A script, an .onnx, .pb or .om file, or a SavedModel folder.")
    ],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The report (.html; .json beside it). Default: a temporary folder."
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each run.")] = 20,
    seconds: Annotated[float, typer.Option(min=1, help="Most seconds of each run.")] = 120.0,
    seed: Annotated[int, typer.Option(help="Seed of random numbers, in both runs.")] = 0,
    layers: Annotated[
        bool, typer.Option("--layers", help="Compare every layer and gradient with float64.")
    ] = False,
    modes: Annotated[
        str,
        typer.Option("--precision-modes", help="Precision modes for --layers: names with commas, or all."),
    ] = "must_keep_origin_dtype,allow_mix_precision_bf16,force_fp16",
    mixlist: Annotated[
        Path | None, typer.Option(help="Search which operators to keep in float32, and write them there.")
    ] = None,
    keep: Annotated[
        int, typer.Option(min=0, help="Most operators of --mixlist, those that cost the most; 0: all needed.")
    ] = 0,
    dump: Annotated[
        Path | None, typer.Option(help="Write the values of all layers (--layers) there, for other tools.")
    ] = None,
    npus: Annotated[str, typer.Option(help="Numbers of NPUs to measure, as in 1,2,4.")] = "",
    batches: Annotated[
        str, typer.Option(help="Batch sizes to measure. Default: 1,8,32 of files, around a script's own.")
    ] = "",
    shape: Annotated[
        str, typer.Option(help="Shapes of a model file's inputs, as in 'x:1,3,224,224;y:1,8'.")
    ] = "",
    latency: Annotated[float | None, typer.Option(help="Milliseconds that a step may take.")] = None,
    error: Annotated[float, typer.Option(help="Relative error that results may have.")] = 0.01,
    framework: Annotated[
        str, typer.Option(help="tensorflow, tensorflow1 or torch; found from the script.")
    ] = "",
    compare: Annotated[Path | None, typer.Option(help="JSON of an earlier check: show what changed.")] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            help="Exit with 1 if this holds: error, warning, checklist, a finding, or a figure as in 'speedup<1'."
        ),
    ] = None,
    in_place: Annotated[
        bool,
        typer.Option("--in-place", help="Run the script in its folder, where it may write, not in a copy."),
    ] = False,
    schema: Annotated[
        bool,
        typer.Option(
            "--schema", callback=_show_schema, is_eager=True, help="Print the JSON schema of reports."
        ),
    ] = False,
) -> None:
    """Check a script or model file against the migration guide and write a report.

    Runs it without and with the NPU and compares both.

    Options go before the script; arguments after it are passed to the script. The script runs unmodified, for a few
    steps, in a copy of its folder. Exit status: 0 done, 1 a rule of --fail-on holds, 3 the check itself failed,
    130 interrupted (the report has everything measured until then).
    """
    from npu_tools.check import session
    from npu_tools.check.rules import parse_rules
    from npu_tools.check.subject import subject_of

    subject = subject_of(target, tuple(arguments or ()), framework)
    if arguments and not subject.is_script:
        raise Misuse(
            f"a model file takes no arguments ({' '.join(arguments)})", "options stand before the file"
        )
    limits = {"error": error} | ({} if latency is None else {"latency": latency})
    settings = session.Settings(
        steps, seconds, seed, layers or dump is not None, _modes(modes), mixlist, keep, dump,
        _numbers(npus), _numbers(batches), _shapes(shape), limits, in_place, compare, tuple(parse_rules(fail_on or [])),
    )  # fmt: skip
    page = output or Path(tempfile.mkdtemp(prefix="tf-adapter-report-")) / f"{subject.path.stem}.html"
    if page.suffix != ".html":
        raise Misuse(f"the report cannot be written as '{page.name}'", "name a file that ends with .html")
    with _Progress() as progress:
        report = session.Check(subject, settings, progress.show).run()
    written = session.write(report, page)
    _print(report, written)
    if not report["complete"]:
        raise typer.Exit(Exit.INTERRUPTED)
    if report["broken_rules"]:
        raise typer.Exit(Exit.FOUND)


def _modes(text: str) -> tuple[str, ...]:
    """Parse precision modes.

    >>> _modes("origin,force_fp16"), len(_modes("all"))
    (('must_keep_origin_dtype', 'force_fp16'), 6)
    """
    from ge.errors import GeError
    from ge.options.values import PrecisionMode

    if text == "all":
        return tuple(mode.value for mode in PrecisionMode)
    try:
        return tuple(dict.fromkeys(PrecisionMode.parse(name).value for name in text.split(",") if name))
    except GeError as error:
        raise Misuse(error.cause, error.remedy) from error


def _numbers(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise Misuse(f"'{text}' is not a list of whole numbers", "write 1,2,4") from error
    if any(number < 1 for number in found):
        raise Misuse(f"'{text}' has a number below 1", "write 1,2,4")
    return found


def _shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Parse shapes by input.

    >>> _shapes("x:1,3;y:2")
    {'x': (1, 3), 'y': (2,)}
    """
    found = {}
    for part in filter(None, text.split(";")):
        name, colon, sizes = part.rpartition(":")
        if not colon:
            raise Misuse(f"'{part}' is not a shape", "write x:1,3,224,224")
        found[name.strip()] = _numbers(sizes)
    return found


class _Progress:
    """Progress bars of the runs with elapsed and expected time; only on a terminal."""

    def __enter__(self) -> _Progress:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description:<30}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
        )
        screen = console(stderr=True)
        self._bars = Progress(
            *columns,
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=screen,
            disable=not screen.is_terminal,
        )
        self._known: dict[str, Any] = {}
        self._bars.start()
        return self

    def show(self, name: str, phase: str, done: int, total: int) -> None:
        """Update the bar of a run; earlier bars are complete."""
        words = {"plain": "without NPU", "npu": "on the NPU"}
        kind = f"{words.get(name, name)}: {phase.partition(' in ')[0]}"
        text = f"{words.get(name, name)}: {phase}"
        if kind not in self._known:
            self._complete()
            self._known[kind] = self._bars.add_task(text, total=total)
        self._bars.update(self._known[kind], completed=min(done, total), total=total, description=text)

    def _complete(self) -> None:
        for task in self._bars.tasks:
            self._bars.update(task.id, completed=task.total or 0)

    def __exit__(self, *_: object) -> None:
        self._complete()
        self._bars.stop()


def _print(report: dict[str, Any], written: tuple[Path, Path]) -> None:
    """Print the summary on a terminal."""
    from rich.markup import escape

    screen = console()
    marks = {"pass": "[green]✓[/]", "fail": "[red]✗[/]", "open": "[dim]–[/]"}
    for item in report["checklist"]:
        screen.print(f"{marks[item['state']]} {escape(item['item'])} [dim]({escape(item['evidence'])})[/]")
    colours = {"error": "red", "warning": "yellow", "note": "cyan"}
    for finding in report["findings"]:
        where = f" [bold]{escape(finding['location'])}[/]" if finding["location"] else ""
        screen.print(f"[{colours[finding['level']]}]{finding['level']}[/]{where} {escape(finding['title'])}")
        if finding["remedy"]:
            screen.print(f"  [dim]→ {escape(finding['remedy'])}[/]")
    _print_changes(screen, report.get("changes"))
    for rule in report["broken_rules"]:
        screen.print(f"[red]--fail-on[/] {escape(rule)}")
    if not report["complete"]:
        screen.print("[yellow]interrupted:[/] the report has everything measured until then")
    screen.print(f"report: {escape(str(written[0]))}\ndata:   {escape(str(written[1]))}")


def _print_changes(screen: Any, changed: dict[str, Any] | None) -> None:
    """Print the changes since the report of --compare."""
    from rich.markup import escape

    if changed is None:
        return
    screen.print(f"[bold]since {escape(changed['since'] or 'the older report')}:[/]")
    colours = {"better": "green", "worse": "red", "changed": "cyan"}
    for row in changed["figures"]:
        old, new = ("–" if row[key] is None else f"{row[key]:.4g}" for key in ("old", "new"))
        screen.print(f"  [{colours[row['verdict']]}]{row['verdict']}[/] {row['figure']}: {old} → {new}")
    for row in changed["checklist"]:
        screen.print(f"  checklist: {escape(row['item'])}: {row['old']} → {row['new']}")
    for key, word in (("new_findings", "new"), ("gone_findings", "gone")):
        for finding in changed[key]:
            screen.print(f"  {word}: {escape(finding['title'])}")
    if not any(changed[key] for key in ("figures", "checklist", "new_findings", "gone_findings")):
        screen.print("  nothing changed by more than 5 %")
