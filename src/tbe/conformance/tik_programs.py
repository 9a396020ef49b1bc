"""TIK programs: as machine code and interpreted, beside NumPy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from tbe import expr as e
from tbe.conformance.cases import Outcome, differs, load, report
from tbe.dsl.tracing import load_operator, tik_program

__all__ = ["outcomes", "tik"]


def tik(
    folder: Annotated[Path, typer.Argument(help="operator files")] = Path("tests/tbe/tik_operators"),
    references: Annotated[
        Path, typer.Option(help="what they compute: CASES as in the file of this name")
    ] = Path("tests/tbe/tik_references.py"),
    show: Annotated[int, typer.Option(help="how many that do not pass to print")] = 20,
) -> None:
    """TIK programs as machine code and interpreted, beside NumPy."""
    found = list(outcomes(folder, load(references).CASES))
    wrong = report("TIK programs", found, show)
    times = [o.why for o in found if o.mode == "machine code" and o.status == "pass"]
    typer.echo("\n".join(times))
    if wrong:
        raise typer.Exit(1)


def outcomes(folder: Path, cases: Any) -> Iterator[Outcome]:
    """What comes of every case in both modes; that of machine code tells the times."""
    for case in cases:
        wanted = [np.asarray(w) for w in case.wanted]
        try:
            program = tik_program(
                load_operator(folder / f"{case.name}.py").entry,
                [e.placeholder(a.shape, a.dtype.name) for a in case.arrays],
                case.outputs or [(w.shape, w.dtype.name) for w in wanted],
                case.attrs,
            )
            native = program.native
        except Exception as error:
            for mode in ("interpreted", "machine code"):
                yield Outcome(case.family, mode, case.name, "refused", f"{type(error).__name__}: {error}")
            continue
        slow, found = _timed(partial(program.interpret, *case.arrays))
        yield _judged(case, "interpreted", found, wanted)
        if isinstance(native, str):
            yield Outcome(case.family, "machine code", case.name, "refused", native)
            continue
        fast, found = _timed(partial(native, case.arrays), 5)
        times = f"{case.name}: {fast * 1e6:.0f} µs, interpreted {slow * 1e3:.2f} ms"
        yield _judged(case, "machine code", found or [], wanted, times)


def _timed(work: Callable[[], Any], calls: int = 1) -> tuple[float, Any]:
    """The shortest time of some calls and what they give."""
    best = float("inf")
    for _ in range(calls):
        start = time.perf_counter()
        found = work()
        best = min(best, time.perf_counter() - start)
    return best, found


def _judged(case: Any, mode: str, found: Any, wanted: Any, times: str = "") -> Outcome:
    why = differs(found, wanted, case.ulp, case.scale)
    return Outcome(case.family, mode, case.name, "wrong" if why else "pass", why or times)
