"""Training steps against TensorFlow, TF-XLA and torch.compile: time, peak memory, and overlap with the input pipeline.

A step is the forward pass, all gradients and an AdamW update of every variable. Each row runs in processes of its own
on two threads: for times one with all contenders interleaved, for memory one a contender. All start from the same
weights; the losses of the first steps are compared with TensorFlow's in float32. A ratio above 1 means ours is faster.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import instruction_sets, kept
from benchmarks.contenders import LABELS, OURS, add_threads_option, clock, limit_threads, rows_take
from benchmarks.measure import console, geometric_mean, interleave, milliseconds, new_table, ratio
from benchmarks.memory import reset_peak, status
from benchmarks.training_steps import CONTENDERS, Step, Subject, start

ROOT = Path(__file__).resolve().parents[1]
CASES = (("resnet50", 16), ("resnet50", 32), ("bert", 8), ("lstm", 16), ("cnn", 32))
MEMORY_CASES = (("resnet50", 16), ("bert", 8), ("lstm", 16), ("cnn", 32))
PRECISIONS = ("fp32", "bf16")
KINDS = ("step", "memory", "overlap")
# What is told of memory: all growth, the first step with its compile included; that of later steps, the anonymous part
# of it, that up to the end of the first step; and all of the process (with PyTorch, which makes the weights and the
# input of every contender).
MEMORY = {
    "whole run": ", whole run",
    "later steps": "",
    "anonymous": ", anonymous",
    "first step": ", first step",
    "process": ", process",
}
CHECKED_CALLS = 3
TOLERANCE = {"fp32": 2e-3, "bf16": 5e-2}  # of losses, relative
ROW_LIMIT_S = 1800


@dataclass
class Row:
    """What was measured of one case: seconds of a step, or bytes, by contender (of an overlap by part)."""

    kind: str
    model: str
    batch: int
    precision: str
    found: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.kind} {self.model} b{self.batch} {self.precision}"

    @property
    def right(self) -> bool:
        """Whether our losses are TensorFlow's."""
        return all(self.errors.get(n, 0.0) <= TOLERANCE[self.precision] for n in self.errors if n == OURS)

    def ratio_to_best(self) -> float | None:
        """How many times faster ours is than the fastest peer with right losses."""
        limit = TOLERANCE[self.precision]
        peers = [v for n, v in self.found.items() if n != OURS and self.errors[n] <= limit]
        return min(peers) / self.found[OURS] if peers and OURS in self.found else None


# -- in the process of a row ---------------------------------------------------------------------------------


def _losses(step: Step) -> list[float]:
    return [step() for _ in range(CHECKED_CALLS)]


def _error(found: list[float], reference: list[float]) -> float:
    return max(abs(m - t) / abs(t) for m, t in zip(found, reference, strict=True))


def measure_steps(row: Row, contenders: list[str], rounds: int, small: bool) -> None:
    """The first losses of every contender against TensorFlow's, then interleaved times."""
    start(OURS)
    subject = Subject(row.model, row.batch, row.precision, small)
    reference = _losses(CONTENDERS["tensorflow"](Subject(row.model, row.batch, "fp32", small)))
    steps: dict[str, Step] = {}
    for name in contenders:
        try:
            steps[name] = CONTENDERS[name](subject)
            row.errors[name] = _error(_losses(steps[name]), reference)
        except Exception as error:  # a peer that cannot run a case is reported, not fatal
            if name == OURS:
                raise
            steps.pop(name, None)
            row.failures[name] = f"{type(error).__name__}: {error}"[:300]
    times = interleave(steps, rounds, clock=clock())
    row.found = {name: statistics.median(taken) / subject.steps for name, taken in times.items()}


def measure_memory(row: Row, contenders: list[str], small: bool) -> None:
    """The highest memory of one contender, of its process and beyond what that held before it built the step.

    Pages of files (code of libraries, which processes share and the system may drop) only come to a process, so that
    the rest of the growth is memory of its own.
    """
    (name,) = contenders
    start(name)
    subject = Subject(row.model, row.batch, row.precision, small)
    baseline, files = status("VmRSS"), status("RssFile")
    reset_peak()
    step = CONTENDERS[name](subject)
    step()
    first = status("VmHWM")
    row.found[name + MEMORY["first step"]] = first - baseline
    reset_peak()
    for _ in range(2):
        step()
    later = status("VmHWM")
    row.found[name + MEMORY["whole run"]] = max(first, later) - baseline
    row.found[name] = later - baseline
    row.found[name + MEMORY["anonymous"]] = later - baseline - (status("RssFile") - files)
    row.found[name + MEMORY["process"]] = max(first, later)


def measure(row: Row, contenders: list[str], rounds: int, small: bool) -> None:
    """Fill a row in this process."""
    match row.kind:
        case "step":
            measure_steps(row, contenders, rounds, small)
        case "memory":
            measure_memory(row, contenders, small)
        case _:
            from benchmarks import training_input

            start(OURS)
            row.found = training_input.measure(small)


# -- the command ---------------------------------------------------------------------------------------------


