"""Accuracy of compiled models against the framework's own answers: every family, file form and precision."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.contenders import limit_threads
from benchmarks.subjects import LIMITS, compiled_error, names, open_subject


def verdict(error: float | str, precision: str) -> str:
    """A cell of the table."""
    if isinstance(error, str):
        return f"[red]{error}[/]"
    return f"[{'green' if error < LIMITS[precision] else 'red'}]{error:.1e}[/]"


def check(
    name: str, forms: list[str], precisions: list[str], small: bool
) -> dict[tuple[str, str], float | str]:
    """Errors of one subject by form and precision; a failure is its message."""
    found: dict[tuple[str, str], float | str] = {}
    with open_subject(name, small) as subject, tempfile.TemporaryDirectory() as folder:
        for form in forms:
            path, inputs, expected = subject.write(form, Path(folder))
            for precision in precisions:
                try:
                    found[form, precision] = compiled_error(path, inputs, expected, precision)
                except Exception as failure:
                    found[form, precision] = f"{type(failure).__name__}: {failure}"[:60]
    return found


def main() -> int:
    """Check and print; the exit status says whether all errors are within the limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subjects", nargs="+", default=names(), choices=names(), metavar="NAME")
    parser.add_argument("--forms", nargs="+", default=["frozen", "onnx"], choices=["frozen", "onnx"])
    parser.add_argument("--precisions", nargs="+", default=list(LIMITS), choices=list(LIMITS))
    parser.add_argument("--quick", action="store_true", help="small models")
    arguments = parser.parse_args()
    limit_threads()

    from benchmarks.measure import console, new_table

    columns = [(form, precision) for form in arguments.forms for precision in arguments.precisions]
    titles = [f"{'TensorFlow' if form == 'frozen' else 'ONNX'} {precision}" for form, precision in columns]
    table = new_table("Largest error relative to the largest value", ["model", *titles])
    wrong = 0
    for number, name in enumerate(arguments.subjects, 1):
        console.print(f"[dim]{number}/{len(arguments.subjects)} {name}[/]")
        found = check(name, arguments.forms, arguments.precisions, arguments.quick)
        table.add_row(name, *(verdict(found[key], key[1]) for key in columns))
        wrong += sum(isinstance(e, str) or e >= LIMITS[p] for (_, p), e in found.items())
    console.print(table)
    limits = ", ".join(f"{name} {limit:.0e}" for name, limit in LIMITS.items())
    console.print(f"limits: {limits}; {wrong} of {len(columns) * len(arguments.subjects)} outside")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
