"""Accuracy of compiled models against the framework's own answers: every family, file form and precision."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import kept
from benchmarks.contenders import limit_threads
from benchmarks.subjects import LIMITS, compiled_error, names, open_subject

OWN = "framework bf16"


def within(column: str, error: float | str) -> bool:
    """Whether an error is below the limit of its precision."""
    return not isinstance(error, str) and error < LIMITS[column.split()[1]]


def cell(column: str, found: dict[str, float | str]) -> str:
    """A cell of the table."""
    error = found.get(column, "")
    if isinstance(error, str):
        return "[red]failed[/]" if error else "–"
    if column == OWN:
        return f"{error:.1e}"
    return f"[{'green' if within(column, error) else 'red'}]{error:.1e}[/]"


def check(name: str, forms: list[str], precisions: list[str], small: bool) -> dict[str, float | str]:
    """In the child: errors of one subject by form and precision; a failure is its message."""
    limit_threads()
    found: dict[str, float | str] = {}
    with open_subject(name, small) as subject, tempfile.TemporaryDirectory() as folder:
        for form in forms:
            path, inputs, expected = subject.write(form, Path(folder))
            for precision in precisions:
                try:
                    found[f"{form} {precision}"] = compiled_error(path, inputs, expected, precision)
                except Exception as failure:
                    found[f"{form} {precision}"] = f"{type(failure).__name__}: {failure}"[:200]
        if "bf16" in precisions:
            found[OWN] = subject.framework_bf16_error()
    return found


def check_apart(name: str, arguments: argparse.Namespace) -> dict[str, float | str]:
    """In the parent: the same in a process of its own, whose memory goes with it."""
    command = [sys.executable, __file__, "--work", "--subjects", name]
    command += ["--forms", *arguments.forms, "--precisions", *arguments.precisions]
    command += ["--quick"] if arguments.quick else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        cause = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1][:200]
        return {
            f"{form} {precision}": cause for form in arguments.forms for precision in arguments.precisions
        }
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    """Check and print; the exit status says whether all errors are within the limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subjects", nargs="+", default=names(), choices=names(), metavar="NAME")
    parser.add_argument("--forms", nargs="+", default=["frozen", "onnx"], choices=["frozen", "onnx"])
    parser.add_argument("--precisions", nargs="+", default=list(LIMITS), choices=list(LIMITS))
    parser.add_argument("--quick", action="store_true", help="small models")
    parser.add_argument(
        "--json", type=Path, help="keep what was found there; a later run goes on with what is missing"
    )
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        found = check(arguments.subjects[0], arguments.forms, arguments.precisions, arguments.quick)
        print(json.dumps(found), flush=True)
        os._exit(0)
    return report(arguments)


def report(arguments: argparse.Namespace) -> int:
    """The table, then what failed and why."""
    from benchmarks.measure import console, new_table

    columns = [f"{form} {precision}" for form in arguments.forms for precision in arguments.precisions]
    titles = [c.replace("frozen", "TensorFlow").replace("onnx", "ONNX") for c in columns]
    table = new_table("Largest error relative to the largest value", ["model", *titles, OWN])
    wrong, notes = 0, []
    known = kept.read(arguments.json)
    for number, name in enumerate(arguments.subjects, 1):
        if not set(columns) <= known.get(name, {}).keys():
            known[name] = known.get(name, {}) | check_apart(name, arguments)
            kept.write(arguments.json, known)
        found = known[name]
        shown = " ".join(f"{c}={e:.1e}" for c, e in found.items() if not isinstance(e, str))
        console.print(f"[dim]{number}/{len(arguments.subjects)} {name} {shown}[/]")
        table.add_row(name, *(cell(c, found) for c in [*columns, OWN]))
        wrong += sum(not within(c, found[c]) for c in columns)
        notes += [f"{name} {c}: {e}" for c, e in found.items() if isinstance(e, str)]
    console.print(table)
    for note in notes:
        console.print(f"  {note}", markup=False)
    limits = ", ".join(f"{name} {limit:.0e}" for name, limit in LIMITS.items())
    console.print(f"limits: {limits}; {wrong} of {len(columns) * len(arguments.subjects)} outside")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