def _in_process(row: Row, contenders: list[str], rounds: int, small: bool) -> Row:
    command = [sys.executable, __file__, "--row", json.dumps(asdict(row)), "--rounds", str(rounds)]
    command += ["--contenders", *contenders] + (["--quick"] if small else [])
    done = subprocess.run(command, capture_output=True, text=True, timeout=ROW_LIMIT_S, cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(f"{row.title} failed with status {done.returncode}:\n{done.stderr[-3000:]}")
    return Row(**json.loads(done.stdout.splitlines()[-1]))


def _measured(row: Row, contenders: list[str], rounds: int, small: bool) -> Row:
    if row.kind != "memory":
        return _in_process(row, contenders, rounds, small)
    for name in [n for n in contenders if n != "torch"]:
        row.found.update(
            _in_process(Row(row.kind, row.model, row.batch, row.precision), [name], 1, small).found
        )
    return row


def cases(given: argparse.Namespace) -> Iterator[Row]:
    """The rows asked for, in order."""
    chosen = given.models or [m for m, _ in CASES]
    batch = 2 if given.quick else given.batch
    for kind, known in (("step", CASES), ("memory", MEMORY_CASES)):
        for model, usual in dict.fromkeys((m, batch or b) for m, b in known if m in chosen):
            for precision in given.precisions:
                if kind in given.kinds:
                    yield Row(kind, model, usual, precision)
    if "overlap" in given.kinds:
        yield Row("overlap", "cnn", 16 if given.quick else 64, "fp32")


# -- tables --------------------------------------------------------------------------------------------------


def show(rows: list[Row], contenders: list[str]) -> None:
    """Print what was measured, by kind."""
    by_kind = {kind: [r for r in rows if r.kind == kind] for kind in KINDS}
    if by_kind["step"]:
        _show_steps(by_kind["step"], contenders)
    if by_kind["memory"]:
        _show_memory(by_kind["memory"])
    for row in by_kind["overlap"]:
        compute, alone, both = (row.found[n] for n in ("compute", "input", "together"))
        share = both / max(compute, alone)
        console.print(
            f"step of fit {milliseconds(compute)} ms, input pipeline {milliseconds(alone)} ms, "
            f"both {milliseconds(both)} ms: {share:.2f} of the longer one"
        )


def _show_steps(rows: list[Row], contenders: list[str]) -> None:
    columns = ["case", *(LABELS[n] for n in contenders), "best peer", "loss error"]
    table = new_table("Training step, ms", columns)
    for row in rows:
        cells = [milliseconds(row.found[n]) if n in row.found else "–" for n in contenders]
        table.add_row(row.title, *cells, ratio(row.ratio_to_best()), f"{row.errors.get(OURS, math.nan):.1e}")
    console.print(table)
    for precision in dict.fromkeys(r.precision for r in rows):
        found = [v for r in rows if r.precision == precision and (v := r.ratio_to_best()) is not None]
        if found:
            console.print(
                f"geometric mean over the best peer, {precision}: {ratio(geometric_mean(found))} "
                f"(worst row {ratio(min(found))})"
            )
    for row in rows:
        for name, why in row.failures.items():
            console.print(f"{row.title}: {name} did not run: {why}", style="dim", markup=False)
        for name, error in row.errors.items():
            if not error <= TOLERANCE[row.precision]:
                console.print(f"{row.title}: losses of {name} are off by {error:.1e}", style="red")


def _show_memory(rows: list[Row]) -> None:
    names = list(dict.fromkeys(n for r in rows for n in r.found if n in CONTENDERS))
    for title, suffix in MEMORY.items():
        table = new_table(f"Peak memory, {title}, MiB", ["case", *names, "of TensorFlow's"])
        for row in rows:
            found = {n: row.found[n + suffix] for n in names if n + suffix in row.found}
            cells = [f"{found[n] / 2**20:.0f}" if n in found else "–" for n in names]
            both = OURS in found and "tensorflow" in found
            table.add_row(row.title, *cells, f"{found[OURS] / found['tensorflow']:.2f}" if both else "–")
        console.print(table)


def main() -> int:
    """Measure and print; the exit status says whether our losses are right."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", choices=sorted({m for m, _ in CASES}))
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--precisions", nargs="*", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--contenders", nargs="*", choices=list(CONTENDERS), default=list(CONTENDERS))
    instruction_sets.add_option(parser)
    add_threads_option(parser)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, help="instead of the usual batches")
    parser.add_argument("--quick", action="store_true", help="small models, batch 2, three rounds")
    parser.add_argument(
        "--json", type=Path, help="keep the rows there; a later run goes on with those missing"
    )
    parser.add_argument("--again", action="store_true", help="measure rows that the --json file has, too")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.contenders = instruction_sets.limit(given.isa, given.contenders)
    rows_take(given.threads)
    limit_threads(given.threads)
    if given.row:
        row = Row(**json.loads(given.row))
        measure(row, given.contenders, given.rounds, given.quick)
        print(json.dumps(asdict(row)), flush=True)
        os._exit(0)  # skip the libraries' tear-down
    known = {title: Row(**fields) for title, fields in kept.read(given.json).items()}
    rows = list(cases(given))
    for number, row in enumerate(rows):
        if row.title not in known or given.again:
            rounds = min(given.rounds, 3) if given.quick else given.rounds
            known[row.title] = _measured(row, given.contenders, rounds, given.quick)
            kept.write(given.json, {title: asdict(row) for title, row in known.items()})
        rows[number] = known[row.title]
        console.print(f"[dim]{number + 1}/{len(rows)} {row.title}[/]")
    show(rows, given.contenders)
    return 0 if all(r.right for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
