"""Operator files of the vector DSL: built for known shapes, and for unknown ones that are told later."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import tbe
from tbe import dsl
from tbe.conformance.cases import Outcome, differs, load, report
from tbe.dsl.building import builds_of

__all__ = ["operators", "outcomes"]

FURTHER: tuple[tuple[int, ...], ...] = ((1,), (1023,), (3, 1, 5), (2, 3, 4, 5))  # element by element
SPREADS: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((8, 128), (128,)),
    ((128,), (8, 128)),
    ((1,), (5, 7)),
    ((3, 1), (1, 4)),
)
_FAMILIES = (
    ("optimizers", r"^apply_"),
    (
        "reductions and normalisations",
        r"reduce_(?:sum|max|min|prod|mean|any|all)|\.sum\(|tuple_sum|unsorted_segment",
    ),
    ("index functions and movements", r"tvm\.compute|set_value|gather|concat|transpose|inplace|\.split\("),
    ("broadcasts", r"broadcast"),
)


def operators(
    folder: Annotated[Path, typer.Argument(help="operator files")] = Path("tests/tbe/operators"),
    references: Annotated[
        Path, typer.Option(help="what they compute: REFERENCES and array() as in the file of this name")
    ] = Path("tests/tbe/operator_references.py"),
    filter_: Annotated[str, typer.Option("--filter", help="files whose names match this expression")] = "",
    show: Annotated[int, typer.Option(help="how many that do not pass to print")] = 20,
) -> None:
    """Operator files in the vector DSL, for static and for dynamic shapes, beside NumPy."""
    found = outcomes(folder, load(references), filter_)
    if report("operator files", found, show):
        raise typer.Exit(1)


def outcomes(folder: Path, cases: Any, filter_: str = "") -> Iterator[Outcome]:
    """What comes of every file, element type, shape and mode."""
    for name, case in cases.REFERENCES.items():
        path = folder / f"{name}.py"
        if not re.search(filter_, name):
            continue
        text = path.read_text()
        family = next((f for f, words in _FAMILIES if re.search(words, f"{name}\n{text}", re.MULTILINE)), "")
        modes = ("static", "dynamic") if "register_operator(" in text else ("static",)
        for dtype in case.dtypes:
            for shapes in _shapes(case, family):
                for mode in modes:
                    label = f"{name} {dtype} {' '.join(map(str, shapes))}"
                    arrays = _arrays(cases, case, shapes, dtype)
                    status, why = _tried(path, case, arrays, mode)
                    yield Outcome(family or "element by element", mode, label, status, why)


def _shapes(case: Any, family: str) -> list[Sequence[tuple[int, ...]]]:
    """The shapes of the case, and others where every operand has the same one or two are broadcast."""
    found: list[Sequence[tuple[int, ...]]] = [case.shapes]
    if not family and len(set(case.shapes)) == 1 and case.outputs is None:
        found += [(shape,) * len(case.shapes) for shape in FURTHER]
    elif (
        family == "broadcasts"
        and len(case.shapes) == 2
        and np.broadcast_shapes(*case.shapes) not in case.shapes
    ):
        found += SPREADS  # either operand may be the larger one
    return found


def _arrays(cases: Any, case: Any, shapes: Sequence[tuple[int, ...]], dtype: str) -> list[np.ndarray]:
    kinds = case.kinds or (None,) * len(shapes)
    return [
        cases.array(shape, kind or dtype, case.low, case.high, seed)
        for seed, (shape, kind) in enumerate(zip(shapes, kinds, strict=True))
    ]


def _tried(path: Path, case: Any, arrays: list[np.ndarray], mode: str) -> tuple[str, str]:
    with np.errstate(all="ignore"):
        wanted = case.function(*arrays, **case.attrs)
    wanted = list(wanted) if isinstance(wanted, list | tuple) else [np.asarray(wanted)]
    outputs = case.outputs(*arrays) if case.outputs else None
    try:
        if mode == "static":
            found = tbe.run_operator(path, *arrays, outputs=outputs, **case.attrs)
            found = list(found) if isinstance(found, list | tuple) else [found]
        else:
            found = _specialised(path, arrays, wanted, case.attrs)
    except Exception as error:
        return "refused", f"{type(error).__name__}: {error}"
    why = differs(found, wanted, max(case.ulp, 1.0), case.scale)
    return ("wrong" if why else "pass"), why


def _specialised(
    path: Path, arrays: Sequence[np.ndarray], wanted: Sequence[np.ndarray], attrs: dict[str, Any]
) -> list[np.ndarray]:
    """Build an operator for unknown dimensions, then for those of arrays, and run it."""
    entry = dsl.load_operator(path).entry
    unknown = [dsl.description((-1,) * max(a.ndim, 1), a.dtype.name) for a in (*arrays, *wanted)]
    known = [dsl.description(a.shape or (1,), a.dtype.name) for a in (*arrays, *wanted)]
    made: list[dsl.Built] = []
    with builds_of(made):
        entry(*unknown, **attrs, kernel_name=path.stem)
    built = made[-1].specialise(*known)
    given = [a.reshape(p.shape) for a, p in zip(arrays, built.inputs, strict=True)]
    return dsl.Runner(built.inputs, built.outputs)(*given)
