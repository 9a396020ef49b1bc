"""Inference speed against ONNX Runtime, OpenVINO, TensorFlow, TF-XLA and torch.compile.

Each row (model, batch, precision) runs in a process of its own with all contenders interleaved on two
threads (`--threads 1`: the processor's time of one), every answer checked. A ratio above 1 means ours is faster.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import instruction_sets, kept
from benchmarks.contenders import CONTENDERS, LABELS, OURS, add_threads_option, rows_take
from benchmarks.measure import console, geometric_mean, milliseconds, new_table, ratio
from benchmarks.row import TOLERANCE

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("resnet50", "mobilenetv2", "efficientnetb0", "bert", "vit", "lstm", "dlrm")
PEERS = ("onnxruntime", "openvino", "tensorflow", "xla", "torch")
ROW_LIMIT_S = 1200


@dataclass
class Row:
    """What was measured of one case."""

    model: str
    batch: int
    precision: str
    medians: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    not_applicable: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.model} b{self.batch} {self.precision}"

    def ratio_to(self, peer: str) -> float | None:
        """How many times faster ours is; None when either has no time."""
        if OURS not in self.medians or peer not in self.medians:
            return None
        return self.medians[peer] / self.medians[OURS]

    def best_peer(self) -> str | None:
        """The fastest peer whose answer is right."""
        limit = TOLERANCE[self.precision]
        right = [p for p in self.medians if p != OURS and self.errors[p] <= limit]
        return min(right, key=self.medians.__getitem__, default=None)

    def ratio_to_best(self) -> float | None:
        best = self.best_peer()
        return None if best is None else self.ratio_to(best)


def measure(row: Row, contenders: list[str], arguments: argparse.Namespace) -> None:
    """Fill a row; a contender that takes the process down is recorded and the rest measured again."""
    remaining = list(contenders)
    while remaining:
        culprit = _attempt(row, remaining, arguments)
        if culprit is None:
            return
        remaining.remove(culprit)


def _attempt(row: Row, contenders: list[str], arguments: argparse.Namespace) -> str | None:
    command = [sys.executable, "-m", "benchmarks.row", row.model, str(row.batch), row.precision, *contenders]
    command += ["--rounds", str(arguments.rounds)] + (["--small"] if arguments.quick else [])
    if arguments.profile:
        arguments.profile.mkdir(parents=True, exist_ok=True)
        command += ["--profile", str((arguments.profile / f"{row.title.replace(' ', '-')}.json").resolve())]
    building, done = "", False
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
        limit = threading.Timer(ROW_LIMIT_S, process.kill)
        limit.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                building, done = _record(row, json.loads(line), building, done)
            status = process.wait()
        finally:
            limit.cancel()
            process.kill()
        if done:
            return None
        log.seek(0)
        tail = log.read().strip().splitlines()[-1:] or [""]
    culprit = building or OURS
    row.failures[culprit] = f"process ended with status {status}: {tail[0][:200]}"
    return culprit


def _record(row: Row, event: dict, building: str, done: bool) -> tuple[str, bool]:
    match event["event"]:
        case "building":
            building = event["name"]
        case "ready":
            row.errors[event["name"]] = event["error"]
            if event["error"] > TOLERANCE[row.precision]:
                limit = TOLERANCE[row.precision]
                row.failures[event["name"]] = f"wrong answer: error {event['error']:.1e} above {limit:.0e}"
        case "failed":
            target = row.failures if event["applicable"] else row.not_applicable
            target[event["name"]] = event["reason"]
        case "done":
            row.medians, done = event["medians"], True
    return building, done


def cases(arguments: argparse.Namespace) -> Iterator[Row]:
    """The rows asked for, in order; the int8 row belongs to ResNet50 alone."""
    for model, precision, batch in itertools.product(
        arguments.models, arguments.precisions, arguments.batches
    ):
        if precision != "int8" or model == "resnet50":
            yield Row(model, batch, precision)


def report(rows: list[Row], peers: list[str], isa: str | None, threads: int) -> None:
    """The table, what failed and why, and the geometric means."""
    names = [OURS, *peers]
    title = (
        f"Inference, milliseconds (median), {threads} threads, "
        f"{platform.processor() or platform.machine()}{f', capped to {isa}' if isa else ''}"
    )
    table = new_table(title, ["case", *(LABELS[n] for n in names), "vs best", "vs tf.function", "error"])
    for row in rows:
        cells = [_cell(row, name) for name in names]
        error = f"{row.errors[OURS]:.1e}" if OURS in row.errors else "–"
        table.add_row(row.title, *cells, ratio(row.ratio_to_best()), ratio(row.ratio_to("tensorflow")), error)
    console.print(table)
    limits = ", ".join(f"{name} {limit:.0e}" for name, limit in TOLERANCE.items())
    console.print(
        f"error: largest difference from the reference relative to its largest value; limits {limits}"
    )
    _reasons(rows)
    _summary(rows)


def _reasons(rows: list[Row]) -> None:
    """Who failed or does not apply, and why: one line a reason."""
    where: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for name, reason in {**row.failures, **row.not_applicable}.items():
            where.setdefault((name, reason), []).append(row.title)
    for (name, reason), titles in where.items():
        listing = ", ".join(titles[:3]) + (f" and {len(titles) - 3} more" if len(titles) > 3 else "")
        console.print(f"  {LABELS[name]} ({listing}): {reason}", markup=False)


def _cell(row: Row, name: str) -> str:
    if name in row.not_applicable:
        return "n/a"
    if name not in row.medians:
        return "[red]failed[/]"
    text = milliseconds(row.medians[name])
    if name in row.failures:
        return f"[red]{text} wrong[/]"
    return f"[bold]{text}[/]" if name == row.best_peer() else text


def _summary(rows: list[Row]) -> None:
    for label, chosen in (
        ("fp32", [r for r in rows if r.precision == "fp32"]),
        ("bf16", [r for r in rows if r.precision == "bf16"]),
        ("all", [r for r in rows if r.precision != "int8"]),
    ):
        best = [x for r in chosen if (x := r.ratio_to_best()) is not None]
        tensorflow = [x for r in chosen if (x := r.ratio_to("tensorflow")) is not None]
        if best:
            console.print(
                f"geometric mean, {label}: {ratio(geometric_mean(best))} the best peer "
                f"(worst row {ratio(min(best))}), {ratio(geometric_mean(tensorflow))} tf.function"
            )


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS), metavar="MODEL")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32], metavar="N")
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16", "int8"], choices=list(TOLERANCE))
    parser.add_argument(
        "--peers", nargs="*", default=list(PEERS), choices=[c for c in CONTENDERS if c != OURS]
    )
    instruction_sets.add_option(parser)
    add_threads_option(parser)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--json", type=Path, help="keep the rows there; a later run goes on with those missing"
    )
    parser.add_argument("--again", action="store_true", help="measure rows that the --json file has, too")
    parser.add_argument(
        "--profile", type=Path, metavar="FOLDER", help="write a trace of our tasks for each row"
    )
    parser.add_argument("--quick", action="store_true", help="small models, batch 2, three rounds")
    arguments = parser.parse_args()
    arguments.peers = instruction_sets.limit(arguments.isa, arguments.peers)
    rows_take(arguments.threads)
    if arguments.quick:
        arguments.batches, arguments.rounds = [2], min(arguments.rounds, 3)
    return arguments


def main() -> int:
    """Measure and report; the exit status says whether ours ran everywhere with right answers."""
    arguments = parse_arguments()
    known = {title: Row(**fields) for title, fields in kept.read(arguments.json).items()}
    rows = list(cases(arguments))
    for number, row in enumerate(rows, 1):
        console.print(f"[dim]{number}/{len(rows)} {row.title}[/]", end=" ")
        if row.title in known and not arguments.again:
            rows[number - 1] = row = known[row.title]
        else:
            measure(row, [OURS, *arguments.peers], arguments)
            known[row.title] = row
            kept.write(arguments.json, {title: asdict(row) for title, row in known.items()})
        console.print(f"[dim]{' '.join(f'{n}={milliseconds(s)}' for n, s in row.medians.items())}[/]")
    report(rows, arguments.peers, arguments.isa, arguments.threads)
    return int(any(OURS in row.failures for row in rows))


if __name__ == "__main__":
    sys.exit(main())
